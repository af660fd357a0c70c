/* SPDX-License-Identifier: MIT */
/*
 * Fabrics: how ranks of different hosts exchange bytes. A fabric is an existing engine, such as MPI
 * or NCCL, which is opened at run time. A link is what the ranks of one communicator have of it.
 *
 * A third fabric is one file with a struct fabric_ops, and a row in fabric.c. It must
 * - deliver messages of any length, in order for each pair of ranks and tag, with no message of the
 *   program or of another link among them
 * - begin and end them without waiting: start() and test() never block. Only the thread inside them
 *   needs to make progress; messages may stand still while nobody calls test()
 * - notice link->aborted in start(), test() and enqueue(), and report its own faults there. It need
 *   not notice a peer's death: the communicator does, by the store, and aborts the link
 * - compute nothing. Sums are the caller's, so that their bits do not depend on the engine
 *
 * A link is used by one thread at a time. If threads() is false, this is the thread that opened the
 * fabric. Beside it any thread may call fabric_link_abort(), and on a device fabric test().
 */
#ifndef TUTTI_FABRIC_FABRIC_H
#define TUTTI_FABRIC_FABRIC_H

#include "base/order.h"
#include "tutti/fabric.h"

struct fabric_batch;
struct fabric_link;
struct fabric_ops;
struct interrupt;

enum {
    FABRIC_ADDRESS_BYTES = 128, /* the most of an address */
    FABRIC_TAGS = 32768,        /* tags are 0 to 32767: what each MPI has at least */
};

struct tutti_fabric {
    const struct fabric_ops *ops;
    void *engine;          /* the engine's own */
    char description[192]; /* for tutti_comm_describe(), one line: "mpi (Open MPI v4.1.4, ...)" */
    uint32_t epoch;        /* of the process: a child of fork() owns nothing */
    uint32_t uses;         /* the user's handle, and each link */
};

/* What the ranks of one communicator have of a fabric. The engine's struct begins with it, and
 * allocates it in connect(). */
struct fabric_link {
    struct tutti_fabric *fabric;
    int rank, size;
    uint32_t aborted; /* 1: fabric_link_abort() was called */
    bool held; /* of a device fabric: graphs that live on have transfers of the link. Then the
                * engine keeps what it has for it: NCCL would wait for the graphs' end */
};

/* One message to or from another rank of the link. Both sides pass the same number of bytes, and
 * the same tag. An empty message travels too. */
struct fabric_transfer {
    int peer; /* not this rank */
    int tag;  /* below FABRIC_TAGS. A device fabric has no tags: the order of a pair decides */
    bool is_send;
    void *buffer; /* a send only reads it */
    size_t bytes;
};

struct fabric_ops {
    const char *name; /* of the URL: "mpi" */
    /* Operands are memory of the device, and enqueue() puts transfers on a stream; start() is NULL,
     * and test() takes no batch. Else operands are memory of the host, and enqueue() is NULL. */
    bool device_memory;
    size_t address_bytes; /* at most FABRIC_ADDRESS_BYTES */

    /* Finds and loads the engine. `rest` is the URL behind "NAME:". Local. Sets engine and
     * description. Returns INVALID, DECLINED (no such engine, or one that cannot work here),
     * NO_MEMORY, SYSTEM. */
    enum tutti_status (*open)(const char *rest, struct tutti_fabric *fabric);
    /* After all links are gone. NULL: nothing to do. */
    void (*close)(struct tutti_fabric *fabric);
    /* Whether threads other than the one that opened the fabric may use links. */
    bool (*threads)(const struct tutti_fabric *fabric);

    /* What the ranks of a communicator need to reach this rank, which is `rank` of it. Called once
     * for each connect(), and passed to all ranks by the store. Returns what connect() does. */
    enum tutti_status (*address)(struct tutti_fabric *fabric, int rank, void *address);
    /* Collective over the ranks of a communicator, which have all met just before: an engine that
     * cannot end a wait at the deadline (MPI with less than MPI_THREAD_SERIALIZED) relies on that.
     * Ranks need not be alone in it: other communicators may connect at the same time, of disjoint
     * ranks. addresses: that of rank r is at r * address_bytes. interrupt: may be NULL; a wait asks
     * it, also whether it is pointless. A device fabric takes the current context.
     * Returns DECLINED (a rank cannot be reached), MISMATCH (the ranks have different engines),
     * TIMEOUT, ABORTED, NO_MEMORY, SYSTEM, and what the interrupt returned. */
    enum tutti_status (*connect)(struct tutti_fabric *fabric, int rank, int size,
                                 const void *addresses, int64_t deadline,
                                 const struct interrupt *interrupt, struct fabric_link **link);
    /* Frees the link. Waits for no peer after an abort or a fault, else until the deadline. Returns
     * false if transfers have not ended: the engine may still use their buffers, which must then
     * never be freed. What the engine holds for them is never freed either. */
    bool (*disconnect)(struct fabric_link *link, int64_t deadline);

