/* SPDX-License-Identifier: MIT */
/*
 * The rules that decide the algorithm of a collective before measured limits do: the links, a
 * forced algorithm, strict mode. Pure functions. Each back end has one function that asks
 * choice_by_rules() first, then looks at its own limits by size: cpu_choose(), cuda_choose().
 */
#ifndef TUTTI_CHOICE_H
#define TUTTI_CHOICE_H

#include "base/op.h"
#include "topology/topology.h"
#include "tutti/tutti.h"

struct algorithm;

/* Which algorithms the links of a communicator allow. */
struct choice_paths {
    bool all;     /* one-shot and two-shot: every rank reaches every other rank */
    bool by_host; /* as `all`, over the host's memory, because no path of links joins the ranks */
    bool mesh;
    bool ring; /* GPUs only: the algorithm is a kernel */
};

/* Equal on all ranks. Constant after the rendezvous. */
struct choice_rules {
    struct choice_paths paths;
    enum tutti_topology topology;
    enum tutti_algo forced; /* by the options or TUTTI_ALGO; NONE: not forced */
    int kernel; /* TUTTI_ALGO names this kernel of an algorithm: struct backend's kernel_find() */
    bool strict;
    size_t buffer_size; /* limits strict mode */
};

/* The rules of ranks that all reach each other, with nothing forced. */
extern const struct choice_rules choice_rules_free;

/* The properties of a call. */
struct choice_call {
    enum tutti_collective collective;
    size_t bytes; /* of a block */
    enum tutti_dtype dtype;
    enum tutti_algo algo; /* forced by the call; NONE: not forced */
    enum op_kind op;
    uintptr_t operands; /* the addresses of both, by bitwise or, for their alignment */
    uint64_t storage_offset_bytes;
    int max_blocks; /* CUDA: of the call; 0: no limit */
    uint32_t flags; /* enum tutti_call_flags */
    size_t most;    /* TUTTI_CALL_DEVICE_COUNTS: bytes of a block, the most; 0: no such flag */
};

/* CUDA: a kernel, which of its functions, and the grid. */
struct choice_launch {
    uint8_t kernel;   /* enum cuda_kernel */
    uint8_t form;     /* enum cuda_form */
    uint16_t workers; /* threads of a block without the control threads */
    uint16_t blocks;  /* of this rank: within the call's limit */
    uint16_t columns; /* of all ranks: the blocks without that limit */
};

/* How a call runs. */
struct choice {
    const struct algorithm *run; /* NULL: the call is declined, with the reason */
    enum tutti_algo algo;        /* its public name */
    bool zero_copy; /* CPU: use the operands where they lie if all ranks can reach them */
    bool direct;    /* the same, also those that only the kernel can reach */
    /* Of a v-form on CPU: part `part` of up to `parts` of each block; 0 parts: all of it. */
    uint8_t part, parts;
    struct choice_launch launch;
    const char *reason; /* a static sentence */
};

/* `order` is the leaf order. `cuda`: the ranks' device is a GPU. */
void choice_paths_make(const struct topology *topology, const uint8_t *order, bool cuda,
                       struct choice_paths *paths);
/* Returns INVALID if the algorithm cannot run on these links; the message says why. */
enum tutti_status choice_check(const struct choice_paths *paths, const struct topology *topology,
                               enum tutti_algo algo);
/* The only algorithm that the links allow, if not all ranks reach each other; else NONE. */
enum tutti_algo choice_by_links(const struct choice_paths *paths);
/* The algorithm that is forced, that strict mode names, or that the links leave. NONE: strict mode
 * declines the call, or, outside strict mode, the back end decides by size. Sets *reason unless
 * the back end decides. */
enum tutti_algo choice_by_rules(const struct choice_rules *rules, const struct choice_call *call,
                                const char **reason);

#endif
