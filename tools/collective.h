/* SPDX-License-Identifier: MIT */
/*
 * The shape of each collective, for measurements and tests: one row each. To call one:
 * collective_call.h.
 *
 * A call has `count` elements: a block. An operand is one block, or one block for each rank, in
 * rank order. The size of a measurement is that of the larger operand, as in nccl-tests. In place,
 * the smaller operand is the rank's own block in the larger one, as in NCCL; operands of equal size
 * are the same. Rivals' programs use this header, so it must not need a function of the library.
 */
#ifndef TUTTI_TOOL_COLLECTIVE_H
#define TUTTI_TOOL_COLLECTIVE_H

#include "tutti/tutti.h"

struct collective {
    bool data;     /* it has operands */
    bool send_all; /* the operand has a block for each rank */
    bool recv_all;
    bool reduces;
    bool chosen; /* it has more than one algorithm */
    /* The bus bandwidth is the size over the time, times this, times (n - 1) / n, or, if the factor
     * is 0, not changed. As nccl-tests has it. */
    int bus_factor;
    bool rooted;       /* one rank is the root: in measurements each rank in turn */
    bool send_at_root; /* only the root has the operand */
    bool recv_at_root;
    bool varies; /* a v-form: blocks may differ in length */
    bool apart;  /* its operands may not overlap at all */
};

#define COLLECTIVE(name, ...) [TUTTI_COLLECTIVE_##name] = {.data = true, __VA_ARGS__}
#define FROM_ROOT             .rooted = true, .send_at_root = true
#define TO_ROOT               .rooted = true, .recv_at_root = true
static const struct collective collectives[] = {
    COLLECTIVE(ALL_REDUCE, .reduces = true, .chosen = true, .bus_factor = 2),
    [TUTTI_COLLECTIVE_BARRIER] = {.data = false},
    COLLECTIVE(ALL_GATHER, .recv_all = true, .bus_factor = 1),
    COLLECTIVE(REDUCE_SCATTER, .send_all = true, .reduces = true, .bus_factor = 1),
    COLLECTIVE(ALL_TO_ALL, .send_all = true, .recv_all = true, .bus_factor = 1),
    COLLECTIVE(BROADCAST, FROM_ROOT),
    COLLECTIVE(REDUCE, TO_ROOT, .reduces = true),
    COLLECTIVE(GATHER, TO_ROOT, .recv_all = true, .bus_factor = 1),
    COLLECTIVE(SCATTER, FROM_ROOT, .send_all = true, .bus_factor = 1),
    /* Each rank sends to the next one and receives from the one before. */
    COLLECTIVE(SEND, .apart = true),
    COLLECTIVE(ALL_GATHER_V, .varies = true, .recv_all = true, .bus_factor = 1),
    COLLECTIVE(REDUCE_SCATTER_V, .varies = true, .send_all = true, .reduces = true,
               .bus_factor = 1),
    COLLECTIVE(ALL_TO_ALL_V, .varies = true, .send_all = true, .recv_all = true, .bus_factor = 1,
               .apart = true),
    COLLECTIVE(GATHER_V, .varies = true, TO_ROOT, .recv_all = true, .bus_factor = 1),
    COLLECTIVE(SCATTER_V, .varies = true, FROM_ROOT, .send_all = true, .bus_factor = 1),
};
#undef COLLECTIVE
#undef FROM_ROOT
#undef TO_ROOT

enum { COLLECTIVE_ROWS = sizeof collectives / sizeof *collectives };

static inline bool collective_has_blocks(enum tutti_collective which)
{
    return collectives[which].send_all || collectives[which].recv_all;
}

/* The name of its measurement. For messages it is the name of what each rank does. */
static inline const char *collective_name(enum tutti_collective which)
{
    return which == TUTTI_COLLECTIVE_SEND ? "send_recv" : tutti_collective_name(which);
}

/* Whether all ranks have both operands, with blocks of one length. */
static inline bool collective_is_plain(enum tutti_collective which)
{
    const struct collective *collective = &collectives[which];
    return collective->data && !collective->rooted && !collective->varies &&
           which != TUTTI_COLLECTIVE_SEND;
}

/* Chooses a collective with operands. If the number is random, all have equal chances. */
static inline enum tutti_collective collective_draw(uint64_t random)
{
    unsigned which = (unsigned)(random % COLLECTIVE_ROWS);
    while (!collectives[which].data)
        which = (unsigned)((random = random / COLLECTIVE_ROWS + 1) % COLLECTIVE_ROWS);
    return (enum tutti_collective)which;
}

static inline int collective_send_blocks(const struct collective *collective, int ranks)
{
    return collective->send_all ? ranks : 1;
}

static inline int collective_recv_blocks(const struct collective *collective, int ranks)
{
    return collective->recv_all ? ranks : 1;
}

/* Blocks in the larger operand. */
static inline int collective_blocks(const struct collective *collective, int ranks)
{
    return collective->send_all || collective->recv_all ? ranks : 1;
}

/* Whether it is compared in place. MPIs have all-to-alls in place to save memory, not time. */
static inline bool collective_is_in_place(const struct collective *collective)
{
    return !collective->apart && (!collective->send_all || !collective->recv_all);
}

/* In place: the block of the larger operand with which the smaller one begins. */
static inline int collective_own_block(const struct collective *collective, int rank)
{
    return collective->send_all != collective->recv_all ? rank : 0;
}

/* The rank from which block `block` of a rank's result comes, if the collective does not reduce. */
static inline int collective_source(enum tutti_collective which, int rank, int ranks, int root,
                                    int block)
{
    if (which == TUTTI_COLLECTIVE_SEND)
        return (rank + ranks - 1) % ranks;
    return collectives[which].send_at_root ? root : block;
}

/* One operation of a rival that this process opens at run time, as collective_call() has it. A
 * broadcast of MPI has one buffer, recv. */
struct rival_call {
    enum tutti_collective which;
    const void *send;
    void *recv;
    size_t count; /* elements of a block */
    enum tutti_dtype dtype;
    tutti_op_t op; /* ignored unless the collective reduces */
    int root;      /* ignored unless it has a root */
};

#endif
