/* SPDX-License-Identifier: MIT */
/*
 * Reduces a part of a dense operation over the communicator: the tensors themselves, or a piece of
 * their copies in host memory (staging.c). Elements are reduced in memory order.
 *
 * If some rank has several inputs, each rank first reduces its own inputs to one, in the
 * accumulation type. Floats of 8 and 16 bits accumulate in float32: they are converted, reduced
 * across ranks as float32, block by block, and rounded afterwards. All other dtypes are their own
 * accumulation type and are reduced into the first tensor. Either way each element is rounded once.
 */
#include "base/numeric.h"
#include "pg/pg.h"

enum { BLOCK = 256 }; /* elements of an input that are converted at once */

/* X(dtype, suffix of the functions of numeric.h, C type of an element) */
#define NARROW_MAP(X)                                                                              \
    X(FLOAT16, f16, uint16_t)                                                                      \
    X(BFLOAT16, bf16, uint16_t)                                                                    \
    X(FLOAT8_E4M3, e4m3, uint8_t)                                                                  \
    X(FLOAT8_E5M2, e5m2, uint8_t)

#define NARROW_FUNCTIONS(dtype, T, element)                                                        \
    static void widen_##T(float *to, const void *from, size_t first, size_t count)                 \
    {                                                                                              \
        const element *in = (const element *)from + first;                                         \
        for (size_t i = 0; i < count; i++)                                                         \
            to[i] = numeric_##T##_load(in[i]);                                                     \
    }                                                                                              \
    static void narrow_##T(void *to, const float *from, size_t first, size_t count)                \
    {                                                                                              \
        element *out = (element *)to + first;                                                      \
        for (size_t i = 0; i < count; i++)                                                         \
            out[i] = numeric_##T##_store(from[i]);                                                 \
    }
NARROW_MAP(NARROW_FUNCTIONS)
#undef NARROW_FUNCTIONS

/* The conversions of the dtypes that accumulate in float32, except for float32. */
static const struct narrow {
    void (*widen)(float *to, const void *from, size_t first, size_t count);
    void (*narrow)(void *to, const float *from, size_t first, size_t count);
} narrows[TUTTI_DTYPE_COUNT] = {
#define NARROW_ROW(dtype, T, element) [TUTTI_##dtype] = {widen_##T, narrow_##T},
    NARROW_MAP(NARROW_ROW)
#undef NARROW_ROW
};

/* The reduction of a rank's own inputs. An average is divided in the reduction across ranks. */
static enum op_kind own_kind(enum op_kind kind)
{
    return kind == OP_AVG ? OP_SUM : kind;
}

/* The reduction across ranks. The scalar of premul_sum has been applied already. */
static tutti_op_t cross_op(enum op_kind kind)
{
    return (tutti_op_t)(uintptr_t)(kind == OP_PREMUL_SUM ? OP_SUM : kind);
}

/* out = the reduction of the own inputs. */
static void own_reduce(const struct tutti_pg *pg, const struct pg_op *op, enum tutti_dtype dtype,
                       void *out, const void *const *in, size_t count)
{
    reduce_function(pg->comm->isa, dtype, own_kind(op->op.kind))(&(struct reduce_call){
        .out = out,
        .in = in,
        .n = op->work.tensor_count,
        .count = count,
        .scalar = op->op.scalar,
    });
}

/* pg->widened = the reduction of `count` elements of the own inputs from `first` on. */
static void own_widen(const struct tutti_pg *pg, const struct pg_op *op, const struct pg_part *part,
                      size_t first, size_t count)
{
    float blocks[TUTTI_MAX_TENSORS][BLOCK];
    const void *in[TUTTI_MAX_TENSORS];
    for (size_t done = 0; done < count; done += BLOCK) {
        size_t length = count - done < BLOCK ? count - done : BLOCK;
        for (int i = 0; i < op->work.tensor_count; i++) {
            narrows[op->dtype].widen(blocks[i], part->data[i], first + done, length);
            in[i] = blocks[i];
        }
        own_reduce(pg, op, TUTTI_FLOAT32, pg->widened + done, in, length);
    }
}

static void copy_result(const struct tutti_pg *pg, const struct pg_op *op,
                        const struct pg_part *part)
{
    for (int i = 1; i < op->work.tensor_count; i++)
        pg->comm->isa->copy(part->data[i], part->data[0],
                            part->count * tutti_dtype_size(op->dtype));
}

static enum tutti_status reduce_widened(struct tutti_pg *pg, const struct pg_op *op,
                                        const struct pg_part *part)
{
    for (size_t first = 0; first < part->count; first += PG_WIDE_ELEMENTS) {
        size_t left = part->count - first;
        size_t count = left < PG_WIDE_ELEMENTS ? left : PG_WIDE_ELEMENTS;
        uint64_t environment = reduce_env_begin();
        own_widen(pg, op, part, first, count);
        reduce_env_end(environment);
        enum tutti_status status = comm_all_reduce(pg->comm, pg->widened, count, TUTTI_FLOAT32,
                                                   cross_op(op->op.kind), op->timeout_ms);
        if (status != TUTTI_OK)
            return status;
        environment = reduce_env_begin();
        narrows[op->dtype].narrow(part->data[0], pg->widened, first, count);
        reduce_env_end(environment);
    }
    return TUTTI_OK;
}

static enum tutti_status reduce_own(struct tutti_pg *pg, const struct pg_op *op,
                                    const struct pg_part *part)
{
    const void *in[TUTTI_MAX_TENSORS];
    for (int i = 0; i < op->work.tensor_count; i++)
        in[i] = part->data[i];
    uint64_t environment = reduce_env_begin();
    own_reduce(pg, op, op->dtype, part->data[0], in, part->count);
    reduce_env_end(environment);
    return comm_all_reduce(pg->comm, part->data[0], part->count, op->dtype, cross_op(op->op.kind),
                           op->timeout_ms);
}

enum tutti_status pg_part_reduce(struct tutti_pg *pg, const struct pg_op *op,
                                 const struct pg_part *part, uint32_t inputs)
{
    if (inputs <= 1 || part->count == 0)
        return comm_all_reduce(pg->comm, part->data[0], part->count, op->dtype, pg_op_reduction(op),
                               op->timeout_ms);
    enum tutti_status status =
        narrows[op->dtype].widen ? reduce_widened(pg, op, part) : reduce_own(pg, op, part);
    if (status == TUTTI_OK)
        copy_result(pg, op, part);
    return status;
}
