/* SPDX-License-Identifier: MIT */
#include "coll/choice.h"

#include "base/error.h"

/* The limits of strict mode, inclusive. */
#define STRICT_ONE_SHOT_BYTES ((size_t)256 << 10)
#define STRICT_TWO_SHOT_BYTES ((size_t)10 << 20)

const struct choice_rules choice_rules_free = {
    .paths = {.all = true},
    .topology = TUTTI_TOPOLOGY_FULLY_CONNECTED,
    .buffer_size = SIZE_MAX,
};

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

void choice_paths_make(const struct topology *topology, const uint8_t *order, bool cuda,
                       struct choice_paths *paths)
{
    struct topology_mesh mesh;
    *paths = (struct choice_paths){.all = true};
    paths->mesh = topology_mesh_role(topology, order, 0, &mesh);
    paths->ring = cuda && topology->has_ring && topology->size > 1;
    paths->by_host =
        topology->kind != TUTTI_TOPOLOGY_FULLY_CONNECTED && !paths->mesh && !paths->ring;
    paths->all = topology->kind == TUTTI_TOPOLOGY_FULLY_CONNECTED || paths->by_host;
}

enum tutti_status choice_check(const struct choice_paths *paths, const struct topology *topology,
                               enum tutti_algo algo)
{
    const char *needs = NULL;
    const bool reaches_all = algo != TUTTI_ALGO_RING && algo != TUTTI_ALGO_HYBRID_CUBE_MESH &&
                             algo != TUTTI_ALGO_NONE && algo != TUTTI_ALGO_HOST_STAGED;
    if (reaches_all && !paths->all)
        needs = "it needs a link between any two of them";
    else if (algo == TUTTI_ALGO_RING && !paths->ring)
        needs = "it needs GPUs that a ring of links joins";
    else if (algo == TUTTI_ALGO_HYBRID_CUBE_MESH && !paths->mesh)
        needs = topology->size != TOPOLOGY_MESH_RANKS ? "it needs 8 of them"
                : topology->kind == TUTTI_TOPOLOGY_HYBRID_CUBE_MESH
                    ? "it needs a leaf order that begins with one quad and ends with the other"
                    : "it needs a hybrid cube mesh, or all links";
    if (!needs)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_INVALID,
                     "algorithm %d (%s) does not serve these ranks: %s (%s): force none, and the "
                     "communicator chooses one that does",
                     (int)algo, tutti_algo_name(algo), needs, topology->reason);
}

/* Strict mode on a hybrid cube mesh. */
static enum tutti_algo strict_mesh(const struct choice_rules *rules, size_t bytes,
                                   const char **reason)
{
    if (!rules->paths.mesh) {
        *reason =
            "strict mode: no algorithm of this hybrid cube mesh serves this leaf order or device";
        return TUTTI_ALGO_NONE;
    }
    if (bytes > least(STRICT_ONE_SHOT_BYTES, rules->buffer_size)) {
        *reason = "strict mode, hybrid cube mesh: larger than 256 KiB or the buffer size";
        return TUTTI_ALGO_NONE;
    }
    *reason = "strict mode, hybrid cube mesh: at most 256 KiB and the buffer size";
    return TUTTI_ALGO_HYBRID_CUBE_MESH;
}

static enum tutti_algo strict(const struct choice_rules *rules, const struct choice_call *call,
                              const char **reason)
{
    if (call->dtype != TUTTI_FLOAT32 && call->dtype != TUTTI_BFLOAT16) {
        *reason = "strict mode serves float32 and bfloat16 only";
        return TUTTI_ALGO_NONE;
    }
    if ((call->bytes | call->storage_offset_bytes) % 4) {
        *reason = "strict mode needs a storage offset and a byte count aligned to 4";
        return TUTTI_ALGO_NONE;
    }
    if (rules->topology == TUTTI_TOPOLOGY_HYBRID_CUBE_MESH)
        return strict_mesh(rules, call->bytes, reason);
    if (rules->topology != TUTTI_TOPOLOGY_FULLY_CONNECTED) {
        *reason = "strict mode serves fully connected ranks and hybrid cube meshes only";
        return TUTTI_ALGO_NONE;
    }
    if (call->bytes <= least(STRICT_ONE_SHOT_BYTES, rules->buffer_size)) {
        *reason = "strict mode: at most 256 KiB and the buffer size";
        return TUTTI_ALGO_ONE_SHOT;
    }
    if (call->bytes <= least(STRICT_TWO_SHOT_BYTES, rules->buffer_size)) {
        *reason = "strict mode: at most 10 MiB and the buffer size";
        return TUTTI_ALGO_TWO_SHOT;
    }
    *reason = "strict mode: larger than 10 MiB or the buffer size";
    return TUTTI_ALGO_NONE;
}

enum tutti_algo choice_by_links(const struct choice_paths *paths)
{
    if (paths->all)
        return TUTTI_ALGO_NONE;
    return paths->mesh ? TUTTI_ALGO_HYBRID_CUBE_MESH : TUTTI_ALGO_RING;
}

enum tutti_algo choice_by_rules(const struct choice_rules *rules, const struct choice_call *call,
                                const char **reason)
{
    if (call->algo != TUTTI_ALGO_NONE || rules->forced != TUTTI_ALGO_NONE) {
        *reason = "forced by the call, the options or TUTTI_ALGO";
        return call->algo != TUTTI_ALGO_NONE ? call->algo : rules->forced;
    }
    if (rules->strict)
        return strict(rules, call, reason);
    if (!rules->paths.all)
        *reason = rules->paths.mesh ? "the links are those of a hybrid cube mesh"
                                    : "only the links of a ring join all ranks";
    return choice_by_links(&rules->paths);
}
