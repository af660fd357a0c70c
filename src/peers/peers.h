/* SPDX-License-Identifier: MIT */
/*
 * The ranks of one communicator on one node, as every room sees them: who they are, what joins
 * them, how they wait for each other, and how they end. Both back ends run their operations among
 * such ranks; the back end's group begins with them, or has a pointer. There is one caller of
 * operations at a time, which comm/run.h ensures. Any thread may call abort and status.
 */
#ifndef TUTTI_PEERS_H
#define TUTTI_PEERS_H

#include "base/interrupt.h"
#include "base/rank_set.h"
#include "tutti/tutti.h"

struct backend_arenas;
struct channel;
struct channel_address;
struct gather;
struct layout_arena;
struct peers;
struct record_page;
struct request;

/* What joins the ranks. Constant after the opening. */
struct peers_ranks {
    int polls;              /* until a waiter yields */
    bool sparse;            /* some two ranks exchange no data */
    struct rank_set remote; /* the ranks of other processes */
    struct channel
        *channel; /* NULL if no rank is remote, and before the opening has connected them */
};

/* What faults and messages call ranks that are a part of something larger: the ranks of one host of
 * a communicator of several. Borrowed until the close. */
struct peers_names {
    const int *ranks;         /* [r]: the number of rank r there */
    const uint64_t *sequence; /* the number of the running operation there */
    char (*hosts)[64];        /* [host]: its name */
    const int *host_of;       /* [r]: the host of rank r there */
};
/* The peer of a fault that is rank `peer - PEERS_ELSEWHERE` there, on another host. */
enum { PEERS_ELSEWHERE = NODE_RANKS };

struct peers_config {
    int rank;
    int size;
    const struct peers_names *names; /* NULL: their own numbers */
    const struct backend_arenas *arenas;
    struct rank_set remote;   /* the ranks of other processes */
    bool shared;              /* a process has several ranks; the same on all ranks */
    struct channel **channel; /* listens; the peers take it if a rank is remote */
    bool connected;           /* the channel is open already */
    bool borrowed;            /* it is other peers', of the same ranks, which live longer */
    const struct channel_address *addresses;
    bool oversubscribed;               /* there are more ranks than cores */
    const uint8_t *nonce;              /* of the channel: 16 bytes, the same on all ranks, fresh */
    struct gather *gather;             /* how the ranks agree; needed if `shared` or `connected` */
    const struct interrupt *interrupt; /* ends waits outside of `gather`, until peers_settle(); may
                                        * be NULL. The channel's waits ask it, too, until then */
    int64_t timeout_ms;
    /* Borrowed until the close; may be NULL. on_failure() is called at most once, from any thread,
     * and may take long. */
    struct record_page *record;
    void (*on_failure)(void *context);
    void *context;
};

/* ---- life ------------------------------------------------------------------------------------ */

/* Returns empty peers, which can be aborted, at the start of `bytes` bytes of zeros: of the struct
 * whose first member they are. NULL if there is no memory. */
struct peers *peers_create(size_t bytes);
/* Takes NULL, and peers that are not open. */
void peers_free(struct peers *peers);
/* Collective: joins the ranks' arenas. After a failure of any rank nothing is held. Until
 * peers_settle() the ranks are still opening: an abort is not written for the peers, a fault of a
 * peer does not end a wait, and no operation may begin. */
enum tutti_status peers_open(const struct peers_config *config, struct peers *peers);
/* Ends the opening. An abort that has come meanwhile is written now. */
void peers_settle(struct peers *peers);
/* Local. Peers that still need this rank learn that it has left. */
void peers_close(struct peers *peers);
/* Sets the function that each wait of an operation calls from now on; NULL: none. */
void peers_set_progress(struct peers *peers, int (*progress)(void *context), void *context);
/* From now on a rank that sleeps in a wait calls that function every millisecond; and in each round
 * of the wait, without a sleep, while *soon. The waiting thread alone reads and writes it. */
void peers_progress_often(struct peers *peers, const bool *soon);

/* ---- facts ----------------------------------------------------------------------------------- */

const struct peers_ranks *peers_ranks(const struct peers *peers);
struct layout_arena *peers_arena(const struct peers *peers, int rank);
/* Bytes of each rank's arena. */
size_t peers_arena_bytes(const struct peers *peers);
/* The NUMA node of each rank's arena; -1: unknown. Returns the number of ranks. */
int peers_arena_nodes(const struct peers *peers, int nodes[NODE_RANKS]);
/* The number of the running operation, or of the last one. Any thread may call it, for reports. */
uint64_t peers_sequence(const void *peers);
/* Counts operations that no host runs. Only the caller of operations calls it. */
void peers_sequence_add(struct peers *peers, int count);