    /* Begins all transfers, in their order for each peer and tag. The list is copied. *batch is the
     * link's, which takes it back when test() finds it done; a link allocates memory only when more
     * or larger batches are under way than ever before. Several may be under way.
     * After a failure here or in test() the link is good for disconnect() only. Returns ABORTED,
     * NO_MEMORY, SYSTEM (the engine's error, with its text). */
    enum tutti_status (*start)(struct fabric_link *link, const struct fabric_transfer *transfers,
                               int count, struct fabric_batch **batch);
    /* Makes progress. *done: all transfers of the batch have ended, and the batch is gone. Without
     * a batch (NULL) it only makes progress on all of them and looks for faults; *done is true. A
     * device fabric ends what an aborted link has on streams here, so whoever watches the
     * communicator calls it after the abort. Returns ABORTED, MISMATCH (a message of another
     * length), SYSTEM. What an engine's error leaves on streams stays there until an abort: so
     * nothing behind it runs before the caller has noted the error. */
    enum tutti_status (*test)(struct fabric_link *link, struct fabric_batch *batch, bool *done);
    /* Puts the transfers on the stream as one group: none waits for another. May be captured.
     * Returns ABORTED, SYSTEM, CUDA. */
    enum tutti_status (*enqueue)(struct fabric_link *link, const struct fabric_transfer *transfers,
                                 int count, tutti_stream_t stream);
};

extern const struct fabric_ops mpi_fabric, nccl_fabric;

/* The longest message that is one of MPI's; at most INT_MAX. Longer ones are cut. Tests lower it,
 * on all ranks, while no transfers are under way. */
extern size_t mpi_piece_bytes;

/* Makes a fabric of any engine, with one use, for tutti_fabric_close(). `rest` as in open(). Tests
 * pass an engine of their own. Returns what open() does. */
enum tutti_status fabric_create(const struct fabric_ops *ops, const char *rest,
                                tutti_fabric_t **fabric);

/* INVALID if there is no fabric, or if it was opened before a fork(). */
enum tutti_status fabric_check(const tutti_fabric_t *fabric, const char *call);

/* Around ops->connect() and ops->disconnect(): a link keeps its fabric open. *link is NULL after a
 * failure. In a child of fork() a disconnect leaves the parent's link alone. */
enum tutti_status fabric_connect(tutti_fabric_t *fabric, int rank, int size, const void *addresses,
                                 int64_t deadline, const struct interrupt *interrupt,
                                 struct fabric_link **link);
bool fabric_disconnect(struct fabric_link *link, int64_t deadline);

/* Ends what waits on the link: later calls return ABORTED. Any thread or signal handler may call
 * it, also while another one is inside a call on the link. Never blocks. Tells no peer. */
static inline void fabric_link_abort(struct fabric_link *link)
{
    order_store_relaxed_u32(&link->aborted, 1);
}

/* Relaxed: the word carries nothing else, and is looked at again and again. */
static inline bool fabric_link_is_aborted(const struct fabric_link *link)
{
    return order_load_relaxed_u32(&link->aborted);
}

static inline enum tutti_status fabric_start(struct fabric_link *link,
                                             const struct fabric_transfer *transfers, int count,
                                             struct fabric_batch **batch)
{
    return link->fabric->ops->start(link, transfers, count, batch);
}

static inline enum tutti_status fabric_test(struct fabric_link *link, struct fabric_batch *batch,
                                            bool *done)
{
    return link->fabric->ops->test(link, batch, done);
}

static inline enum tutti_status fabric_enqueue(struct fabric_link *link,
                                               const struct fabric_transfer *transfers, int count,
                                               tutti_stream_t stream)
{
    return link->fabric->ops->enqueue(link, transfers, count, stream);
}

#endif
