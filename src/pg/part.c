/* SPDX-License-Identifier: MIT */
/*
 * Reduces a part of an all-reduce over the communicator: the tensors themselves, or a piece of
 * their copies in host memory (staging.c). Elements are reduced in memory order.
 *
 * If some rank has several inputs, each rank first reduces its own inputs to one, in the
 * accumulation type. Floats of 8 and 16 bits accumulate in float32: they are converted, reduced
 * across ranks as float32, block by block, and rounded afterwards. All other dtypes are their own
 * accumulation type and are reduced into the first tensor. Either way each element is rounded once.
 */
#include "pg/pg.h"

static bool is_widened(enum tutti_dtype dtype)
{
    return reduce_partial_bytes(dtype) != tutti_dtype_size(dtype);
}

/* The reduction of a rank's own inputs. An average is divided in the reduction across ranks. */
static enum op_kind own_kind(enum op_kind kind)
{
    return kind == OP_AVG ? OP_SUM : kind;
}

/* The reduction across ranks. The scalar of premul_sum has been applied already. */
static tutti_op_t cross_op(tutti_op_t op)
{
    return op_kind(op) == OP_PREMUL_SUM ? TUTTI_SUM : op;
}

/* out = the reduction of `count` elements of the own inputs, from `first` on; partial if widened.
 */
static void own_reduce(const struct tutti_pg *pg, const struct pg_operation *operation,
                       const struct pg_part *part, size_t first, size_t count, void *out)
{
    const void *in[TUTTI_MAX_TENSORS];
    const enum tutti_dtype dtype = operation->args.dtype, component = dtype_component(dtype);
    for (int i = 0; i < operation->work.tensor_count; i++)
        in[i] = (const char *)part->data[i] + first * tutti_dtype_size(dtype);
    reduce_function(pg->comm->isa, component,
                    own_kind(op_kind(operation->args.op)))(&(struct reduce_call){
        .out = out,
        .in = in,
        .n = operation->work.tensor_count,
        .count = count << dtype_is_complex(dtype),
        .scalar = op_scalar_of(&operation->op, component),
        .out_partial = is_widened(dtype),
    });
}

/* Round float32 to the dtype: the maximum of a partial result and itself. */
static void round_result(const struct tutti_pg *pg, const struct pg_operation *operation, void *out,
                         const float *partial, size_t count)
{
    reduce_function(pg->comm->isa, operation->args.dtype, OP_MAX)(&(struct reduce_call){
        .out = out,
        .in = (const void *const[]){partial, partial},
        .n = 2,
        .count = count,
        .partials = 2,
    });
}

static void copy_result(const struct tutti_pg *pg, const struct pg_operation *operation,
                        const struct pg_part *part)
{
    for (int i = 1; i < operation->work.tensor_count; i++)
        pg->comm->isa->copy(part->data[i], part->data[0],
                            part->count * tutti_dtype_size(operation->args.dtype));
}

/* Reduce up to PG_WIDE_ELEMENTS elements, or any number if the dtype is its own accumulation
 * type. */
static enum tutti_status reduce_block(struct tutti_pg *pg, const struct pg_operation *operation,
                                      const struct pg_part *part, size_t first, size_t count)
{
    const enum tutti_dtype dtype = operation->args.dtype;
    const bool wide = is_widened(dtype);
    void *out = (char *)part->data[0] + first * tutti_dtype_size(dtype);
    void *partial = wide ? pg->widened : out;
    uint64_t environment = reduce_env_begin();
    own_reduce(pg, operation, part, first, count, partial);
    reduce_env_end(environment);
    const struct coll_args args = coll_args_make(
        partial, partial, count, wide ? TUTTI_FLOAT32 : dtype, cross_op(operation->args.op), 0);
    enum tutti_status status = comm_run(pg->comm, operation->work.collective, &args,
                                        operation->timeout_ms, TUTTI_STREAM_DEFAULT);
    environment = reduce_env_begin();
    if (status == TUTTI_OK && wide)
        round_result(pg, operation, out, pg->widened, count);
    reduce_env_end(environment);
    return status;
}

enum tutti_status pg_run(struct tutti_pg *pg, const struct pg_operation *operation,
                         const struct coll_args *args)
{
    return pg_is_on_device(operation) ? pg_cuda_run(pg, operation, args)
                                      : comm_run(pg->comm, operation->work.collective, args,
                                                 operation->timeout_ms, TUTTI_STREAM_DEFAULT);
}

enum tutti_status pg_part_reduce(struct tutti_pg *pg, const struct pg_operation *operation,
                                 const struct pg_part *part)
{
    struct coll_args args = operation->args;
    args.send = args.recv = part->data[0];
    args.count = part->count;
    if (operation->inputs <= 1 || part->count == 0)
        return pg_run(pg, operation, &args);
    const size_t most = is_widened(args.dtype) ? PG_WIDE_ELEMENTS : part->count;
    enum tutti_status status = TUTTI_OK;
    for (size_t first = 0; first < part->count && status == TUTTI_OK; first += most) {
        size_t left = part->count - first;
        status = reduce_block(pg, operation, part, first, left < most ? left : most);
    }
    if (status == TUTTI_OK)
        copy_result(pg, operation, part);
    return status;
}
