/* SPDX-License-Identifier: MIT */
#include "../../tools/collective.h"
#include "../../tools/collective_call.h"
#include "device.h"
#include "reference.h"
#include "soak.h"

#include <stdio.h>
#include <string.h>

enum {
    SMALL_LOG2 = 15, /* 9 of 10 */
    LARGE_LOG2 = 22,
    SYMMETRIC_LOG2 = 19,
    LARGEST_IN = 20000, /* operations there is one of SOAK_MOST_BYTES */
    POISON = 0xa5,
};

/* The most of them have at most this. */
static size_t bytes_make(const struct soak_episode *episode, uint64_t *random)
{
    uint64_t roll = soak_below(random, LARGEST_IN);
    size_t bytes = soak_bytes(random, roll % 10 ? SMALL_LOG2 : LARGE_LOG2);
    if (episode->kind == SOAK_SYMMETRIC || device_is_cuda())
        return bytes % ((1 << SYMMETRIC_LOG2) + 1);
    return roll ? bytes : SOAK_MOST_BYTES;
}

void operation_make(const struct soak_episode *episode, uint64_t *random,
                    struct soak_operation *operation)
{
    struct soak_operation o = {.comm = (int)soak_below(random, (uint64_t)episode->count)};
    o.barrier = soak_below(random, 16) == 0;
    o.subset = (uint32_t)pool_random(random) & ((1U << episode->comms[o.comm].size) - 1);
    if (soak_below(random, 2))
        o.subset = 0;
    do {
        o.dtype = (enum tutti_dtype)soak_below(random, TUTTI_DTYPE_COUNT);
        o.op = (tutti_op_t)(uintptr_t)(1 + soak_below(random, REFERENCE_OPS - 1));
    } while (!reference_has(o.dtype, o.op));
    o.algo = (enum tutti_algo)soak_below(random, TUTTI_ALGO_RING + 1);
    o.count = bytes_make(episode, random) / tutti_dtype_size(o.dtype);
    o.collective = TUTTI_COLLECTIVE_ALL_REDUCE;
    if (!device_is_cuda() && soak_below(random, 2))
        o.collective = collective_draw(pool_random(random));
    o.count /= (size_t)collective_blocks(&collectives[o.collective],
                                         episode->comms[o.comm].size); /* so that all fit */
    o.offset = soak_below(random, POOL_PERIOD);
    o.root = (int)soak_below(random, (uint64_t)episode->comms[o.comm].size);
    o.grouped =
        !device_is_cuda() && soak_below(random, 4) == 0 &&
        o.collective != TUTTI_COLLECTIVE_ALL_TO_ALL_V; /* collective_call() has its counts */
    o.copies = soak_below(random, 2);
    o.bits = pool_random(random);
    *operation = o;
}

/* What was drawn, if the communicator takes it; a ring only where the order of the inputs is
 * nothing to the result. */
static enum tutti_algo algo_of(const struct soak_operation *o, tutti_comm_t *comm)
{
    const struct tutti_call_options options = {.struct_size = sizeof options, .algo = o->algo};
    enum tutti_algo algo;
    if ((o->algo == TUTTI_ALGO_RING && reference_has_order(o->dtype, o->op)) ||
        tutti_comm_algorithm(comm, o->count, o->dtype, TUTTI_MAX, &options, &algo, NULL))
        return TUTTI_ALGO_NONE;
    return o->algo;
}

/* The call as the reference knows it. Fills the counts: of a v-form any, others are equal. */
static struct pool_call call_of(const struct soak_place *place, const struct soak_operation *o,
                                size_t *counts)
{
    uint64_t random = o->bits;
    for (int r = 0; r < tutti_comm_world_size(place->comm); r++)
        counts[r] =
            collectives[o->collective].varies ? soak_below(&random, o->count + 1) : o->count;
    return (struct pool_call){.which = o->collective,
                              .rank = tutti_comm_rank(place->comm),
                              .root = o->root,
                              .dtype = o->dtype,
                              .op = o->op,
                              .offset = o->offset,
                              .counts = counts};
}

/* Where the operands lie: at any address that the dtype allows, in place on all ranks or on some.
 */
static unsigned char *send_of(const struct soak_place *place, const struct soak_operation *o)
{
    size_t width = tutti_dtype_size(o->dtype);
    uint64_t own = o->bits + (uint64_t)place->self->rank * 5;
    return place->self->send + SOAK_GUARD + own % SOAK_GUARD / width * width;
}

