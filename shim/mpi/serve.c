/* SPDX-License-Identifier: MIT */
/* A call that Tutti serves. */
#include "operand.h"

#include <stdlib.h>
#include <string.h>

#define BYTES TUTTI_UINT8

/* Calls Tutti unless the call has failed already. */
#define RUN(name, ...)                                                                             \
    check(serving, serving->code == 0 ? tutti_##name##_with(__VA_ARGS__, serving->comm->tutti,     \
                                                            TUTTI_STREAM_DEFAULT, NULL)            \
                                      : TUTTI_OK)

static void check(struct serving *serving, enum tutti_status status)
{
    if (__builtin_expect(status != TUTTI_OK, 0))
        fail(serving, tutti_last_error());
}

/* ---- reductions ------------------------------------------------------------------------------ */

static bool is_aligned(const void *operand, const struct type *type)
{
    return (uintptr_t)operand % (type->bytes < 8 ? type->bytes : 8) == 0;
}

/* 1 for each element that is not 0, of 1, 2, 4 or 8 bytes. */
static void logical_copy(char *to, const char *from, size_t count, size_t bytes)
{
    memset(to, 0, count * bytes);
    for (size_t i = 0; i < count * bytes; i++)
        to[i & ~(bytes - 1)] |= from[i] != 0;
}

/* What is reduced, of so many elements; a copy if `copy`, or if the address is not aligned. */
static const void *reduce_input(struct serving *serving, size_t count, bool copy)
{
    const struct call *call = serving->call;
    const void *operand = is_in_place(serving, &call->send) ? call->recv.buffer : call->send.buffer;
    const size_t bytes = count * serving->type->bytes;
    if (!copy && !serving->is_logical && is_aligned(operand, serving->type))
        return operand;
    void *made = operand_buffer(serving, bytes);
    if (made && serving->is_logical)
        logical_copy(made, operand, count, serving->type->bytes);
    else if (made && bytes)
        memcpy(made, operand, bytes);
    return made;
}

static void *reduce_output(struct serving *serving, size_t count)
{
    void *operand = recv_of(serving->call);
    return is_aligned(operand, serving->type)
               ? operand
               : operand_buffer(serving, count * serving->type->bytes);
}

static void reduce_finish(struct serving *serving, size_t count, const void *bytes)
{
    if (serving->code == 0 && bytes && bytes != serving->call->recv.buffer)
        memcpy(recv_of(serving->call), bytes, count * serving->type->bytes);
}

/* Allreduce, Reduce */
static void serve_reduce(struct serving *serving)
{
    const struct call *call = serving->call;
    const size_t count = (size_t)call->send.count;
    const enum tutti_dtype dtype = serving->type->dtype;
    const bool all = call->function == FUNCTION_Allreduce;
    void *to = all || call->root == serving->comm->rank ? reduce_output(serving, count) : NULL;
    const void *from = reduce_input(serving, count, false);
    if (all)
        RUN(all_reduce, from, to, count, dtype, serving->op);
    else
        RUN(reduce, from, to, count, dtype, serving->op, call->root);
    reduce_finish(serving, count, to);
}

/* Reduce_scatter, Reduce_scatter_block. In place the result lies where the operand begins, and not
 * in the own block. */
static void serve_reduce_scatter(struct serving *serving)
{
    const struct call *call = serving->call;
    const enum tutti_dtype dtype = serving->type->dtype;
    size_t counts[TUTTI_MAX_RANKS], all = 0;
    for (int r = 0; r < serving->comm->size; r++)
        all += counts[r] = (size_t)block_count(call, &call->send, r);
    const size_t own = counts[serving->comm->rank];
    void *to = reduce_output(serving, own);
    const void *from = reduce_input(serving, all, is_in_place(serving, &call->send));
    if (call->function == FUNCTION_Reduce_scatter)
        RUN(reduce_scatter_v, from, counts, NULL, to, dtype, serving->op);
    else
        RUN(reduce_scatter, from, to, own, dtype, serving->op);
    reduce_finish(serving, own, to);
}

/* ---- moves ----------------------------------------------------------------------------------- */

static void serve_bcast(struct serving *serving)
{
    const struct call *call = serving->call;
    const bool is_root = call->root == serving->comm->rank;
    struct blocks data;
    if (is_root)
        blocks_input(serving, &call->recv, 1, NULL, &data);
    else
        blocks_output(serving, &call->recv, 1, &data);
    RUN(broadcast, data.base, data.base, data.end, BYTES, call->root);
    if (!is_root)
        blocks_finish(serving, &data);
}

