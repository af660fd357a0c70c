/* SPDX-License-Identifier: MIT */
#include "placement.h"

#include "tool.h"
#include "tutti/openmp.h"

#include <hwloc.h>
#include <hwloc/glibc-sched.h>
#include <stdlib.h>
#include <string.h>

enum { SHARE = 0 }; /* an equal share of all cores, instead of a number of cores */

/* Uses only the cores of this process' affinity mask, because a launcher may have bound the
 * process. */
static bool topology_load(hwloc_topology_t *topology)
{
    setenv("HWLOC_HIDE_ERRORS", "2", 0); /* without /sys it finds less, and prints a message */
    if (hwloc_topology_init(topology) < 0)
        return tool_fail_errno("hwloc cannot start");
    hwloc_topology_set_flags(*topology, HWLOC_TOPOLOGY_FLAG_IS_THISSYSTEM |
                                            HWLOC_TOPOLOGY_FLAG_RESTRICT_TO_CPUBINDING);
    if (hwloc_topology_load(*topology) < 0) {
        tool_fail_errno("hwloc cannot read the topology of this machine");
        hwloc_topology_destroy(*topology);
        return false;
    }
    return true;
}

/* Machines that hide their cores show processing units instead. */
static hwloc_obj_type_t core_type(hwloc_topology_t topology)
{
    return hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_CORE) > 0 ? HWLOC_OBJ_CORE : HWLOC_OBJ_PU;
}

static size_t last_cache(hwloc_topology_t topology)
{
    size_t bytes = 0;
    hwloc_obj_t object = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, 0);
    for (; object; object = object->parent)
        if (hwloc_obj_type_is_dcache(object->type) && object->attr->cache.size > bytes)
            bytes = object->attr->cache.size;
    return bytes;
}

static const char *cpu_model(hwloc_topology_t topology)
{
    hwloc_obj_t package = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PACKAGE, 0);
    const char *model = package ? hwloc_obj_get_info_by_name(package, "CPUModel") : NULL;
    return model ? model : "unknown CPU";
}

int placement_share(int cores, int ranks, int rank, int *first)
{
    *first = (int)((int64_t)cores * rank / ranks);
    return (int)((int64_t)cores * (rank + 1) / ranks) - *first;
}

/* Chooses the cores of each rank. hwloc numbers cores by package and cache, so that neighbours are
 * close. */
static void assign_cores(hwloc_topology_t topology, struct placement *placement, int ranks,
                         int each)
{
    hwloc_bitmap_t cpus = hwloc_bitmap_alloc();
    placement->bound = cpus != NULL;
    for (int rank = 0; placement->bound && rank < ranks; rank++) {
        int first = rank * each, count = each;
        if (each == SHARE)
            count = placement_share(placement->cores, ranks, rank, &first);
        hwloc_bitmap_zero(cpus);
        for (int i = first; i < first + count; i++)
            hwloc_bitmap_or(
                cpus, cpus,
                hwloc_get_obj_by_type(topology, core_type(topology), (unsigned)i)->cpuset);
        hwloc_cpuset_to_glibc_sched_affinity(topology, cpus, &placement->sets[rank],
                                             sizeof placement->sets[rank]);
        placement->cpus[rank] = hwloc_bitmap_first(cpus);
    }
    hwloc_bitmap_free(cpus);
}

/* each: cores of a rank. */
static bool look(struct placement *placement, int ranks, bool bind, int each)
{
    hwloc_topology_t topology;
    if (!topology_load(&topology))
        return false;
    placement->cores = hwloc_get_nbobjs_by_type(topology, core_type(topology));
    placement->cache_bytes = last_cache(topology);
    snprintf(placement->cpu_model, sizeof placement->cpu_model, "%s", cpu_model(topology));
    placement->bound = false;
    for (int rank = 0; rank < TUTTI_MAX_RANKS; rank++) {
        CPU_ZERO(&placement->sets[rank]);
        placement->cpus[rank] = -1;
    }
    if (bind && ranks * (each == SHARE ? 1 : each) <= placement->cores)
        assign_cores(topology, placement, ranks, each);
    hwloc_topology_destroy(topology);
    return true;
}

bool placement_make(struct placement *placement, int ranks, bool bind)
{
    return look(placement, ranks, bind, 1);
}

bool placement_make_each(struct placement *placement, int ranks, int each)
{
    return look(placement, ranks, true, each);
}

bool placement_make_shares(struct placement *placement, int ranks)
{
    return look(placement, ranks, true, SHARE);
}

bool placement_bind(const struct placement *placement, int rank)
{
    if (!placement->bound)
        return true;
    if (sched_setaffinity(0, sizeof placement->sets[rank], &placement->sets[rank]) < 0)
        return tool_fail_errno(
            "rank %d cannot be bound to its cores, from CPU %d on (try --no-bind)", rank,
            placement->cpus[rank]);
    return true;
}

static json_t *describe_caches(hwloc_topology_t topology)
{
    json_t *caches = json_array();
    hwloc_obj_t object = hwloc_get_obj_by_type(topology, HWLOC_OBJ_PU, 0);
    for (; object; object = object->parent) {
        if (!hwloc_obj_type_is_dcache(object->type))
            continue;
        char name[32];
        hwloc_obj_type_snprintf(name, sizeof name, object, 0);
        json_array_append_new(caches, json_pack("{s:s, s:I, s:i, s:i}", "name", name, "bytes",
                                                (json_int_t)object->attr->cache.size, "line_bytes",
                                                (int)object->attr->cache.linesize, "shared_by_cpus",
                                                hwloc_bitmap_weight(object->cpuset)));
    }
    return caches;
}

static json_t *describe_nodes(hwloc_topology_t topology)
{
    json_t *nodes = json_array();
    int count = hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_NUMANODE);
    for (int i = 0; i < count; i++) {
        hwloc_obj_t node = hwloc_get_obj_by_type(topology, HWLOC_OBJ_NUMANODE, (unsigned)i);
        char cpus[256];
        hwloc_bitmap_list_snprintf(cpus, sizeof cpus, node->cpuset);
        json_array_append_new(nodes, json_pack("{s:i, s:s, s:I}", "node", (int)node->os_index,
                                               "cpus", cpus, "bytes",
                                               (json_int_t)node->attr->numanode.local_memory));
    }
    return nodes;
}

enum tutti_status placement_threads_find(bool bound, tutti_parallel_t *parallel)
{
    if (bound)
        setenv("OMP_PROC_BIND", "true", 0);
    return tutti_parallel_find(parallel);
}

json_t *placement_describe(void)
{
    hwloc_topology_t topology;
    if (!topology_load(&topology))
        return NULL;
    char cpus[256];
    hwloc_const_cpuset_t allowed = hwloc_topology_get_topology_cpuset(topology);
    hwloc_bitmap_list_snprintf(cpus, sizeof cpus, allowed);
    json_t *object =
        json_pack("{s:s, s:i, s:i, s:s, s:i, s:o, s:o}", "model", cpu_model(topology),
                  "cores_allowed", hwloc_get_nbobjs_by_type(topology, core_type(topology)),
                  "cpus_allowed", hwloc_bitmap_weight(allowed), "cpu_list", cpus, "packages",
                  hwloc_get_nbobjs_by_type(topology, HWLOC_OBJ_PACKAGE), "numa_nodes",
                  describe_nodes(topology), "caches", describe_caches(topology));
    hwloc_topology_destroy(topology);
    return object;
}
