/* SPDX-License-Identifier: MIT */
/* Recognises what joins the ranks: see topology.h. */
#include "topology/topology.h"

#include "base/text.h"

#include <string.h>

enum { RING_STEPS = 1 << 20 };

/* ---- ring ------------------------------------------------------------------------------------ */

struct search {
    const struct rank_set *linked;
    int size;
    int *ring;
    int steps; /* that the search may still take */
};

/* Extend the path ring[0..length) to a ring. After rank `last` try last + 1, last + 2, ... modulo
 * size. */
static bool ring_extend(struct search *search, int length, struct rank_set visited)
{
    int last = search->ring[length - 1];
    if (length == search->size)
        return length < 3 || rank_set_has(search->linked[last], search->ring[0]);
    for (int i = 1; i < search->size; i++) {
        int next = (last + i) % search->size;
        if (!rank_set_has(rank_set_minus(search->linked[last], visited), next))
            continue;
        if (--search->steps < 0)
            return false;
        search->ring[length] = next;
        if (ring_extend(search, length + 1, rank_set_union(visited, rank_set_of(next))))
            return true;
    }
    return false;
}

/* Find the first ring in a fixed search order; for fully connected ranks this is rank order. Return
 * false if there is none, or if a million steps have found none. The latter can happen with more
 * than about ten ranks. */
static bool ring_find(const struct rank_set *linked, int size, int *ring)
{
    struct search search = {linked, size, ring, RING_STEPS};
    for (int r = 0; r < size && size > 2; r++)
        if (rank_set_count(linked[r]) < 2)
            return false;
    ring[0] = 0;
    return ring_extend(&search, 1, rank_set_of(0));
}

/* ---- hybrid cube mesh ------------------------------------------------------------------------ */

/* Return the neighbour that has no neighbour in common with `rank`; -1 unless there is exactly one.
 */
static int partner_find(const struct rank_set *linked, int rank)
{
    int partner = -1;
    for (int peer = rank_set_next(linked[rank], -1); peer >= 0;
         peer = rank_set_next(linked[rank], peer)) {
        const struct rank_set apart = rank_set_minus(linked[rank], linked[peer]);
        if (!rank_set_equal(apart, linked[rank]))
            continue;
        if (partner >= 0)
            return -1;
        partner = peer;
    }
    return partner;
}

/* Return true and set partners and quads if the links are those of a hybrid cube mesh. */
static bool mesh_find(struct topology *topology)
{
    if (topology->size != TOPOLOGY_MESH_RANKS)
        return false;
    for (int r = 0; r < TOPOLOGY_MESH_RANKS; r++) {
        int partner = partner_find(topology->linked, r);
        if (rank_set_count(topology->linked[r]) != 4 || partner < 0)
            return false;
        topology->partners[r] = partner;
    }
    topology->quads[0] = topology->linked[0];
    rank_set_add(&topology->quads[0], 0);
    rank_set_remove(&topology->quads[0], topology->partners[0]);
    topology->quads[1] = rank_set_minus(rank_set_all(TOPOLOGY_MESH_RANKS), topology->quads[0]);
    return true;
}

void topology_quads_order(const struct topology *topology, int *order)
{
    int leaf = 0;
    for (int quad = 0; quad < 2; quad++)
        for (int r = rank_set_next(topology->quads[quad], -1); r >= 0;
             r = rank_set_next(topology->quads[quad], r))
            order[leaf++] = r;
}

struct topology_ring topology_ring_role(const struct topology *topology, int rank)
{
    struct topology_ring found = {0};
    const int size = topology->size;
    for (int i = 0; i < size && topology->has_ring; i++) {
        if (topology->ring[i] == rank)
            found = (struct topology_ring){.position = i,
                                           .before = topology->ring[(i + size - 1) % size],
                                           .after = topology->ring[(i + 1) % size]};
    }
    return found;
}

bool topology_mesh_role(const struct topology *topology, const uint8_t *order, int rank,
                        struct topology_mesh *mesh)
{
    const bool full = topology->kind == TUTTI_TOPOLOGY_FULLY_CONNECTED;
    struct rank_set first = rank_set_none;
    if (topology->size != TOPOLOGY_MESH_RANKS || topology->kind == TUTTI_TOPOLOGY_UNKNOWN)
        return false;
    for (int leaf = 0; leaf < 4; leaf++)
        rank_set_add(&first, order[leaf]);
    if (!full && !rank_set_equal(first, topology->quads[0]) &&
        !rank_set_equal(first, topology->quads[1]))
        return false;
    bool second = !rank_set_has(first, rank);
    for (int leaf = 0; leaf < 4; leaf++) {
        int across = full ? order[leaf + 4] : topology->partners[order[leaf]];
        mesh->leaves[leaf] = order[leaf + 4 * second];
        mesh->owners[leaf] = second ? across : order[leaf];
        if (mesh->owners[leaf] != rank)
            continue;
        mesh->quarter = leaf;
        mesh->partner = second ? order[leaf] : across;
    }
    return true;
}