static unsigned char *recv_of(const struct soak_place *place, const struct soak_operation *o)
{
    size_t width = tutti_dtype_size(o->dtype);
    bool mixed = o->bits >> 62 == 3;
    bool in_place = (mixed ? (uint64_t)place->self->rank : o->bits >> 63) & 1;
    bool again = device_is_cuda() && place->self->episode->graph > 1; /* from the same input */
    const struct collective *collective = &collectives[o->collective];
    if ((collective->send_at_root || collective->recv_at_root) &&
        tutti_comm_rank(place->comm) != o->root) /* it lacks one of them */
        in_place = false;
    return in_place && !again && !collective->apart && collective->send_all == collective->recv_all
               ? send_of(place, o)
               : place->self->recv + SOAK_GUARD + (o->bits >> 20) % SOAK_GUARD / width * width;
}

static enum tutti_status barrier_run(const struct soak_place *place, const struct soak_operation *o)
{
    const struct tutti_call_options options = {.struct_size = sizeof options,
                                               .timeout_ms = place->timeout_ms};
    int ranks[SOAK_RANKS], count = 0, size = tutti_comm_world_size(place->comm);
    bool is_in = false;
    for (int r = 0; r < size; r++) {
        if (!(o->subset >> r & 1))
            continue;
        is_in |= r == tutti_comm_rank(place->comm);
        ranks[count++] = r;
    }
    if (count && !is_in)
        return TUTTI_OK;
    return tutti_barrier_with(place->comm, count ? ranks : NULL, count, TUTTI_STREAM_DEFAULT,
                              &options);
}

static enum tutti_status call(const struct soak_place *place, const struct soak_operation *o,
                              const size_t *counts, const void *send, void *recv)
{
    const tutti_op_t op = o->op == TUTTI_PREMUL_SUM ? place->self->soak->premul_sum : o->op;
    struct tutti_call_options options = {
        .struct_size = sizeof options,
        .timeout_ms = place->timeout_ms,
        .flags = o->copies ? TUTTI_CALL_NO_ZERO_COPY : 0,
    };
    if (collectives[o->collective].chosen)
        options.algo = algo_of(o, place->comm);
    enum tutti_status status = o->grouped ? tutti_group_start() : TUTTI_OK;
    if (status == TUTTI_OK)
        status = collective_call(o->collective, send, recv, counts, o->dtype, op, o->root,
                                 place->comm, &options);
    if (!o->grouped)
        return status;
    options.algo = TUTTI_ALGO_NONE;
    if (status == TUTTI_OK)
        (void)tutti_barrier_with(place->comm, NULL, 0, TUTTI_STREAM_DEFAULT, &options);
    return tutti_group_end();
}

enum tutti_status operation_run(const struct soak_place *place, const struct soak_operation *o)
{
    size_t counts[TUTTI_MAX_RANKS];
    if (o->barrier)
        return barrier_run(place, o);
    const struct pool_call made = call_of(place, o, counts);
    const size_t sent = pool_send_count(place->pool, &made);
    const size_t bytes = pool_recv_count(place->pool, &made) * tutti_dtype_size(o->dtype);
    unsigned char *send = send_of(place, o), *recv = recv_of(place, o);
    pool_input(place->pool, made.rank, o->dtype, o->offset, sent, send);
    if (send != recv)
        memset(recv, POISON, bytes);
    memset(recv - SOAK_GUARD, POISON, SOAK_GUARD);
    memset(recv + bytes, POISON, SOAK_GUARD);
    return call(place, o, counts, sent ? send : NULL, bytes ? recv : NULL);
}

static bool is_poison(const unsigned char *bytes)
{
    for (int i = 0; i < SOAK_GUARD; i++)
        if (bytes[i] != POISON)
            return false;
    return true;
}

const char *operation_check(const struct soak_place *place, const struct soak_operation *o,
                            size_t *index)
{
    size_t counts[TUTTI_MAX_RANKS];
    *index = 0;
    if (o->barrier)
        return NULL;
    const struct pool_call made = call_of(place, o, counts);
    const size_t bytes = pool_recv_count(place->pool, &made) * tutti_dtype_size(o->dtype);
    const unsigned char *send = send_of(place, o), *recv = recv_of(place, o);
    if (!pool_is_collective(place->pool, &made, recv, index))
        return "another result";
    if (!is_poison(recv - SOAK_GUARD) || (send != recv && !is_poison(recv + bytes)))
        return "written beside the output";
    if (send != recv && !pool_is_input(place->pool, made.rank, o->dtype, o->offset,
                                       pool_send_count(place->pool, &made), send))
        return "the input was written";
    return NULL;
}

void operation_format(const struct soak_operation *o, char *text, size_t size)
{
    if (o->barrier)
        snprintf(text, size, "barrier of %x, communicator %d", o->subset, o->comm);
    else
        snprintf(text, size, "%s, %s of %zu %s, root %d, %s%s%s, communicator %d",
                 collective_name(o->collective), tutti_op_name(o->op), o->count,
                 tutti_dtype_name(o->dtype), o->root, tutti_algo_name(o->algo),
                 o->copies ? ", copying" : "", o->grouped ? ", grouped" : "", o->comm);
}
