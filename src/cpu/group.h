/* SPDX-License-Identifier: MIT */
/*
 * The ranks of a communicator as other folders see them: channel, faults, aborts, exits; on a CPU
 * communicator also the operations. The hosts of a CUDA communicator have a group, too. There is
 * one caller at a time, which comm/run.h ensures. Any thread may call abort and status.
 */
#ifndef TUTTI_CPU_GROUP_H
#define TUTTI_CPU_GROUP_H

#include "base/interrupt.h"
#include "base/layout.h"
#include "base/rank_set.h"
#include "coll/backend.h"
#include "cpu/transport/local.h" /* segments that threads of this process share */
#include "cpu/transport/team.h"  /* threads that share one rank's work */
#include "topology/topology.h"
#include "tutti/tutti.h"

struct channel;
struct channel_address;
struct cpu_group;
struct record_page;
struct reduce_isa;

/* Which ranks exchange data, and this rank's part in a hybrid cube mesh. */
struct cpu_links {
    struct rank_set reach;     /* the ranks that exchange data with this one */
    bool sparse;               /* some two ranks exchange no data */
    struct topology_mesh mesh; /* set if the links allow this algorithm */
};

/* The ranks and what joins them. Constant after the opening. */
struct cpu_ranks {
    int polls;              /* until a waiter yields */
    bool sparse;            /* some two ranks exchange no data */
    struct rank_set remote; /* the ranks of other processes */
    struct channel
        *channel; /* NULL if no rank is remote, and before the opening has connected them */
    int order[TUTTI_MAX_RANKS]; /* [leaf] is a rank */
    struct topology_mesh mesh;
};

struct cpu_group_config {
    int rank;
    int size;
    const int *order;
    const struct cpu_links *links;
    const struct choice_rules *rules; /* borrowed until the close */
    size_t arena_bytes;               /* of each rank, the most; equal on all; 0: the fewest */
    struct rank_set remote;
    bool shared;              /* a process has several ranks; the same on all ranks */
    struct channel **channel; /* listens; the group takes it if a rank is remote */
    bool connected;           /* the channel is open already */
    const struct channel_address *addresses;
    bool oversubscribed;
    bool idle;            /* the group runs no operations and prepares for none */
    const uint8_t *nonce; /* 16 bytes, the same on all ranks, fresh */
    const struct reduce_isa *isa;
    /* Collective: as status_agree(). Called if `shared` or `connected`. */
    enum tutti_status (*agree)(void *agree_context, enum tutti_status mine, int64_t timeout_ms);
    void *agree_context;
    const struct interrupt *interrupt; /* ends waits outside of agree(); may be NULL. Used by the
                                        * channel until channel_settle() */
    int64_t timeout_ms;
    /* Borrowed until the close; may be NULL. on_failure() is called at most once, from any thread,
     * and may take long. */
    struct record_page *record;
    void (*on_failure)(void *context);
    void *context;
};

/* Returns an empty group, which can be aborted; NULL if there is no memory. */
struct cpu_group *cpu_group_create(void);
/* Takes NULL, and a group that is not open. */
void cpu_group_free(struct cpu_group *group);
/* Collective. After a failure of any rank the group holds no resources. */
enum tutti_status cpu_group_open(const struct cpu_group_config *config, struct cpu_group *group);
/* Sets the function that each wait of an operation calls from now on; NULL: none. */
void cpu_group_set_progress(struct cpu_group *group, int (*progress)(void *context), void *context);

/* A message of a process group to another rank. Messages of a pair arrive in order. Only the caller
 * of operations sends and takes them. */
struct cpu_message {
    uint64_t kind; /* these three are the process group's own; kind: below 2^63 */
    uint64_t id;
    uint64_t signature;
    uint32_t parameter;
};

/* The most bytes that a message may have. */
size_t cpu_message_most(const struct cpu_group *group);
/* Sends a message. Returns false and does nothing if four messages wait for the peer already. */
bool cpu_message_send(struct cpu_group *group, int to, const struct cpu_message *message,
                      const void *data, size_t bytes);
/* Returns the next message from a rank; false if there is none, or if a collective's message comes
 * first.
 */
