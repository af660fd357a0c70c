/* SPDX-License-Identifier: MIT */
/* The reports of a communicator: its description, its recorder's page, its dumps. */
#include "base/error.h"
#include "base/log.h"
#include "base/text.h"
#include "comm/comm.h"
#include "tutti/recorder.h"

#include <inttypes.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static size_t least(size_t size, int length)
{
    return (size_t)length < size ? (size_t)length : size;
}

static void topology_describe(const struct tutti_comm *comm, char *text, size_t size, int *length)
{
    static const char *const names[] = {
        [TUTTI_TOPOLOGY_UNKNOWN] = "unknown",
        [TUTTI_TOPOLOGY_FULLY_CONNECTED] = "fully_connected",
        [TUTTI_TOPOLOGY_HYBRID_CUBE_MESH] = "hybrid_cube_mesh",
    };
    text_append(text, size, length, "topology: %s\ntopology_reason: %s\n",
                names[comm->topology.kind], comm->topology.reason);
    if (!comm->links)
        return;
    const struct topology_matrix *matrix = &comm->links->matrix;
    text_append(text, size, length, "topology_source: %s\n", comm->links->source);
    for (int i = 0; i < matrix->size; i++) {
        text_append(text, size, length, "links:");
        for (int j = 0; j < matrix->size; j++)
            if (i == j)
                text_append(text, size, length, " X");
            else if (matrix->links[i][j] < 0)
                text_append(text, size, length, " ?");
            else
                text_append(text, size, length, " %d", matrix->links[i][j]);
        text_append(text, size, length, "\n");
    }
}

/* Where the caller runs and the arenas lie, if the kernel tells. */
static void nodes_describe(const struct tutti_comm *comm, char *text, size_t size, int *length)
{
    int nodes[NODE_RANKS];
    unsigned own;
    const int count = peers_arena_nodes(comm->peers, nodes);
    bool told = false;
    for (int i = 0; i < count; i++)
        told = told || nodes[i] >= 0;
    if (!told || syscall(SYS_getcpu, NULL, &own, NULL) != 0)
        return;
    text_append(text, size, length, "node: %u\narena_nodes:", own);
    for (int i = 0; i < count; i++)
        text_append(text, size, length, nodes[i] < 0 ? " ?" : " %d", nodes[i]);
    text_append(text, size, length, "\n");
}

int tutti_comm_describe(const tutti_comm_t *comm, char *text, size_t size)
{
    int length = 0;
    if (size)
        text[0] = 0;
    if (!comm)
        return 0;
    text_append(text, size, &length, "name: %s\n", comm->name);
    text_append(text, size, &length, "state: %s\n",
                comm->ready       ? "ready"
                : comm->reason[0] ? "failed"
                                  : "new");
    if (comm->reason[0])
        text_append(text, size, &length, "reason: %s\n", comm->reason);
    text_append(text, size, &length, "rank: %d\nworld_size: %d\ndevice: %s\n", comm->rank,
                comm->world_size, comm->backend->name);
    text_append(text, size, &length, "leaf_order:");
    for (int leaf = 0; leaf < comm->world_size; leaf++)
        text_append(text, size, &length, " %d", comm->config.leaf_order[leaf]);
    text_append(text, size, &length, "\nbuffer_size: %" PRIu64 "\nstrict: %s\nalgorithm: %s\n",
                comm->config.buffer_size, comm->config.strict ? "on" : "off",
                comm->config.algo ? tutti_algo_name((enum tutti_algo)comm->config.algo)
                                  : "measured");
    text_append(text, size, &length, "timeout_ms: %" PRId64 "\nisa: %s\n", comm->timeout_ms,
                comm->isa->name);
    if (!comm->ready)
        return length;
    text_append(text, size, &length, "generation: %" PRId64 "\ncores: %d\n", comm->generation,
                comm->cores);
    topology_describe(comm, text, size, &length);
    if (comm->parts)
        text_append(text, size, &length, "threads: %d\nmost_threads: %d\n", comm->threads,
                    comm->parts);
    text_append(text, size, &length, "ranks_share_process: %s\narena_bytes: %zu\n",
                rank_set_empty(peers_ranks(comm->peers)->remote) ? "yes" : "no",
                peers_arena_bytes(comm->peers));
    nodes_describe(comm, text, size, &length);
    if (*peers_copies_text(comm->peers))
        text_append(text, size, &length, "direct_copies: %s\n", peers_copies_text(comm->peers));
    const size_t used = least(size, length);
    if (comm->backend->describe)
        length += comm->backend->describe(comm->group, text ? text + used : NULL, size - used);
    return length;
}

/* ---- the recorder ---------------------------------------------------------------------------- */

void comm_record_meeting(struct tutti_comm *comm)
{
    struct record_page *page = comm->recorder.page;
    uint64_t halves[2];
    memcpy(halves, comm->nonce, sizeof halves);
    page->declined = (int32_t)comm->declined;
    page->generation = comm->generation;
    page->table_hash = comm->table_hash;
    page->meeting = halves[0] ^ halves[1]; /* the nonce itself is a secret */
    tutti_comm_describe(comm, page->text, sizeof page->text);
    /* R1 pairs R1a */
    order_store_release_u32(&page->phase, comm->ready ? RECORD_MET : RECORD_NOT_MET);
}

void comm_dump_failure(void *context)
{
    struct tutti_comm *comm = context;
    const struct recorder *recorder = &comm->recorder;
    if (!recorder->pattern)
        return;
    peers_survey(comm->peers);
    if (recorder_dump(recorder, RECORD_CAUSE_FAILURE, recorder->pattern) != TUTTI_OK)
        log_write(TUTTI_LOG_WARN, comm->rank, "communicator \"%s\": no dump: %s", comm->name,
                  tutti_last_error());
}

enum tutti_status tutti_comm_dump(tutti_comm_t *comm, const char *pattern)
{
    static const char call[] = "tutti_comm_dump";
    enum tutti_status status = comm_check_own(comm, call);
    if (status != TUTTI_OK)
        return status;
    if (!pattern)
        pattern = comm->recorder.pattern;
    if (!pattern)
        return error_set(TUTTI_ERR_INVALID,
                         "%s: no pattern, and TUTTI_DUMP was not set when the communicator was "
                         "created: name a file or a directory",
                         call);
    peers_survey(comm->peers);
    status = recorder_dump(&comm->recorder, RECORD_CAUSE_CALL, pattern);
    return status == TUTTI_OK ? TUTTI_OK : error_context(status, "%s", call);
}
