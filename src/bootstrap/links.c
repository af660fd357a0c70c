/* SPDX-License-Identifier: MIT */
#include "bootstrap/links.h"

#include "base/deadline.h"
#include "base/env.h"
#include "base/error.h"
#include "base/log.h"

#include <stdlib.h>
#include <string.h>

/* ---- alone ----------------------------------------------------------------------------------- */

static enum tutti_status links_alloc(const struct links *links)
{
    if (!*links->file)
        *links->file = calloc(1, sizeof **links->file);
    if (!*links->file)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %zu bytes", sizeof **links->file);
    return TUTTI_OK;
}

static enum tutti_status file_check(const struct links *links)
{
    const struct topology_file *file = *links->file;
    if (file->matrix.size != links->world_size)
        return error_set(TUTTI_ERR_INVALID,
                         "topology file %s is of %d ranks, the world size is %d: give a file for "
                         "that world size, or unset TUTTI_TOPOLOGY_FILE",
                         file->source, (int)file->matrix.size, links->world_size);
    return TUTTI_OK;
}

enum tutti_status links_read(const struct links *links)
{
    const char *path = getenv("TUTTI_TOPOLOGY_FILE");
    bool forced = false;
    enum tutti_status status = env_bool("TUTTI_FORCE_FULLY_CONNECTED", &forced);
    links->config->fully_connected = forced;
    if (status != TUTTI_OK || forced || !path || !*path)
        return status;
    status = links_alloc(links);
    if (status == TUTTI_OK)
        status = topology_file_load(path, *links->file);
    if (status == TUTTI_OK)
        status = file_check(links);
    if (status != TUTTI_OK)
        return status;
    links->config->topology_size = (*links->file)->matrix.size;
    return TUTTI_OK;
}

enum tutti_status links_inherit(const struct links *links, const struct comm_config *from_config,
                                const struct topology_file *from, const int *ranks)
{
    const int size = links->world_size;
    if (!from)
        return TUTTI_OK;
    enum tutti_status status = links_alloc(links);
    if (status != TUTTI_OK)
        return status;
    memcpy((*links->file)->source, from->source, sizeof(*links->file)->source);
    (*links->file)->matrix.size = size;
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++)
            (*links->file)->matrix.links[i][j] = from->matrix.links[ranks[i]][ranks[j]];
    links->config->topology_size = from_config->topology_size ? size : 0;
    return TUTTI_OK;
}

/* ---- from a file ----------------------------------------------------------------------------- */

static enum tutti_status files_differ(const struct topology_file *mine, int rank,
                                      const struct topology_file *theirs, int peer)
{
    const int size = mine->matrix.size;
    for (int i = 0; i < size; i++)
        for (int j = 0; j < size; j++)
            if (mine->matrix.links[i][j] != theirs->matrix.links[i][j])
                return error_set(TUTTI_ERR_MISMATCH,
                                 "ranks disagree about the topology: links from %d to %d: rank %d "
                                 "has %d (%s), rank %d has %d (%s); -1 is not known: give all "
                                 "ranks the same file in TUTTI_TOPOLOGY_FILE",
                                 i, j, rank, mine->matrix.links[i][j], mine->source, peer,
                                 theirs->matrix.links[i][j], theirs->source);
    return TUTTI_OK;
}

static enum tutti_status files_compare(const struct links *links, struct tutti_exchanger *exchanger,
                                       int64_t deadline)
{
    struct topology_file *all = malloc((size_t)links->world_size * sizeof *all);
    if (!all)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for the ranks' topology files");
    enum tutti_status status = tutti_exchanger_all_gather(
        exchanger, *links->file, sizeof **links->file, all, deadline_timeout_ms(deadline));
    for (int r = 0; r < links->world_size && status == TUTTI_OK; r++) {
        all[r].source[sizeof all[r].source - 1] = 0; /* from another process: terminate it */
        status = files_differ(*links->file, links->rank, &all[r], r);
    }
    free(all);
    return status;
}

/* ---- from the devices ------------------------------------------------------------------------ */

/* Each rank queries the links from its own device, because it would use them, and tells the other
 * ranks. */
