/* SPDX-License-Identifier: MIT */
/* A communicator has up to WORLD_RANKS ranks (rank_set.h). Of these up to NODE_RANKS run on one
 * node, where they map each other's memory. */
#ifndef TUTTI_RANKS_H
#define TUTTI_RANKS_H

enum { NODE_RANKS = 64 };

#endif
