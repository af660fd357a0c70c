/* SPDX-License-Identifier: MIT */
/* Matrices of links are recognised under any numbering: some by hand, and random ones compared with
 * recognisers that try all possibilities. */
#include "topology/topology.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

enum { RANDOM_MATRICES = 20000, MESH = TOPOLOGY_MESH_RANKS };

/* The NVLinks of a DGX-1V, from its manual. */
static const struct topology_matrix dgx1v = {8,
                                             {
                                                 {0, 1, 1, 2, 2, 0, 0, 0},
                                                 {1, 0, 2, 1, 0, 2, 0, 0},
                                                 {1, 2, 0, 2, 0, 0, 1, 0},
                                                 {2, 1, 2, 0, 0, 0, 0, 1},
                                                 {2, 0, 0, 0, 0, 1, 1, 2},
                                                 {0, 2, 0, 0, 1, 0, 2, 1},
                                                 {0, 0, 1, 0, 1, 2, 0, 2},
                                                 {0, 0, 0, 1, 2, 1, 2, 0},
                                             }};

static uint64_t state = 88172645463325252u;

static int below(int bound)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (int)(state % (uint64_t)bound);
}

/* Rank i of `from` becomes rank numbers[i]. */
static struct topology_matrix renumbered(const struct topology_matrix *from, int *numbers)
{
    struct topology_matrix to = {.size = from->size};
    for (int i = 0; i < from->size; i++)
        numbers[i] = i;
    for (int i = from->size - 1; i > 0; i--) {
        int j = below(i + 1), number = numbers[i];
        numbers[i] = numbers[j];
        numbers[j] = number;
    }
    for (int i = 0; i < from->size; i++)
        for (int j = 0; j < from->size; j++)
            to.links[numbers[i]][numbers[j]] = from->links[i][j];
    return to;
}

static struct topology_matrix empty(int size)
{
    return (struct topology_matrix){.size = size};
}

static void link_pair(struct topology_matrix *matrix, int i, int j)
{
    matrix->links[i][j] = matrix->links[j][i] = (int16_t)(1 + below(6));
}

static struct topology_matrix ring_of(int size)
{
    struct topology_matrix matrix = empty(size);
    for (int i = 0; i < size; i++)
        link_pair(&matrix, i, (i + 1) % size);
    return matrix;
}

static struct topology recognise(const struct topology_matrix *matrix)
{
    struct topology topology;
    topology_recognise(matrix, &topology);
    assert_int_equal(topology.size, matrix->size);
    assert_true(topology.reason[0]);
    return topology;
}

/* The ring uses links that lead both ways and visits each rank once. */
static void check_ring(const struct topology_matrix *matrix, const struct topology *topology)
{
    uint64_t seen = 0;
    assert_int_equal(topology->ring[0], 0);
    for (int i = 0; i < matrix->size; i++) {
        int from = topology->ring[i], to = topology->ring[(i + 1) % matrix->size];
        seen |= UINT64_C(1) << from;
        if (matrix->size > 1)
            assert_true(matrix->links[from][to] > 0 && matrix->links[to][from] > 0);
    }
    assert_int_equal(__builtin_popcountll(seen), matrix->size);
}

/* A rank's neighbours in the algorithm are linked with it, and the relation is symmetric. */
static void check_roles(const struct topology_matrix *matrix, const struct topology *topology,
                        const uint8_t *order)
{
    struct topology_mesh roles[MESH];
    for (int r = 0; r < MESH; r++)
        assert_true(topology_mesh_role(topology, order, r, &roles[r]));
    for (int r = 0; r < MESH; r++) {
        const struct topology_mesh *own = &roles[r], *theirs = &roles[own->partner];
        assert_int_equal(own->owners[own->quarter], r);
        assert_true(matrix->links[r][own->partner] > 0);
        assert_int_equal(theirs->partner, r);
        assert_int_equal(theirs->quarter, own->quarter);
        for (int i = 0; i < 4; i++) {
            assert_true(own->leaves[i] == r || matrix->links[r][own->leaves[i]] > 0);
            assert_true(own->leaves[i] == order[i] || own->leaves[i] == order[i + 4]);
            assert_memory_equal(roles[own->owners[i]].leaves, own->leaves, sizeof own->leaves);
            assert_memory_equal(roles[own->owners[i]].owners, own->owners, sizeof own->owners);
        }
    }
}