static void mesh_explain(struct topology *topology)
{
    int order[TOPOLOGY_MESH_RANKS], length = 0;
    char *text = topology->reason;
    topology_quads_order(topology, order);
    for (int leaf = 0; leaf < TOPOLOGY_MESH_RANKS; leaf++)
        text_append(text, sizeof topology->reason, &length, "%s%d",
                    leaf == 0   ? "quads "
                    : leaf == 4 ? " and "
                                : " ",
                    order[leaf]);
    for (int leaf = 0; leaf < 4; leaf++)
        text_append(text, sizeof topology->reason, &length, "%s%d-%d", leaf ? " " : ", partners ",
                    order[leaf], topology->partners[order[leaf]]);
}

/* ---- kind ------------------------------------------------------------------------------------ */

/* Find a pair that is not linked both ways. Return false if there is none. The pair is the first
 * one with an unknown count, else the first one. Set *one_way if some pair is linked one way only,
 * and *unknown if some count is unknown. */
static bool unlinked_pair_find(const struct topology_matrix *matrix, int *first, int *second,
                               bool *one_way, bool *unknown)
{
    bool found = false;
    *one_way = *unknown = false;
    for (int i = 0; i < matrix->size; i++) {
        for (int j = i + 1; j < matrix->size; j++) {
            int there = matrix->links[i][j], back = matrix->links[j][i];
            bool not_known = there < 0 || back < 0;
            if (there > 0 && back > 0)
                continue;
            *one_way |= there > 0 || back > 0;
            if (found && (!not_known || *unknown))
                continue;
            *unknown |= not_known;
            found = true;
            *first = i;
            *second = j;
        }
    }
    return found;
}

static void unlinked_pair_explain(const struct topology_matrix *matrix, int first, int second,
                                  struct topology *topology)
{
    const int there = matrix->links[first][second], back = matrix->links[second][first];
    const bool back_only = there == 0 && back > 0;
    snprintf(topology->reason, sizeof topology->reason,
             there < 0 || back < 0   ? "the links between ranks %d and %d are not known"
             : there > 0 || back > 0 ? "rank %d is linked to rank %d, but not back"
                                     : "ranks %d and %d are not linked, and the links form no "
                                       "hybrid cube mesh",
             back_only ? second : first, back_only ? first : second);
}

void topology_force(int size, const char *reason, struct topology *topology)
{
    memset(topology, 0, sizeof *topology);
    topology->kind = TUTTI_TOPOLOGY_FULLY_CONNECTED;
    topology->size = size;
    for (int r = 0; r < size; r++) {
        topology->linked[r] = rank_set_minus(rank_set_all(size), rank_set_of(r));
        topology->ring[r] = r;
    }
    topology->has_ring = true;
    snprintf(topology->reason, sizeof topology->reason, "%s", reason);
}

void topology_recognise(const struct topology_matrix *matrix, struct topology *topology)
{
    int first = 0, second = 0;
    bool one_way, unknown;
    if (!unlinked_pair_find(matrix, &first, &second, &one_way, &unknown)) {
        topology_force(matrix->size, "every pair is linked", topology);
        return;
    }
    memset(topology, 0, sizeof *topology);
    topology->size = matrix->size;
    for (int i = 0; i < matrix->size; i++)
        for (int j = 0; j < matrix->size; j++)
            if (i != j && matrix->links[i][j] > 0 && matrix->links[j][i] > 0)
                rank_set_add(&topology->linked[i], j);
    topology->has_ring = ring_find(topology->linked, topology->size, topology->ring);
    if (!one_way && !unknown && mesh_find(topology)) {
        topology->kind = TUTTI_TOPOLOGY_HYBRID_CUBE_MESH;
        mesh_explain(topology);
        return;
    }
    topology->kind = TUTTI_TOPOLOGY_UNKNOWN;
    unlinked_pair_explain(matrix, first, second, topology);
}
