/* SPDX-License-Identifier: MIT */
/* On which hosts the ranks of a communicator may run. */
#include "base/error.h"
#include "base/text.h"
#include "bootstrap/host.h"
#include "comm/comm.h"

#include <string.h>

/* Names each host, with its ranks. */
static enum tutti_status hosts_refuse(const struct host_record *records, int size,
                                      const struct hosts *hosts)
{
    char text[360], ranks[160];
    int length = 0;
    for (int host = 0; host < hosts->count; host++) {
        struct rank_set on_host = rank_set_none;
        for (int r = 0; r < size; r++)
            if (hosts->of[r] == host)
                rank_set_add(&on_host, r);
        const struct host_identity *identity = &records[rank_set_next(on_host, -1)].identity;
        text_append(text, sizeof text, &length, "%s%s on %.63s (boot %.39s)", host ? ", " : "",
                    text_ranks(on_host, ranks, sizeof ranks), identity->name, identity->boot_id);
    }
    if ((size_t)length >= sizeof text)
        memcpy(text + sizeof text - 4, "...", 4);
    return error_set(TUTTI_ERR_DECLINED,
                     "without a fabric (options->fabric) Tutti joins the ranks of one host, and "
                     "these run on %d: %s",
                     hosts->count, text);
}

/* Refuses a host with too many ranks. */
static enum tutti_status crowd_refuse(const struct tutti_comm *comm, const struct hosts *hosts)
{
    int counts[WORLD_RANKS] = {0};
    for (int r = 0; r < comm->world_size; r++)
        if (++counts[hosts->of[r]] > NODE_RANKS)
            return error_set(TUTTI_ERR_DECLINED,
                             "more than %d of the %d ranks run on %s: start up to %d on a host",
                             NODE_RANKS, comm->world_size, hosts->names[hosts->of[r]], NODE_RANKS);
    return TUTTI_OK;
}

enum tutti_status comm_records_check(const struct tutti_comm *comm,
                                     const struct host_record *records, struct hosts *hosts)
{
    const struct backend *backend = comm->backend;
    const struct backend_record *parts[WORLD_RANKS];
    enum tutti_status status = host_records_compare(records, comm->rank, comm->world_size, hosts);
    if (status == TUTTI_OK && hosts->count > 1 && !comm->fabric)
        status = hosts_refuse(records, comm->world_size, hosts);
    if (status == TUTTI_OK)
        status = crowd_refuse(comm, hosts);
    if (status == TUTTI_OK && hosts->count > 1 && comm->config.strict)
        status =
            error_set(TUTTI_ERR_DECLINED,
                      "the ranks run on %d hosts, for which strict mode has no rule: switch it "
                      "off (options->strict, TUTTI_STRICT)",
                      hosts->count);
    if (status != TUTTI_OK || !backend->records_compare)
        return status;
    host_parts(records, comm->world_size, parts);
    return backend->records_compare(parts, comm->rank, comm->world_size);
}
