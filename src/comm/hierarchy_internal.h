/* SPDX-License-Identifier: MIT */
/* The inside of a hierarchy: for its own files, the assembly of its node, and the packets of
 * process groups. */
#ifndef TUTTI_HIERARCHY_INTERNAL_H
#define TUTTI_HIERARCHY_INTERNAL_H

#include "base/layout.h"
#include "bootstrap/host.h"
#include "coll/request.h"
#include "comm/hierarchy.h"
#include "cpu/group.h"
#include "cpu/transport/step.h"
#include "fabric/fabric.h"
#include "store/store.h"

#include <pthread.h>
#include <stdio.h>

/* Up to here each host combines all of an all-reduce; of a longer one its share. */
enum { HIERARCHY_ONE_HOP_BYTES = 16 * 1024 };
/* From so many hosts on a short all-reduce exchanges in rounds. Tests set it, equal on all ranks.
 */
extern int hierarchy_rounds_from;

/* The leaves `first` to first + count - 1 are a whole subtree, and all on one host. */
struct hierarchy_subtree {
    int first, count;
    int host;
};

/* What the first rank of a host tells that of the next one of an operation, to find a mismatch. */
struct hierarchy_header {
    uint64_t sequence, signature;
    uint32_t parameter, unused;
};

/* Memory for one collective after the other. It grows only between collectives. */
struct hierarchy_scratch {
    unsigned char *bytes;
    size_t size;
};

struct hierarchy {
    struct tutti_comm *comm; /* the whole */
    struct tutti_comm *node; /* of this host's ranks, in their order; its peers are the whole's */
    struct fabric_link *link;
    struct peers_names names; /* of the node's ranks in the whole */
    void (*on_failure)(void *hierarchy);

    int host, hosts; /* this rank's host, and how many there are */
    int local;       /* this rank in its node */
    char host_names[WORLD_RANKS][HOST_NAME_BYTES];
    int host_of[WORLD_RANKS];                       /* [rank] */
    int local_of[WORLD_RANKS];                      /* [rank]: in the node of its host */
    int members[WORLD_RANKS];                       /* host by host */
    int first[WORLD_RANKS + 1];                     /* [host]: the index in members */
    struct hierarchy_subtree subtrees[WORLD_RANKS]; /* by leaves */
    int subtree_count;
    int subtrees_of[WORLD_RANKS]; /* [host]: how many it has */

    uint64_t values;   /* exchanges of values by the store */
    uint64_t sequence; /* of the running collective, or of the last one */
    struct hierarchy_scratch scratch;
    struct hierarchy_state *running; /* the state of an operation outside of a group of calls */
    /* The list that is being made. Each part of an operation that adds to it begins its messages,
     * so operations that run at the same time share it. */
    struct fabric_transfer *transfers;
    int transfer_count, transfer_room;
    /* Of the first rank of a host: the headers of the last operation that has some. */
    struct fabric_batch *header_batch;               /* NULL: they have come */
    struct hierarchy_header own_header, last_header; /* the latter of the host before this one */
    struct request header_request;                   /* their operation, for the message */

    void *packets; /* of the process group: pg/wire.h; freed with the link. NULL: none */

    /* The store, where ranks of other hosts find a fault. */
    tutti_store_t store; /* a view, with a prefix of its own */
    int server;          /* the rank whose process serves the store; -1: none, or not known */
    /* Guards what follows: tutti_comm_status() of any thread looks there, too. */
    pthread_mutex_t lock;
    int64_t looked_at;          /* when this rank last looked there */
    struct tutti_fault foreign; /* what was there; TUTTI_OK: nothing yet */
    struct rank_set left;       /* those of other hosts that hierarchy_left() has found */
    int64_t left_due;           /* when it may look again */
};

/* The blocks of this host's ranks, for the node's v-forms. */
struct hierarchy_node_blocks {
    size_t counts[NODE_RANKS], firsts[NODE_RANKS];
};

/* Each pair of ranks has these streams of messages: headers, those of collectives, the caller's,
 * and those of its process group. */
enum {
    HIERARCHY_TAG_HEADER,
    HIERARCHY_TAG_COLLECTIVE,
    HIERARCHY_TAG_MESSAGE,
    HIERARCHY_TAG_PACKET
};

enum { HIERARCHY_OWN_BYTES = 448 };

