/* SPDX-License-Identifier: MIT */
/* What joins the ranks: pure functions over a matrix of link counts, which give the same answer on
 * all ranks that give them the same matrix. */
#ifndef TUTTI_TOPOLOGY_H
#define TUTTI_TOPOLOGY_H

#include "tutti/tutti.h"

enum {
    TOPOLOGY_UNKNOWN_LINKS = -1, /* in a matrix: the query failed */
    TOPOLOGY_MESH_RANKS = 8,
    TOPOLOGY_REASON_BYTES = 128,
};

/* links[i][j]: how many lead from rank i to rank j. The diagonal says nothing. */
struct topology_matrix {
    int32_t size;
    int16_t links[TUTTI_MAX_RANKS][TUTTI_MAX_RANKS];
};

struct topology {
    enum tutti_topology kind;
    int size;
    uint64_t linked[TUTTI_MAX_RANKS]; /* bit j of [i]: links lead both ways between i and j */
    /* Of a hybrid cube mesh only. */
    uint64_t quads[2]; /* bits of ranks; rank 0 is in the first */
    int partners[TOPOLOGY_MESH_RANKS];
    /* Each rank is linked with the next one, and the last with the first, which is rank 0. */
    bool has_ring;
    int ring[TUTTI_MAX_RANKS];
    char reason[TOPOLOGY_REASON_BYTES]; /* of the kind */
};

/*
 * Fully connected: links lead both ways between any two ranks. Hybrid cube mesh: 8 ranks; every
 * link has one back; each rank has exactly 4 neighbours, exactly one of which, its partner, shares
 * no neighbour with it: so the others of its neighbours are its quad, under any numbering. Anything
 * else, and whatever has a count that is not known, is unknown. Any of them may have a ring.
 */
void topology_recognise(const struct topology_matrix *matrix, struct topology *topology);
/* All pairs linked, whatever the links. */
void topology_force(int size, const char *reason, struct topology *topology);

/* Finds a ring; the first one of a fixed order, for fully connected ranks that of their numbers.
 * False if there is none, or if a million steps have found none, as may happen with more than some
 * ten ranks. */
bool topology_ring_find(const uint64_t *linked, int size, int *ring);

/* How one rank takes part in the algorithm of a ring. */
struct topology_ring {
    int place;         /* ring[place] is the rank */
    int before, after; /* ranks: its neighbours */
};
/* All zero if there is no ring. */
struct topology_ring topology_ring_place(const struct topology *topology, int rank);

/* How one rank takes part in the algorithm of a hybrid cube mesh. */
struct topology_mesh {
    int leaves[4]; /* its quad, in leaf order */
    int owners[4]; /* its quad, so that owners[q] of one quad is the partner of that of the other */
    int quarter;   /* owners[quarter] is the rank */
    int partner;   /* in the other quad */
};
/* False unless the first and the last four of 8 leaves are quads whose ranks have a partner each
 * in the other: those of a hybrid cube mesh, or any of fully connected ranks. */
bool topology_mesh_place(const struct topology *topology, const int *order, int rank,
                         struct topology_mesh *mesh);

/* The quads' order: the ranks of the first, then those of the second quad. */
void topology_quads_order(const struct topology *topology, int *order);

#endif
