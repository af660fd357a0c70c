/* SPDX-License-Identifier: MIT */
#include "comm/plan.h"

#include "base/error.h"

/* The roots' limits, inclusive. */
#define STRICT_ONE_SHOT_BYTES ((size_t)256 << 10)
#define STRICT_TWO_SHOT_BYTES ((size_t)10 << 20)

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

void plan_paths_make(const struct topology *topology, const int *order, bool cuda,
                     struct plan_paths *paths)
{
    struct topology_mesh mesh;
    *paths = (struct plan_paths){.all = true};
    paths->mesh = topology_mesh_role(topology, order, 0, &mesh);
    paths->ring = cuda && topology->has_ring;
    paths->staged =
        topology->kind != TUTTI_TOPOLOGY_FULLY_CONNECTED && !paths->mesh && !paths->ring;
    paths->all = topology->kind == TUTTI_TOPOLOGY_FULLY_CONNECTED || paths->staged;
}

enum tutti_status plan_check(const struct plan_paths *paths, const struct topology *topology,
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

/* Ranks that are no hybrid cube mesh, or have a leaf order across its quads. */
static enum tutti_algo plan_strict_mesh(const struct plan_input *input, const char **reason)
{
    if (!input->paths.mesh) {
        *reason =
            "strict mode: no algorithm of this hybrid cube mesh serves this leaf order or device";
        return TUTTI_ALGO_NONE;
    }
    if (input->bytes > least(STRICT_ONE_SHOT_BYTES, input->buffer_size)) {
        *reason = "strict mode, hybrid cube mesh: larger than 256 KiB or the buffer size";
        return TUTTI_ALGO_NONE;
    }
    *reason = "strict mode, hybrid cube mesh: at most 256 KiB and the buffer size";
    return TUTTI_ALGO_HYBRID_CUBE_MESH;
}

static enum tutti_algo plan_strict(const struct plan_input *input, const char **reason)
{
    if (input->dtype != TUTTI_FLOAT32 && input->dtype != TUTTI_BFLOAT16) {
        *reason = "strict mode serves float32 and bfloat16 only";
        return TUTTI_ALGO_NONE;
    }
    if ((input->bytes | input->storage_offset_bytes) % 4) {
        *reason = "strict mode needs a storage offset and a byte count aligned to 4";
        return TUTTI_ALGO_NONE;
    }
    if (input->topology == TUTTI_TOPOLOGY_HYBRID_CUBE_MESH)
        return plan_strict_mesh(input, reason);
    if (input->topology != TUTTI_TOPOLOGY_FULLY_CONNECTED) {
        *reason = "strict mode serves fully connected ranks and hybrid cube meshes only";
        return TUTTI_ALGO_NONE;
    }
    if (input->bytes <= least(STRICT_ONE_SHOT_BYTES, input->buffer_size)) {
        *reason = "strict mode: at most 256 KiB and the buffer size";
        return TUTTI_ALGO_ONE_SHOT;
    }
    if (input->bytes <= least(STRICT_TWO_SHOT_BYTES, input->buffer_size)) {
        *reason = "strict mode: at most 10 MiB and the buffer size";
        return TUTTI_ALGO_TWO_SHOT;
    }
    *reason = "strict mode: larger than 10 MiB or the buffer size";
    return TUTTI_ALGO_NONE;
}

/*
 * Measured (bench/README.md). One-shot moves N - 1 inputs into each rank in one hop, two-shot
 * 2 (N - 1) / N of one in two hops, so one-shot loses the sooner the more ranks there are; between
 * two as many bytes go either way. Where ranks share cores a hop costs more.
 */
static size_t one_shot_bytes(const struct plan_input *input)
{
    if (input->world_size == 2)
        return 64 << 10;
    return ((size_t)(input->oversubscribed ? 64 : 7) << 10) / (size_t)input->world_size;
}

size_t plan_small_bytes(const struct plan_input *input)
{
    if (input->strict || input->forced != TUTTI_ALGO_NONE || input->table || !input->paths.all)
        return 0;
    return one_shot_bytes(input);
}

enum tutti_algo plan_pick(const struct plan_input *input, const char **reason)
{
    if (input->forced != TUTTI_ALGO_NONE) {
        *reason = "forced by the call, the options or TUTTI_ALGO";
        return input->forced;
    }
    if (input->strict)
        return plan_strict(input, reason);
    if (!input->paths.all) {
        *reason = input->paths.mesh ? "the links are those of a hybrid cube mesh"
                                    : "only the links of a ring join all ranks";
        return plan_by_links(&input->paths);
    }
    if (input->table) {
        *reason = "the tuning table";
        return TUTTI_ALGO_NONE;
    }
    if (input->bytes <= one_shot_bytes(input)) {
        *reason = input->paths.staged
                      ? "no links join all ranks, the host's memory does: one hop, up to here"
                      : "one hop is faster up to here";
        return TUTTI_ALGO_ONE_SHOT;
    }
    *reason = input->paths.staged
                  ? "no links join all ranks, the host's memory does: fewer bytes, from here on"
                  : "each rank reduces its own chunk: fewer bytes from here on";
    return TUTTI_ALGO_TWO_SHOT;
}