/*
 * How much longer than the time-out a wait of an operation lasts. Of ranks that wait for each other
 * the one that waits for the reason is the first whose time is over, and so the one that names it:
 * - for headers: behind it the ranks of the host wait in the operation
 * - in the node, before messages between hosts: other hosts wait for the operation's messages
 * - for messages between hosts: behind it ranks of the host wait for what comes of them. A rank
 *   whose time is over looks in the store first, for up to twice STORE_GRACE_MS
 * - in the node, behind such messages
 */
enum {
    HIERARCHY_HEADERS_MS = 0,
    HIERARCHY_NODE_MS = 100,
    HIERARCHY_MESSAGES_MS = 200,
    HIERARCHY_BEHIND_MS = HIERARCHY_MESSAGES_MS + 2 * STORE_GRACE_MS + 100
};

/*
 * The state of a running operation. The operation waits for an operation of the node, if it has
 * begun one, then for a list of messages, if it has begun one. Then next() does the next part: it
 * may begin both again, and does not wait. It may set another function as next, and sets NULL in
 * the last part.
 */
struct hierarchy_state {
    struct cpu_state base; /* what the operation waits for */
    struct hierarchy *self;
    struct request *request;
    enum tutti_status (*next)(struct hierarchy_state *state);
    int tag;                    /* of its messages between hosts */
    struct fabric_batch *batch; /* that is awaited; NULL: none */
    enum tutti_status engine;   /* how the last batch ended */
    int batch_ms;               /* how much longer than the time-out it is awaited */
    int peer;                   /* a rank of another host, which a time-out of the batch names */
    bool uncounted;             /* the collective takes no number */
    bool behind;                /* the node's next operation needs messages between hosts */
    bool in_node;               /* an operation of the node runs: */
    int node_ms;                /* how much longer than the time-out it is awaited */
    struct request node;
    struct hierarchy_node_blocks sent, received; /* its blocks, if it has some */
    _Alignas(LAYOUT_LINE) unsigned char node_state[CPU_STATE_BYTES];
    _Alignas(LAYOUT_LINE) unsigned char own[HIERARCHY_OWN_BYTES]; /* the next() functions' own */
};

extern const struct backend hierarchy_backend;

/* Makes the node's peers report to the whole. */
static inline void hierarchy_adapt(struct hierarchy *part_of, struct peers_config *config)
{
    config->names = &part_of->names;
    config->record = part_of->comm->recorder.page;
    config->on_failure = part_of->on_failure;
    config->context = part_of;
}

static inline int hierarchy_ranks(const struct hierarchy *self, int host)
{
    return self->first[host + 1] - self->first[host];
}

static inline int hierarchy_rank(const struct hierarchy *self, int host, int local)
{
    return self->members[self->first[host] + local];
}

/* A rank of another host, for messages. */
static inline int hierarchy_elsewhere(const struct hierarchy *self)
{
    return hierarchy_rank(self, self->host ? 0 : 1, 0);
}

/* The rank of a host's node that has to do with the block of a rank of the whole: that rank itself
 * on its own host. */
static inline int hierarchy_keeper(const struct hierarchy *self, int host, int rank)
{
    return self->local_of[rank] % hierarchy_ranks(self, host);
}

/* The leaves on the left of a tree of `count` leaves, two or more: the largest power of two below.
 */
static inline int hierarchy_left_leaves(int count)
{
    int left = 1;
    while (2 * left < count)
        left *= 2;
    return left;
}

/* ---- hierarchy_link.c: what operations consist of -------------------------------------------- */

/* Prepares the state of an operation, which waits for nothing. Its first part is next(). */
void hierarchy_state_init(struct hierarchy *self, struct request *request,
                          enum tutti_status (*next)(struct hierarchy_state *state),
                          struct hierarchy_state *state);
/* Returns whether the operation still waits. If not, *status says how what it waited for ended. */
bool hierarchy_waits(struct hierarchy_state *state, enum tutti_status *status);

/* Begins an operation of the node. It has the signature of the whole operation, so that ranks of
 * one host notice a mismatch. */
enum tutti_status hierarchy_node(struct hierarchy_state *state, enum tutti_collective which,
                                 const struct coll_args *args);
/* The same for bytes. `peer`: the root of a rooted collective, the partner of a message. */
enum tutti_status hierarchy_node_bytes(struct hierarchy_state *state, enum tutti_collective which,
                                       const void *send, void *recv, size_t bytes, int peer);
/* The same: a barrier of some of the node's ranks. */
enum tutti_status hierarchy_node_meet(struct hierarchy_state *state, struct rank_set ranks);

/* Adds a message with a rank of another host to the list that is being made; nothing if it is
 * empty. The list has room for it: hierarchy_room(). */
