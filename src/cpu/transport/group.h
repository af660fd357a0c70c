/* SPDX-License-Identifier: MIT */
/*
 * The ranks of a CPU communicator as the algorithms see them: arenas, step, faults. Constant after
 * cpu_group_open() but for the counters and the fault. One caller at a time, which api.c sees to;
 * abort and status come from anywhere.
 */
#ifndef TUTTI_CPU_GROUP_H
#define TUTTI_CPU_GROUP_H

#include "base/interrupt.h"
#include "base/layout.h"
#include "base/order.h"
#include "cpu/choose.h"
#include "cpu/reduce/reduce.h"
#include "topology/topology.h"
#include "tutti/tutti.h"

struct channel;
struct record_page;
struct cpu_team;
struct request;

/* Which ranks exchange data, and this rank's part in a hybrid cube mesh. */
struct cpu_links {
    uint64_t reach; /* bit r: the data in rank r's arena are for this rank, and its own for r */
    bool sparse;    /* some pair of ranks exchanges none, be it this one's or not */
    struct topology_mesh mesh; /* if that is one of the algorithms */
};

struct cpu_group {
    struct layout_arena *own;
    struct layout_arena *arenas[TUTTI_MAX_RANKS]; /* [rank] is own; of others the data may lack */
    struct cpu_table table;
    uint64_t sequence; /* of the operation that runs, or of the last one */
    uint32_t step;     /* the last one taken: layout.h */
    uint32_t swaps;    /* pieces that two ranks have swapped: swap.c */
    int64_t deadline;  /* of the operation; 0 until it first has to wait slowly */
    size_t cursor;     /* ring.h */
    bool mailed;       /* the operation that runs announces itself in mails */
    int rank;
    int size;
    int spin;         /* polls before a waiter yields */
    int yields;       /* before it sleeps */
    bool one_process; /* all ranks are threads of this process */
    bool sparse;      /* not all ranks exchange data */
    bool far;         /* copies go past the caches: copy.h */
    const struct reduce_isa *isa;
    copy_fn *copy_long;
    struct cpu_team *team;      /* of zero-copy operations, the caller's; NULL: there is none */
    int order[TUTTI_MAX_RANKS]; /* order[leaf] is a rank */
    struct topology_mesh mesh;
    uint32_t meetings[TUTTI_MAX_RANKS]; /* of subset barriers, with each peer */

    /* distance.c */
    bool oversubscribed;
    int probe_bit;
    size_t work; /* bytes since the last probe */
    int64_t round_trip_ns[6];
    uint32_t balls[TUTTI_MAX_RANKS];

    /* same_core.c */
    uint64_t
        same_core;   /* ranks on the core of this one, as bits; before the first look all others */
    int64_t look_at; /* time of the next look */

    uint32_t failed;  /* `fault` is written: release F4 pairs A4 */
    uint32_t claimed; /* the first to fail writes `fault` */
    uint32_t open;    /* the arenas are there: release G1 pairs A7 */
    uint32_t aborted; /* by tutti_comm_abort() in this process */
    uint32_t quit;    /* by cpu_group_quit() */
    struct tutti_fault fault;
    struct record_page *record;        /* the communicator's recorder; NULL if it has none */
    void (*on_failure)(void *context); /* the fault stands; NULL if nobody asks */
    void *context;
    struct channel *channel;           /* NULL when one_process */
    const struct interrupt *interrupt; /* of its opening; NULL afterwards, or if there is none */
    uint64_t remote;                   /* bit r: rank r is of another process */
    bool membarrier;                   /* see bell.c */
};

struct cpu_group_config {
    int rank;
    int size;
    const int *order;
    const struct cpu_links *links;
    const struct choice_rules *rules; /* borrowed until the close */
    uint64_t remote;
    bool oversubscribed;
    bool idle;            /* runs no operations: nothing is prepared for quick ones */
    const uint8_t *nonce; /* 16 bytes, the same on all ranks, fresh */
    const struct reduce_isa *isa;
    struct tutti_exchanger *exchanger;
    const struct interrupt *interrupt; /* of what waits without the exchanger; may be NULL. The
                                        * channel's until channel_settle() */
    int64_t timeout_ms;
    /* Borrowed until the close; may be NULL. The call comes once at most, from any thread, and may
     * take its time. */
    struct record_page *record;
    void (*on_failure)(void *context);
    void *context;
};

/* Collective. *group is all zero, but that an abort may come at any time. On failure, also another
 * rank's, nothing is held. */
enum tutti_status cpu_group_open(const struct cpu_group_config *config, struct cpu_group *group);
/* Local. Peers that still need this rank are told. */
void cpu_group_close(struct cpu_group *group);

/* Records the first fault, here and in the arena for all peers, and wakes everybody; returns the
 * status of the fault that stands. */
enum tutti_status cpu_group_fail(struct cpu_group *group, const struct tutti_fault *fault);
/* Looks for trouble without waiting: an abort, the peer's departure, any rank's fault up to this
 * operation; `life` also asks the kernel whether the peer lives. True when there is some, described
 * in *fault, not recorded. */
bool cpu_group_look(struct cpu_group *group, int peer, bool life, struct tutti_fault *fault);
/* The ranks that are gone, as bits: *left have destroyed their communicators, *dead have ended
 * without. No wait. */
void cpu_group_gone(struct cpu_group *group, uint64_t *left, uint64_t *dead);
/* Writes into the recorder what the other ranks do, as far as this one sees it. From any thread. */
void cpu_group_survey(struct cpu_group *group);
/* The same, and that this rank waits for the peer; that it waits no more. */
void cpu_group_awaits(struct cpu_group *group, int peer);
void cpu_group_awaits_none(struct cpu_group *group);
/* Who keeps a rank that waits for the peer from going on: the peer, or whom that waits for itself,
 * and so on. A guess, for a report: where they wait in a circle it is the peer. */
int cpu_group_culprit(const struct cpu_group *group, int peer);
/* From any thread or signal handler. */
void cpu_group_abort(struct cpu_group *group);
/* Ends the operation that another thread runs, and all later ones, here alone: with the fault that
 * stands or, if none does, with ABORTED, of which the peers hear nothing. What they hear of is that
 * this rank has left, in the end. */
void cpu_group_quit(struct cpu_group *group);
/* Whether no operation may begin any more: a fault stands, or this process has aborted the group.
 */
static inline bool cpu_group_is_over(const struct cpu_group *group)
{
    return order_load_acquire_u32(&group->failed) || /* A4 pairs F4 */
           order_load_relaxed_u32(&group->aborted);
}
/* The fault that stands: OK when there is none. Writes its text as the thread's last error. */
enum tutti_status cpu_group_status(struct cpu_group *group, struct tutti_fault *fault);

/* More elements of an all-reduce by one-shot or two-shot, under the number and the announcement of
 * the operation before. */
enum tutti_status cpu_all_reduce_more(struct cpu_group *group, const struct request *request);
/* struct transport's `run`: a barrier of all ranks or of request->subset. */
enum tutti_status cpu_barrier(void *group, struct request *request, tutti_stream_t stream);
/* Of the ranks request->subset, the own one among them. */
enum tutti_status cpu_barrier_subset(struct cpu_group *group, struct request *request);

#endif