static enum tutti_status devices_ask(const struct links *links, const struct host_record *records,
                                     struct tutti_exchanger *exchanger, int64_t deadline)
{
    const struct backend_record *parts[WORLD_RANKS];
    const int size = links->world_size;
    int16_t own[NODE_RANKS] = {0}, all[NODE_RANKS * NODE_RANKS];
    const char *source = "";
    enum tutti_status status = links_alloc(links);
    if (status != TUTTI_OK)
        return status;
    host_parts(records, size, parts);
    links->backend->links(parts, size, links->rank, own, &source);
    const size_t row = (size_t)size * sizeof *own;
    status = tutti_exchanger_all_gather(exchanger, own, row, all, deadline_timeout_ms(deadline));
    if (status != TUTTI_OK)
        return status;
    (*links->file)->matrix.size = size;
    memcpy((*links->file)->source, source, strlen(source));
    for (int i = 0; i < size; i++)
        memcpy((*links->file)->matrix.links[i], all + i * size, row);
    return TUTTI_OK;
}

/* ---- together -------------------------------------------------------------------------------- */

/* The given order; else the order of the quads on a hybrid cube mesh; else rank order. */
static void leaf_order_choose(const struct topology *topology, const struct comm_config *config,
                              uint8_t *order)
{
    int quads[TOPOLOGY_MESH_RANKS];
    memcpy(order, config->leaf_order, sizeof config->leaf_order);
    if (config->leaf_order_given || topology->kind != TUTTI_TOPOLOGY_HYBRID_CUBE_MESH)
        return;
    topology_quads_order(topology, quads);
    for (int leaf = 0; leaf < TOPOLOGY_MESH_RANKS; leaf++)
        order[leaf] = (uint8_t)quads[leaf];
}

static enum tutti_status leaf_orders_agree(const struct links *links,
                                           const struct host_record *records)
{
    uint8_t mine[WORLD_RANKS], theirs[WORLD_RANKS];
    leaf_order_choose(links->topology, links->config, mine);
    for (int r = 0; r < links->world_size; r++) {
        leaf_order_choose(links->topology, &records[r].config, theirs);
        for (int leaf = 0; leaf < links->world_size; leaf++)
            if (mine[leaf] != theirs[leaf])
                return error_set(TUTTI_ERR_MISMATCH,
                                 "ranks disagree about the leaf order: at leaf %d rank %d has %d, "
                                 "rank %d has %d (on a hybrid cube mesh NULL is the quads' order): "
                                 "set the same on all ranks",
                                 leaf, links->rank, mine[leaf], r, theirs[leaf]);
    }
    memcpy(links->config->leaf_order, mine, sizeof mine);
    return TUTTI_OK;
}

/* Logs the queries that failed. They count as no link. */
static void unknown_log(const struct links *links)
{
    const struct topology_matrix *matrix = &(*links->file)->matrix;
    for (int peer = 0; peer < matrix->size; peer++)
        if (peer != links->rank && matrix->links[links->rank][peer] < 0)
            log_write(TUTTI_LOG_WARN, links->rank,
                      "the links from rank %d to rank %d are not known: they count as none",
                      links->rank, peer);
}

static enum tutti_status matrix_agree(const struct links *links, const struct host_record *records,
                                      struct tutti_exchanger *exchanger, int64_t deadline)
{
    enum tutti_status status;
    if (links->config->fully_connected) {
        topology_force(links->world_size, "TUTTI_FORCE_FULLY_CONNECTED is set", links->topology);
        return TUTTI_OK;
    }
    if (*links->file && (links->config->topology_size || !exchanger)) {
        status = exchanger ? files_compare(links, exchanger, deadline) : TUTTI_OK;
    } else if (links->backend->links) {
        status = devices_ask(links, records, exchanger, deadline);
    } else {
        topology_force(links->world_size, "CPU ranks share their memory", links->topology);
        return TUTTI_OK;
    }
    if (status != TUTTI_OK)
        return status;
    unknown_log(links);
    topology_recognise(&(*links->file)->matrix, links->topology);
    return TUTTI_OK;
}

enum tutti_status links_agree(const struct links *links, const struct host_record *records,
                              struct tutti_exchanger *exchanger, int64_t deadline)
{
    enum tutti_status status = matrix_agree(links, records, exchanger, deadline);
    return status == TUTTI_OK ? leaf_orders_agree(links, records) : status;
}
