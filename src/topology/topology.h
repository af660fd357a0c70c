/* SPDX-License-Identifier: MIT */
/* Recognises what joins the ranks from a matrix of link counts. The functions are pure: ranks that
 * pass the same matrix get the same result. */
#ifndef TUTTI_TOPOLOGY_H
#define TUTTI_TOPOLOGY_H

#include "base/rank_set.h"
#include "tutti/tutti.h"

enum {
    TOPOLOGY_UNKNOWN_LINKS = -1, /* a count in a matrix whose query failed */
    TOPOLOGY_MESH_RANKS = 8,
    TOPOLOGY_REASON_BYTES = 128,
};

/* links[i][j] is the number of links from rank i to rank j. The diagonal is ignored. */
struct topology_matrix {
    int32_t size;
    int16_t links[NODE_RANKS][NODE_RANKS];
};

struct topology {
    enum tutti_topology kind;
    int size;
    struct rank_set linked[NODE_RANKS]; /* j in [i]: ranks i and j are linked both ways */
    /* Set for a hybrid cube mesh only: */
    struct rank_set quads[2]; /* rank 0 is in the first */
    int partners[TOPOLOGY_MESH_RANKS];
    /* Each rank of ring[] is linked with the next, and the last with ring[0], which is rank 0. */
    bool has_ring;
    int ring[NODE_RANKS];
    char reason[TOPOLOGY_REASON_BYTES]; /* why it is of this kind */
};

/*
 * Fill *topology from the matrix. Any kind may have a ring.
 *   fully connected   any two ranks are linked both ways
 *   hybrid cube mesh  8 ranks; all links lead both ways; each rank has exactly 4 neighbours, and
 *                     shares no neighbour with exactly one of them, its partner. The other three
 *                     and the rank are its quad. This holds for any numbering of the ranks
 *   unknown           all else, also a matrix with an unknown count
 */
void topology_recognise(const struct topology_matrix *matrix, struct topology *topology);
/* Fill *topology as fully connected, with this reason. */
void topology_force(int size, const char *reason, struct topology *topology);

/* One rank's part in the ring algorithm. */
struct topology_ring {
    int position;      /* ring[position] is the rank */
    int before, after; /* its neighbours, as ranks */
};
/* All zero if there is no ring. */
struct topology_ring topology_ring_role(const struct topology *topology, int rank);

/* One rank's part in the hybrid cube mesh algorithm. */
struct topology_mesh {
    int leaves[4]; /* the ranks of its quad, in leaf order */
    int owners[4]; /* the ranks of its quad: owners[q] of the two quads are partners */
    int quarter;   /* owners[quarter] is the rank */
    int partner;   /* its partner, in the other quad */
};
/* Fill *mesh. Return false if the leaf order `order` does not suit the algorithm: its first and its
 * last four ranks must be the two quads of a hybrid cube mesh. Among 8 fully connected ranks any
 * order suits. */
bool topology_mesh_role(const struct topology *topology, const uint8_t *order, int rank,
                        struct topology_mesh *mesh);

/* Set order[] to the ranks of the first quad, then those of the second. */
void topology_quads_order(const struct topology *topology, int *order);

#endif