/* ---- lives and faults ------------------------------------------------------------------------ */

/* Whether a fault stands or this process has aborted the ranks. */
bool peers_have_failed(const struct peers *peers);
bool peers_are_aborted(const struct peers *peers);
/* Records the first fault, here and in the arena for the peers, and wakes all ranks. Returns the
 * status of the fault that stands. */
enum tutti_status peers_fail(struct peers *peers, const struct tutti_fault *fault);
/* Checks without waiting for an abort, an exit of the peer (-1: of none), and a fault of any rank
 * up to this operation. `life`: also asks the kernel whether the peer lives. Returns true if it
 * finds one. Then *fault describes it; it is not recorded as this rank's fault. */
bool peers_check(struct peers *peers, int peer, bool life, struct tutti_fault *fault);
/* Whether a peer's process lives and its communicator's connection is open; true for a thread of
 * this process. Asks the kernel. */
bool peers_alive(const struct peers *peers, int peer);
/* The ranks that have exited: *left have destroyed their communicators, *dead have not.
 * Does not wait. Of several hosts: those of this one, by their numbers on it. */
void peers_exited(const struct peers *peers, struct rank_set *left, struct rank_set *dead);
/* The numbers of ranks in what the peers are a part of. */
struct rank_set peers_named(const struct peers *peers, struct rank_set ranks);
/* Any thread or signal handler may call it. */
void peers_abort(struct peers *peers);
/* Ends the operation that another thread runs, and all later ones, on this rank only. They end with
 * the fault that stands, else with ABORTED. The peers only learn later that this rank has left. */
void peers_quit(struct peers *peers);
/* Returns the status of the fault that stands, else OK. Sets the thread's last error. `peers` is a
 * struct peers. */
enum tutti_status peers_status(void *peers, struct tutti_fault *fault);

/* ---- reports --------------------------------------------------------------------------------- */

/* Writes into the recorder what this rank knows of the other ranks. Any thread may call it. */
void peers_survey(struct peers *peers);
/* The first also records that this rank waits for the peer, which may be PEERS_ELSEWHERE and a
 * rank; for none if that is this rank. The second records that the wait is over. */
void peers_awaits(struct peers *peers, int peer);
void peers_awaits_none(struct peers *peers);
/* For reports: the rank for which a rank that waits for `peer` really waits. This is the peer, or
 * the rank for which the peer waits, and so on, up to one that waits for none or has stood still
 * for a second; the peer if they wait in a circle. A rank of another host is PEERS_ELSEWHERE and
 * more. */
int peers_late_rank(const struct peers *peers, int peer);

/* ---- copies between processes ---------------------------------------------------------------- */

/* Collective, on open peers. Finds out whether the kernel copies between the memories of the ranks'
 * processes, with the same answer on all ranks. Returns DECLINED if they are to and it does not. */
enum tutti_status peers_copies_open(struct peers *peers, enum tutti_direct direct,
                                    int64_t timeout_ms);
/* "yes", or why not; "" before peers_copies_open(). */
const char *peers_copies_text(const struct peers *peers);
/* Whether the kernel can copy an operand of this process from or to another one. It writes bytes of
 * a receiving operand back as they were. */
bool peers_copies_reach(const struct peers *peers, const void *operand, size_t bytes,
                        bool receives);
/* Copy from or to an address in the process of a remote rank. A failure is the fault of that rank:
 * PEER_DEAD if its process has ended, else SYSTEM, with the errno in seen.count; or of this rank,
 * if its own memory is not mapped. */
enum tutti_status peers_copy_from(struct peers *peers, int peer, void *to, uint64_t from,
                                  size_t bytes);
enum tutti_status peers_copy_to(struct peers *peers, int peer, uint64_t to, const void *from,
                                size_t bytes);

/* ---- meetings -------------------------------------------------------------------------------- */

/* A barrier of request->subset, this rank among them. Takes no operation number. Only the caller of
 * operations calls it. */
enum tutti_status peers_meet(struct peers *peers, const struct request *request);
/* struct gather's `run`. Collective. Takes no operation number. Only the caller of operations calls
 * it, or, on open peers, the set-up before peers_settle(). `peers` is a struct peers. */
enum tutti_status peers_gather(void *peers, const void *own, size_t bytes, void *all,
                               int64_t timeout_ms);

#endif