static void check_mesh(const struct topology_matrix *matrix)
{
    struct topology topology = recognise(matrix);
    uint8_t leaves[MESH];
    int order[MESH];
    uint64_t seen = 0;
    assert_int_equal(topology.kind, TUTTI_TOPOLOGY_HYBRID_CUBE_MESH);
    assert_true(rank_set_has(topology.quads[0], 0));
    topology_quads_order(&topology, order);
    for (int i = 0; i < MESH; i++) {
        seen |= UINT64_C(1) << order[i];
        leaves[i] = (uint8_t)order[i];
        assert_int_equal(topology.partners[topology.partners[i]], i);
        assert_true(matrix->links[i][topology.partners[i]] > 0);
        for (int j = 0; j < MESH; j++)
            if (i != j && i / 4 == j / 4)
                assert_true(matrix->links[order[i]][order[j]] > 0);
    }
    assert_int_equal(seen, 255);
    assert_true(topology.has_ring);
    check_ring(matrix, &topology);
    check_roles(matrix, &topology, leaves);
    const uint8_t across[MESH] = {leaves[0], leaves[4], leaves[1], leaves[5],
                                  leaves[2], leaves[6], leaves[3], leaves[7]};
    struct topology_mesh role;
    assert_false(topology_mesh_role(&topology, across, 0, &role));
}

static void test_mesh(void **unused)
{
    int numbers[NODE_RANKS];
    (void)unused;
    check_mesh(&dgx1v);
    struct topology topology = recognise(&dgx1v);
    assert_string_equal(topology.reason, "quads 0 1 2 3 and 4 5 6 7, partners 0-4 1-5 2-6 3-7");
    for (int i = 0; i < 1000; i++) {
        struct topology_matrix shuffled = renumbered(&dgx1v, numbers);
        check_mesh(&shuffled);
        topology = recognise(&shuffled);
        for (int r = 0; r < MESH; r++)
            assert_int_equal(topology.partners[numbers[r]], numbers[(r + 4) % MESH]);
    }
}

/* Change one link of the mesh: remove it, make it one-way, make it unknown, or add one. */
static void test_almost_mesh(void **unused)
{
    (void)unused;
    for (int i = 0; i < MESH; i++) {
        for (int j = 0; j < MESH; j++) {
            if (i == j)
                continue;
            struct topology_matrix matrix = dgx1v;
            matrix.links[i][j] = dgx1v.links[i][j] ? 0 : 1;
            assert_int_equal(recognise(&matrix).kind, TUTTI_TOPOLOGY_UNKNOWN);
            matrix.links[j][i] = matrix.links[i][j];
            assert_int_equal(recognise(&matrix).kind, TUTTI_TOPOLOGY_UNKNOWN);
            matrix = dgx1v;
            matrix.links[i][j] = TOPOLOGY_UNKNOWN_LINKS;
            struct topology topology = recognise(&matrix);
            assert_int_equal(topology.kind, TUTTI_TOPOLOGY_UNKNOWN);
            assert_non_null(strstr(topology.reason, "not known"));
            matrix = dgx1v;
            matrix.links[i][i] = 3; /* the diagonal is ignored */
            check_mesh(&matrix);
        }
    }
}