void hierarchy_add(struct hierarchy_state *state, int rank, bool is_send, void *buffer,
                   size_t bytes);
/* Makes room for so many messages in a list, which is empty: NO_MEMORY. */
enum tutti_status hierarchy_room(struct hierarchy *self, size_t transfers);
/* Begins the messages of the list, and empties it. *batch is NULL if there are none. */
enum tutti_status hierarchy_start(struct hierarchy_state *state, struct fabric_batch **batch);
/* The operation waits for their end. `peer`: a rank of another host, which a time-out names. NULL:
 * it does not wait. */
void hierarchy_await(struct hierarchy_state *state, struct fabric_batch *batch, int peer);
/* Begins the messages of the list, and waits for their end. */
enum tutti_status hierarchy_exchange(struct hierarchy_state *state, int peer);
/* Sets the scratch memory's size to at least this. Between collectives: NO_MEMORY. */
enum tutti_status hierarchy_reserve(struct hierarchy *self, size_t bytes);
/* The engine has failed, as `fault` says; its text is the last error. Often that is because a rank
 * has failed, and has told so. Fails with the fault that stands then. Returns its status. */
enum tutti_status hierarchy_engine_failed(struct hierarchy *self, const struct tutti_fault *fault);
/* The keys of one rank: "left" is set by a rank that leaves, to the number of its last operation,
 * and "dead" by the store, if its process has ended without that. */
enum { HIERARCHY_KEY_BYTES = 24 };
#define HIERARCHY_LEFT_KEY "left" /* how many have left */
#define HIERARCHY_DEAD_KEY "dead" /* is there if a rank is dead */
static inline void hierarchy_key(const char *what, int rank, char key[HIERARCHY_KEY_BYTES])
{
    snprintf(key, HIERARCHY_KEY_BYTES, "%s/%d", what, rank);
}
/* Tells the store what to set if this process ends without leaving. */
void hierarchy_will(struct hierarchy *self, const struct comm_assembly *how);
/* Looks in the store whether a rank has failed. Returns true if it finds a fault, in foreign. */
bool hierarchy_look(struct hierarchy *self);
/* Whether a look has found a fault. */
bool hierarchy_fault_found(struct hierarchy *self);
/* Fails with that fault. Returns its status. */
enum tutti_status hierarchy_adopt(struct hierarchy *self);
/* Begins the exchange of headers of the running collective, on the first rank of a host. */
enum tutti_status hierarchy_headers_start(struct hierarchy_state *state);
/* Waits for the headers of the last collective that had some, on any rank. Returns false if they
 * have come, and were compared. Else compare them behind the wait. */
bool hierarchy_headers_await(struct hierarchy_state *state);
enum tutti_status hierarchy_headers_compare(struct hierarchy *self);

/* Where the blocks of an operand with a block for each rank lie, in bytes. */
struct hierarchy_blocks {
    size_t at[WORLD_RANKS], bytes[WORLD_RANKS];
};
void hierarchy_blocks(const struct hierarchy *self, const struct request *request, bool is_send,
                      struct hierarchy_blocks *blocks);

/* Takes a part of scratch memory. */
static inline unsigned char *hierarchy_take(const struct hierarchy *self, size_t *used,
                                            size_t bytes)
{
    unsigned char *taken = self->scratch.bytes + *used;
    *used += (bytes + LAYOUT_LINE - 1) / LAYOUT_LINE * LAYOUT_LINE;
    return taken;
}

/* ---- the operations -------------------------------------------------------------------------- */

/* hierarchy_run.c: collectives and messages. */
extern const struct algorithm hierarchy_algorithm;
/* struct backend's run_more(). */
enum tutti_status hierarchy_run_more(void *hierarchy, struct request *request);

/* The first parts. hierarchy_reduce.c: all_reduce and reduce; reduce_scatter and its v-form. */
enum tutti_status hierarchy_sum(struct hierarchy_state *state);
enum tutti_status hierarchy_sum_scatter(struct hierarchy_state *state);
/* hierarchy_move.c: those that copy. */
enum tutti_status hierarchy_barrier(struct hierarchy_state *state);
enum tutti_status hierarchy_broadcast(struct hierarchy_state *state);
enum tutti_status hierarchy_all_gather(struct hierarchy_state *state);
enum tutti_status hierarchy_all_to_all(struct hierarchy_state *state);
enum tutti_status hierarchy_gather(struct hierarchy_state *state);
enum tutti_status hierarchy_scatter(struct hierarchy_state *state);
enum tutti_status hierarchy_message(struct hierarchy_state *state);

#endif