/* Allgather, Gather, and with blocks of different lengths */
static void serve_gather(struct serving *serving)
{
    const struct call *call = serving->call;
    const bool all = call->function == FUNCTION_Allgather || call->function == FUNCTION_Allgatherv;
    struct blocks from, to = {.end = 0};
    if (all || call->root == serving->comm->rank)
        blocks_output(serving, &call->recv, serving->comm->size, &to);
    if (is_in_place(serving, &call->send))
        blocks_own(serving, &to, &from);
    else
        blocks_input(serving, &call->send, 1, &to, &from);
    if (call->function == FUNCTION_Allgather)
        RUN(all_gather, from.base, to.base, from.end, BYTES);
    else if (all)
        RUN(all_gather_v, from.base, from.end, to.base, to.counts, to.displs, BYTES);
    else if (call->function == FUNCTION_Gather)
        RUN(gather, from.base, to.base, from.end, BYTES, call->root);
    else
        RUN(gather_v, from.base, from.end, to.base, to.counts, to.displs, BYTES, call->root);
    blocks_finish(serving, &to);
}

/* Scatter, Scatterv */
static void serve_scatter(struct serving *serving)
{
    const struct call *call = serving->call;
    struct blocks from = {.end = 0}, to = {.end = 0};
    if (!is_in_place(serving, &call->recv))
        blocks_output(serving, &call->recv, 1, &to);
    if (call->root == serving->comm->rank)
        blocks_input(serving, &call->send, serving->comm->size, &to, &from);
    if (is_in_place(serving, &call->recv))
        blocks_own(serving, &from, &to);
    if (call->function == FUNCTION_Scatter)
        RUN(scatter, from.base, to.base, to.end, BYTES, call->root);
    else
        RUN(scatter_v, from.base, from.counts, from.displs, to.base, to.end, BYTES, call->root);
    blocks_finish(serving, &to);
}

/* Alltoall, Alltoallv */
static void serve_alltoall(struct serving *serving)
{
    const struct call *call = serving->call;
    const int size = serving->comm->size;
    struct blocks from, to;
    blocks_output(serving, &call->recv, size, &to);
    blocks_input(serving, is_in_place(serving, &call->send) ? &call->recv : &call->send, size, &to,
                 &from);
    if (call->function == FUNCTION_Alltoall)
        RUN(all_to_all, from.base, to.base, to.counts[0], BYTES);
    else
        RUN(all_to_all_v, from.base, from.counts, from.displs, to.base, to.counts, to.displs,
            BYTES);
    blocks_finish(serving, &to);
}

/* What a peer has sent before the barrier, the MPI has taken behind it: a single MPI_Win_test() or
 * MPI_Test() then finds it, as behind MPI's own barrier. */
static void serve_barrier(struct serving *serving)
{
    check(serving, tutti_barrier(serving->comm->tutti, NULL, 0, TUTTI_STREAM_DEFAULT));
    comm_probe(serving->comm);
}

bool call_serve(const struct real *real, const struct call *call, int *code)
{
    static void (*const serve[FUNCTIONS])(struct serving *) = {
        [FUNCTION_Allreduce] = serve_reduce,
        [FUNCTION_Reduce] = serve_reduce,
        [FUNCTION_Reduce_scatter] = serve_reduce_scatter,
        [FUNCTION_Reduce_scatter_block] = serve_reduce_scatter,
        [FUNCTION_Bcast] = serve_bcast,
        [FUNCTION_Allgather] = serve_gather,
        [FUNCTION_Allgatherv] = serve_gather,
        [FUNCTION_Alltoall] = serve_alltoall,
        [FUNCTION_Alltoallv] = serve_alltoall,
        [FUNCTION_Gather] = serve_gather,
        [FUNCTION_Gatherv] = serve_gather,
        [FUNCTION_Scatter] = serve_scatter,
        [FUNCTION_Scatterv] = serve_scatter,
        [FUNCTION_Barrier] = serve_barrier,
    };
    struct serving serving = {.real = real, .call = call};
    const bool reduces = call_reduces(call);
    if (reduces && (!(serving.type = type_plain(real, call->send.type)) ||
                    !(serving.op = op_find(real, call->op, serving.type, &serving.is_logical))))
        return false;
    serving.comm = comm_find(real, call->comm);
    /* MPI says what is wrong with such a call. Other calls have counts that are not looked at. */
    if (!serving.comm || call->root < 0 || call->root >= serving.comm->size ||
        (reduces && call->send.count < 0))
        return false;
    serve[call->function](&serving);
    for (int i = 0; i < serving.used; i++)
        free(serving.buffers[i]);
    *code = serving.code;
    return true;
}