static void test_fully_connected(void **unused)
{
    (void)unused;
    for (int size = 1; size <= NODE_RANKS; size++) {
        struct topology_matrix matrix = empty(size);
        for (int i = 0; i < size; i++)
            for (int j = 0; j < i; j++)
                link_pair(&matrix, i, j); /* a switch: the counts may differ */
        struct topology topology = recognise(&matrix);
        assert_int_equal(topology.kind, TUTTI_TOPOLOGY_FULLY_CONNECTED);
        assert_true(topology.has_ring);
        for (int i = 0; i < size; i++)
            assert_int_equal(topology.ring[i], i);
        if (size == 1)
            continue;
        int i = below(size), j = (i + 1 + below(size - 1)) % size;
        matrix.links[i][j] = 0;
        topology = recognise(&matrix);
        assert_int_equal(topology.kind, TUTTI_TOPOLOGY_UNKNOWN);
        assert_non_null(strstr(topology.reason, "but not back"));
        assert_int_equal(topology.has_ring, size > 3);
    }
    struct topology topology;
    struct topology_matrix eight = {.size = 8};
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < 8; j++)
            eight.links[i][j] = 18;
    topology = recognise(&eight);
    check_roles(&eight, &topology, (const uint8_t[]){3, 1, 7, 0, 2, 6, 5, 4});
    topology_force(64, "because", &topology);
    assert_int_equal(topology.kind, TUTTI_TOPOLOGY_FULLY_CONNECTED);
    assert_string_equal(topology.reason, "because");
    assert_true(rank_set_equal(topology.linked[63], rank_set_all(63)));
}

static void test_rings(void **unused)
{
    int numbers[NODE_RANKS];
    (void)unused;
    for (int size = 4; size <= NODE_RANKS; size++) {
        struct topology_matrix ring = ring_of(size), shuffled = renumbered(&ring, numbers);
        struct topology topology = recognise(&shuffled);
        assert_int_equal(topology.kind, TUTTI_TOPOLOGY_UNKNOWN);
        assert_true(topology.has_ring);
        check_ring(&shuffled, &topology);
        /* A path is no ring, and neither is a ring with a one-way link. */
        int i = below(size), next = numbers[(i + 1) % size];
        shuffled.links[numbers[i]][next] = 0;
        assert_false(recognise(&shuffled).has_ring);
    }
}

static void test_islands(void **unused)
{
    struct topology_matrix islands = empty(8);
    (void)unused;
    for (int i = 0; i < 8; i++)
        for (int j = 0; j < i; j++)
            if (i / 4 == j / 4)
                link_pair(&islands, i, j);
    struct topology topology = recognise(&islands);
    assert_int_equal(topology.kind, TUTTI_TOPOLOGY_UNKNOWN);
    assert_false(topology.has_ring);
    assert_string_equal(topology.reason,
                        "ranks 0 and 4 are not linked, and the links form no hybrid cube mesh");
    link_pair(&islands, 0, 4); /* a bridge */
    assert_false(recognise(&islands).has_ring);
    link_pair(&islands, 1, 5);
    topology = recognise(&islands);
    assert_true(topology.has_ring);
    check_ring(&islands, &topology);
    struct topology_matrix none = empty(8);
    assert_false(recognise(&none).has_ring);
}

/* ---- random matrices, against exhaustive recognisers --------------------------------------- */

static bool linked(const struct topology_matrix *matrix, int i, int j)
{
    return matrix->links[i][j] > 0;
}

/* Return true if the links are exactly those of the two quads and the four pairs between them. */
static bool is_mesh_of(const struct topology_matrix *matrix, unsigned quad, const int *across)
{
    for (int i = 0; i < MESH; i++) {
        for (int j = 0; j < MESH; j++) {
            bool same = (quad >> i & 1) == (quad >> j & 1);
            if (i != j && linked(matrix, i, j) != (same || across[i] == j))
                return false;
        }
    }
    return true;
}

/* Try every quad of rank 0, and every way to pair its ranks with the other ranks. */
static bool tries_mesh(const struct topology_matrix *matrix)
{
    for (unsigned quad = 1; quad < 1u << MESH; quad += 2) {
        int in[4], out[4], inside = 0, outside = 0, across[MESH];
        if (__builtin_popcount(quad) != 4)
            continue;
        for (int r = 0; r < MESH; r++)
            *(quad >> r & 1 ? &in[inside++] : &out[outside++]) = r;
        for (int way = 0; way < 256; way++) {
            unsigned taken = 0;
            for (int i = 0; i < 4; i++) {
                int other = way >> 2 * i & 3;
                taken |= 1u << other;
                across[in[i]] = out[other];
                across[out[other]] = in[i];
            }
            if (taken == 15 && is_mesh_of(matrix, quad, across))
                return true;
        }
    }
    return false;
}