bool cpu_message_next(struct cpu_group *group, int from, struct cpu_message *message);
/* The data of that message, which must have been sent with `bytes` bytes. */
const void *cpu_message_data(struct cpu_group *group, int from, size_t bytes);
/* Frees the place of that message: it has been read. */
void cpu_message_taken(struct cpu_group *group, int from);
/* How many messages of that rank this rank has read, those of collectives among them. */
uint64_t cpu_messages_read(const struct cpu_group *group, int from);
/* Sets the function that a collective calls when a process group's message comes before its own.
 * take() returns false if it cannot take the message now. */
void cpu_group_set_messages(struct cpu_group *group, bool (*take)(void *context, int from),
                            void *context);

/* Local. Peers that still need this rank learn that it has left. */
void cpu_group_close(struct cpu_group *group);

/* The number of the running operation, or of the last one. Any thread may call it, for reports. */
uint64_t cpu_group_sequence(const void *group);
/* Counts operations that another back end runs. Only the caller of operations calls it. */
void cpu_group_sequence_add(struct cpu_group *group, int count);
/* Whether a fault stands or this process has aborted the group. */
bool cpu_group_has_failed(const struct cpu_group *group);
bool cpu_group_is_aborted(const struct cpu_group *group);
const struct cpu_ranks *cpu_group_ranks(const struct cpu_group *group);
struct layout_arena *cpu_group_arena(const struct cpu_group *group, int rank);
/* The fewest bytes that an arena may have. */
size_t cpu_group_least_arena(int ranks);
/* Bytes of each rank's arena. */
size_t cpu_group_arena_bytes(const struct cpu_group *group);
/* The threads that share a rank's work in zero-copy operations; the caller owns them. NULL: none.
 */
struct cpu_team **cpu_group_team(struct cpu_group *group);

/* Records the first fault, here and in the arena for the peers, and wakes all ranks. Returns the
 * status of the fault that stands. */
enum tutti_status cpu_group_fail(struct cpu_group *group, const struct tutti_fault *fault);
/* Checks without waiting for an abort, an exit of the peer, and a fault of any rank up to this
 * operation. `life`: also asks the kernel whether the peer lives. Returns true if it finds one.
 * Then *fault describes it; it is not recorded as the group's fault. */
bool cpu_group_check_peers(struct cpu_group *group, int peer, bool life, struct tutti_fault *fault);
/* Whether a peer's process lives and its communicator's connection is open; true for a thread of
 * this process. Asks the kernel. */
bool cpu_group_peer_alive(const struct cpu_group *group, int peer);
/* The ranks that have exited: *left have destroyed their communicators, *dead have not.
 * Does not wait. */
void cpu_group_exited_peers(struct cpu_group *group, struct rank_set *left, struct rank_set *dead);
/* Writes into the recorder what this rank knows of the other ranks. Any thread may call it. */
void cpu_group_survey(struct cpu_group *group);
/* The first also records that this rank waits for the peer. The second records that the wait is
 * over. */
void cpu_group_awaits(struct cpu_group *group, int peer);
void cpu_group_awaits_none(struct cpu_group *group);
/* For reports: the rank for which a rank that waits for `peer` really waits. This is the peer, or
 * the rank for which the peer waits, and so on; the peer if they wait in a circle. */
int cpu_group_late_rank(const struct cpu_group *group, int peer);
/* Any thread or signal handler may call it. */
void cpu_group_abort(struct cpu_group *group);
/* Ends the operation that another thread runs, and all later ones, on this rank only. They end with
 * the fault that stands, else with ABORTED. The peers only learn later that this rank has left. */
void cpu_group_quit(struct cpu_group *group);
/* Returns the status of the fault that stands, else OK. Sets the thread's last error. */
enum tutti_status cpu_group_status(void *group, struct tutti_fault *fault);
/* Reduces more elements of an all-reduce by one-shot or two-shot, under the number and the
 * announcement of the previous operation. */
enum tutti_status cpu_all_reduce_more(struct cpu_group *group, struct request *request);
/* struct algorithm's `run`: a barrier of all ranks, or of request->subset, this rank among them. */
enum tutti_status cpu_barrier(void *group, struct request *request, tutti_stream_t stream);
/* struct gather's `run`, of a group whose operations another back end runs. Collective. Takes no
 * operation number. Only the caller of operations calls it. */
enum tutti_status cpu_group_gather(void *group, const void *own, size_t bytes, void *all,
                                   int64_t timeout_ms);
/* After a failed operation: whether a live rank still uses another rank's operands. */
bool direct_is_touched(struct cpu_group *group);

#endif
