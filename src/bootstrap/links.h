/* SPDX-License-Identifier: MIT */
/* The matrix of links that a communicator goes by: from a file, from the devices, or none, since
 * CPU ranks share their memory. */
#ifndef TUTTI_LINKS_H
#define TUTTI_LINKS_H

#include "bootstrap/host.h"
#include "comm/comm.h"

/* Reads TUTTI_FORCE_FULLY_CONNECTED and TUTTI_TOPOLOGY_FILE into the configuration and
 * comm->links: local. Returns INVALID, SYSTEM, NO_MEMORY. */
enum tutti_status links_read(struct tutti_comm *comm);
/* What some ranks of `from` keep of their links, as the ranks of `comm`: ranks[new] is the old one.
 * Into the configuration and comm->links, as links_read() does. Returns NO_MEMORY. */
enum tutti_status links_inherit(struct tutti_comm *comm, const struct tutti_comm *from,
                                const int *ranks);
/* Frees comm->links. */
void links_free(struct tutti_comm *comm);

/*
 * Collective, once the records are known to agree: comm->topology and the leaf order become what
 * they are for the communicator's life. MISMATCH names the first difference between the ranks'
 * files, or between their leaf orders. Returns INVALID (the file lacks a rank's device) and what a
 * store does, too.
 */
enum tutti_status links_agree(struct tutti_comm *comm, const struct host_record *records,
                              struct tutti_exchanger *exchanger, int64_t deadline);

#endif
