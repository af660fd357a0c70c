/* SPDX-License-Identifier: MIT */
/* The matrix of links of a communicator, from a file or from the devices. CPU ranks without a file
 * need none, because they share their memory. */
#ifndef TUTTI_LINKS_H
#define TUTTI_LINKS_H

#include "bootstrap/host.h"
#include "topology/topology_file.h"

/* A communicator's links. The pointers are to its own members. */
struct links {
    int rank;
    int world_size;
    const struct backend *backend;
    struct comm_config *config;
    struct topology_file **file; /* the matrix, allocated here; the caller frees it */
    struct topology *topology;
};

/* Reads TUTTI_FORCE_FULLY_CONNECTED and TUTTI_TOPOLOGY_FILE into the configuration and *file:
 * local. Returns INVALID, SYSTEM, NO_MEMORY. */
enum tutti_status links_read(const struct links *links);
/* Fills the configuration and *file with the links of ranks of another communicator: rank i was
 * ranks[i] there. Returns NO_MEMORY. */
enum tutti_status links_inherit(const struct links *links, const struct comm_config *from_config,
                                const struct topology_file *from, const int *ranks);

/*
 * Collective. The records have been compared and agree. Makes *topology and the leaf order, which
 * do not change afterwards. MISMATCH names the first difference between the ranks' files, or
 * between their leaf orders. Also returns INVALID (the file lacks a rank's device) and what a store
 * does. Ranks that inherit their devices' matrix query the devices again, if given an exchanger.
 * [in] exchanger  NULL: use the inherited matrix
 */
enum tutti_status links_agree(const struct links *links, const struct host_record *records,
                              struct tutti_exchanger *exchanger, int64_t deadline);

#endif
