/* SPDX-License-Identifier: MIT */
/*
 * A back end: all that distinguishes communicators of one device from those of another. `group`
 * is what the back end has for the ranks of one communicator: a struct cpu_group or cuda_group.
 * Functions that may be NULL say so; a back end without one has nothing to do there.
 */
#ifndef TUTTI_BACKEND_H
#define TUTTI_BACKEND_H

#include "base/rank_set.h"
#include "coll/choice.h"
#include "topology/topology.h"

struct fabric_link;
struct gather;
struct interrupt;
struct peers;
struct reduce_isa;
struct request;

enum { BACKEND_RECORD_BYTES = 256, BACKEND_VALUE_BYTES = 576 };

/* What runs operations in the hosts' memory, for ranks of another device. */
struct backend_hosts {
    const struct backend *backend;
    void *group; /* NULL: none */
    /* Of ranks on several hosts whose fabric moves memory of the device; else NULL. Such ranks run
     * no operations in the hosts' memory. What follows is set then. */
    struct fabric_link *link;
    uint64_t *sequence; /* the number of the last operation: the devices' group counts it */
    int elsewhere;      /* a rank of another host, which faults of the fabric name */
    struct rank_set (*left)(void *group); /* the ranks of other hosts that have left, or are dead */
};

/* A back end's part of what ranks tell each other when they meet. */
struct backend_record {
    uint64_t table_hash; /* of the table by which the back end chooses; 0: it reads none */
    unsigned char bytes[BACKEND_RECORD_BYTES]; /* the back end's own struct */
};

/* What the opening of a communicator needs. Borrowed until the end of open(), rules until the
 * group's close. Equal on all ranks except for rank, setup, gather and the recorder. */
struct backend_opening {
    struct peers *peers;
    int rank, size;
    const uint8_t *order; /* [leaf] is a rank */
    const struct topology *topology;
    struct choice_rules *rules;                  /* open() may add paths */
    void *setup;                                 /* filled by record_make() */
    const struct backend_record *const *records; /* of all ranks, and they agree */
    const int *processes;                        /* [r]: the lowest rank of rank r's process */
    size_t arena_bytes;  /* the most that a rank's arena in host memory may take; 0: the fewest */
    bool oversubscribed; /* there are more ranks than cores */
    const struct reduce_isa *isa;
    /* CPU: the caller's threads (tutti.h), `threads` of them; the parts of a long operation, 0:
     * they are not cut; there are more threads than cores. The latter two are equal on all ranks.
     */
    tutti_parallel_t parallel;
    void *parallel_context;
    int threads, parts;
    bool parts_crowded;
    enum tutti_programmatic programmatic;
    /* Of ranks on several hosts: borrowed until the close. Then the peers are those of this host,
     * settled already, and `gather` joins all ranks. */
    struct backend_hosts hosts;
    bool transient_streams;     /* CUDA: tutti.h */
    int max_blocks;             /* of a kernel; 0: no limit */
    enum tutti_direct direct;   /* OFF: no copies between the memories of the ranks' processes */
    int64_t default_timeout_ms; /* of an operation */
    bool marked;                /* operations are marked in the recorder as they run */
    int recorder_fd;            /* -1 without a recorder */
    struct gather *gather;      /* of values of up to BACKEND_VALUE_BYTES */
    const struct interrupt *interrupt;
    int64_t timeout_ms; /* of the opening */
};

/* What the peers' arenas have to be. */
struct backend_arenas {
    size_t bytes;          /* of each rank's arena; 0: the fewest, without areas */
    bool sparse;           /* some two ranks exchange no data */
    struct rank_set reach; /* the ranks that exchange data with this one */
};

/* Points on streams, which works record. A point outlives the group. Any thread may test it, wait
 * for it and destroy it; it may be recorded again. */
struct backend_points {
    /* Returns NO_MEMORY, CUDA. */
    enum tutti_status (*create)(void *group, void **point);
    /* Puts the point behind the work that is on the stream now. Returns CUDA, or the group's
     * fault. */
    enum tutti_status (*record)(void *group, void *point, tutti_stream_t stream);
    /* *done: the stream has passed the point. Returns INVALID (the point is part of a capture),
     * CUDA. */
    enum tutti_status (*test)(const void *point, bool *done);
    /* Makes the stream, of any device, wait for the point. Returns INVALID (one of the two is part
     * of a capture and the other is not), CUDA. */
    enum tutti_status (*wait)(const void *point, tutti_stream_t stream);
    void (*destroy)(void *point);
    void (*forget)(void *point); /* in a child of fork() */
};

struct backend {
    const char *name, *title; /* in reports, in messages */
    int most_ranks;
    /* Operations are put on a caller's stream and end later; their operands are memory of the
     * device, and the launch adds the algorithm of the kernel to the signature. Else operations end
     * before the call returns, and operands are memory of the host. */
    bool enqueues;

