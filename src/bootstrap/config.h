/* SPDX-License-Identifier: MIT */
#ifndef TUTTI_CONFIG_H
#define TUTTI_CONFIG_H

#include "base/rank_set.h"
#include "tutti/tutti.h"

static_assert(WORLD_RANKS <= UINT8_MAX + 1, "a byte names each rank");

/* The configuration that all ranks of a communicator have in common. They compare it when they
 * meet. */
struct comm_config {
    uint64_t buffer_size;
    uint64_t arena_bytes; /* the largest size of a rank's arena in host memory */
    int32_t strict;
    int32_t algo;
    int32_t device;          /* enum tutti_device */
    int32_t fully_connected; /* TUTTI_FORCE_FULLY_CONNECTED: the links do not matter */
    int32_t topology_size;   /* of the matrix in TUTTI_TOPOLOGY_FILE; 0: there is none */
    int32_t leaf_order_given;
    int32_t overlapping;             /* TUTTI_ALLOW_OVERLAPPING_DEVICES: ranks may share a device */
    int32_t direct;                  /* enum tutti_direct */
    uint8_t leaf_order[WORLD_RANKS]; /* [leaf] is a rank */
    char fabric[16];                 /* the engine's name; "": none */
    int32_t threads; /* of this rank, not compared; 0: it has the calling one alone */
    char kernel[24]; /* CUDA: the kernel of that algorithm that TUTTI_ALGO names; "": none */
};

#endif