static bool tries_full(const struct topology_matrix *matrix)
{
    for (int i = 0; i < matrix->size; i++)
        for (int j = 0; j < matrix->size; j++)
            if (i != j && !linked(matrix, i, j))
                return false;
    return true;
}

/* The algorithm of Held and Karp: ends[set] is the mask of ranks at which a path from rank 0
 * through all of `set` can end. */
static bool tries_ring(const struct topology_matrix *matrix)
{
    static uint16_t ends[1 << 9];
    const int size = matrix->size;
    memset(ends, 0, sizeof ends);
    ends[1] = 1;
    for (int set = 1; set < 1 << size; set += 2)
        for (int from = 0; from < size; from++)
            for (int to = 0; (ends[set] >> from & 1) && to < size; to++)
                if (!(set >> to & 1) && linked(matrix, from, to) && linked(matrix, to, from))
                    ends[set | 1 << to] |= (uint16_t)(1 << to);
    uint16_t last = ends[(1 << size) - 1];
    if (size < 3)
        return last;
    for (int r = 1; r < size; r++)
        if ((last >> r & 1) && linked(matrix, r, 0) && linked(matrix, 0, r))
            return true;
    return false;
}

/* A mesh with a few changes, 4 random links for each rank, or random links of any density. */
static struct topology_matrix random_matrix(void)
{
    int numbers[NODE_RANKS], kind = below(4);
    if (kind == 0) {
        struct topology_matrix matrix = renumbered(&dgx1v, numbers);
        for (int changes = below(4); changes > 0; changes--) {
            int i = below(MESH), j = (i + 1 + below(MESH - 1)) % MESH;
            matrix.links[i][j] = (int16_t)below(2);
            if (below(3))
                matrix.links[j][i] = matrix.links[i][j];
        }
        return matrix;
    }
    struct topology_matrix matrix = empty(kind == 1 ? MESH : 1 + below(9));
    int density = below(101), degrees[9] = {0};
    for (int tries = 0; kind == 1 && tries < 200; tries++) {
        int i = below(MESH), j = below(MESH);
        if (i == j || degrees[i] == 4 || degrees[j] == 4 || linked(&matrix, i, j))
            continue;
        link_pair(&matrix, i, j);
        degrees[i]++;
        degrees[j]++;
    }
    for (int i = 0; kind > 1 && i < matrix.size; i++) {
        for (int j = 0; j < i; j++) {
            if (below(100) < density)
                link_pair(&matrix, i, j);
            if (kind == 3 && below(20) == 0)
                matrix.links[i][j] = 0;
        }
    }
    return matrix;
}

static void test_random(void **unused)
{
    int kinds[3] = {0}, rings = 0;
    (void)unused;
    for (int i = 0; i < RANDOM_MATRICES; i++) {
        struct topology_matrix matrix = random_matrix();
        struct topology topology = recognise(&matrix);
        enum tutti_topology expected = tries_full(&matrix) ? TUTTI_TOPOLOGY_FULLY_CONNECTED
                                       : matrix.size == MESH && tries_mesh(&matrix)
                                           ? TUTTI_TOPOLOGY_HYBRID_CUBE_MESH
                                           : TUTTI_TOPOLOGY_UNKNOWN;
        assert_int_equal(topology.kind, expected);
        assert_int_equal(topology.has_ring, tries_ring(&matrix));
        if (topology.has_ring)
            check_ring(&matrix, &topology);
        if (topology.kind == TUTTI_TOPOLOGY_HYBRID_CUBE_MESH)
            check_mesh(&matrix);
        kinds[topology.kind]++;
        rings += topology.has_ring;
    }
    /* The random matrices covered all kinds. */
    for (int kind = 0; kind < 3; kind++)
        assert_true(kinds[kind] > RANDOM_MATRICES / 100);
    assert_true(rings > RANDOM_MATRICES / 10 && rings < RANDOM_MATRICES * 9 / 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mesh),    cmocka_unit_test(test_almost_mesh),
        cmocka_unit_test(test_rings),   cmocka_unit_test(test_fully_connected),
        cmocka_unit_test(test_islands), cmocka_unit_test(test_random),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