    /* ---- creation ---- */
    /* The back end's own names of how an all-reduce runs, which TUTTI_ALGO may have in place of an
     * algorithm. Returns the number of the name for struct choice_rules, 0 if it is none of them.
     * Sets the algorithm that it belongs to, and the name as the back end writes it. NULL: it has
     * no names. */
    int (*kernel_find)(const char *name, enum tutti_algo *algo, const char **own);
    /* Returns empty peers, with room for what the back end keeps beside them; NULL: no memory. */
    struct peers *(*create)(void);
    size_t setup_bytes; /* of backend_opening.setup */
    /* Looks at the machine, before the first use of the store. `overlapping`: ranks may share a
     * device. The record is zero before. May be NULL. Returns DECLINED, CUDA, ... */
    enum tutti_status (*record_make)(bool overlapping, void *setup, struct backend_record *record);
    /* Compares the records of all ranks. Returns MISMATCH, DECLINED. May be NULL. */
    enum tutti_status (*records_compare)(const struct backend_record *const *records, int rank,
                                         int size);
    /* links[r] = links from this rank's device to that of rank r, or TOPOLOGY_UNKNOWN_LINKS.
     * *source is a static text. NULL: the ranks share their memory. */
    void (*links)(const struct backend_record *const *records, int size, int rank, int16_t *links,
                  const char **source);
    /* Local, with the same result on all ranks. *arenas: before, those of ranks that run no
     * operations on their hosts. Returns DECLINED. */
    enum tutti_status (*prepare)(const struct backend_opening *opening,
                                 struct backend_arenas *arenas);
    /* Collective, on open peers, which it settles. After a failure nothing but the peers is held;
     * the caller closes these. */
    enum tutti_status (*open)(const struct backend_opening *opening, void **group);

    /* ---- calls ---- */
    /* How a collective runs: a pure function of the call and of what the ranks have agreed on.
     * CUDA returns INVALID if the forced algorithm cannot run the call. */
    enum tutti_status (*choose)(const void *group, const struct choice_call *call,
                                struct choice *choice);
    const struct algorithm *barrier;
    /* Goes on with the previous operation: moves further elements of its blocks, under its number.
     * The request: as choose() has completed it, without zero-copy. NULL if the back end
     * enqueues. */
    enum tutti_status (*run_more)(void *group, struct request *request);
    /* If the back end enqueues, else NULL. Enqueues messages, which run at the same time. Sets the
     * requests' entries. */
    enum tutti_status (*send_recv)(void *group, struct request *const *requests, int count,
                                   tutti_stream_t stream);
    /* Runs a message of this rank to itself: a send and its receive, whose signatures are equal. */
    enum tutti_status (*send_own)(void *group, struct request *send, struct request *recv,
                                  tutti_stream_t stream);
    /* tutti_all_reduce_rms_norm(), if the back end enqueues, else NULL. The first: the most rows of
     * one operation, equal on all ranks. The second enqueues one, which is not empty; `request` is
     * that of the all-reduce, with the signature of the whole. max_blocks: the call's. `is_more`:
     * it is not the call's first one. Returns INVALID, DECLINED, CUDA. */
    size_t (*rms_norm_rows)(const void *group, const struct tutti_rms_norm *norm);
    enum tutti_status (*rms_norm)(void *group, struct request *request,
                                  const struct tutti_rms_norm *norm, unsigned max_blocks,
                                  bool is_more, tutti_stream_t stream);
    /* The number of the last operation that this rank began or enqueued. */
    uint64_t (*sequence)(const void *group);
    /* The fault that stands: OK when there is none. Any thread may call it. An abort of the peers
     * needs no other call. */
    enum tutti_status (*status)(void *group, struct tutti_fault *fault);
    const struct backend_points *points; /* NULL: an operation has ended when its call returns */
    /* The first makes the device's context current until the second. May be NULL. Returns CUDA. */
    enum tutti_status (*enter)(void *group, bool *pushed);
    void (*leave)(void *group, bool pushed);
    /* Whether the ranks can exchange values for a split. `name`: the communicator's. NULL: they
     * can. Returns DECLINED. */
    enum tutti_status (*check_split)(const void *group, const char *name);

    /* ---- end ---- */
    /* Lets the operations that were enqueued end, until the time-out (negative: none). Returns the
     * fault that stands, TIMEOUT, CONCURRENT, CUDA. */
    enum tutti_status (*finish)(void *group, int64_t timeout_ms);
    /* The two steps that end a group before its ranks go on in a smaller one. In any context, with
     * no caller inside. Retire: operations under way get a short time, then their waits end.
     * *completed: in, the last operation that the caller knows to have succeeded; out, the last one
     * that did. Returns TIMEOUT (the device does not end the operations), CUDA. Invalidate: from
     * then on every launch, of replays too, returns at once. May be NULL. */
    enum tutti_status (*retire)(void *group, uint64_t *completed);
    void (*invalidate)(void *group);
    /* Writes lines of "key: value", as snprintf() does. May be NULL. */
    int (*describe)(const void *group, char *text, size_t size);
    /* Ends the group, before its peers. Sets *fault if there is a fault that the caller has not
     * asked for. May be NULL. */
    void (*close)(void *group, struct tutti_fault *fault);
    /* In a child of fork(): frees the handle alone; the rest belongs to the parent. May be NULL. */
    void (*forget)(void *group);
};

extern const struct backend cpu_backend, cuda_backend;

static inline enum tutti_status backend_enter(const struct backend *backend, void *group,
                                              bool *pushed)
{
    *pushed = false;
    return backend->enter ? backend->enter(group, pushed) : TUTTI_OK;
}

static inline void backend_leave(const struct backend *backend, void *group, bool pushed)
{
    if (backend->leave)
        backend->leave(group, pushed);
}

#endif
