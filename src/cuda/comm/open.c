/* SPDX-License-Identifier: MIT */
/*
 * What ranks with devices tell each other when they meet, and where their arenas are.
 *
 * Kernels of several processes take turns of milliseconds on a device, so kernels that wait for
 * each other do not run there: a host thread stages all operations. A forced algorithm needs
 * kernels, so it is declined. Kernels of threads that share a device run at the same time. A host
 * thread also stages all operations of ranks on several hosts.
 */
#include "base/error.h"
#include "cpu/group.h"
#include "cuda/comm/group_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* In struct backend_record. */
struct record {
    struct cuda_device device;
    int32_t overlapping; /* TUTTI_ALLOW_OVERLAPPING_DEVICES: ranks may share a device */
    char table_source[CUDA_TABLE_SOURCE_BYTES];
};
static_assert(sizeof(struct record) <= BACKEND_RECORD_BYTES, "a back end's part of the record");

/* Another process may have written the record: terminates its texts. */
static struct record record_read(const struct backend_record *from)
{
    struct record record;
    memcpy(&record, from->bytes, sizeof record);
    record.device.name[sizeof record.device.name - 1] = 0;
    record.device.bus_id[sizeof record.device.bus_id - 1] = 0;
    record.table_source[sizeof record.table_source - 1] = 0;
    return record;
}

enum tutti_status cuda_record_make(bool overlapping, void *opaque, struct backend_record *record)
{
    struct cuda_setup *setup = opaque;
    struct record own = {.overlapping = overlapping};
    enum tutti_status status = cuda_device_current(&own.device);
    if (status == TUTTI_OK)
        status = cuda_table_load(&setup->table);
    if (status != TUTTI_OK)
        return status;
    memcpy(own.table_source, setup->table.source, sizeof own.table_source);
    record->table_hash = setup->table.hash;
    memcpy(record->bytes, &own, sizeof own);
    return TUTTI_OK;
}

static void devices_read(const struct backend_record *const *records, int size,
                         struct cuda_device *devices)
{
    for (int r = 0; r < size; r++)
        devices[r] = record_read(records[r]).device;
}

/* Finds two ranks with one device. Compares UUIDs, because CUDA_VISIBLE_DEVICES changes the
 * ordinals. `processes`: only ranks of different ones; NULL: any ranks. */
static bool pair_find(const struct cuda_device *devices, int size, const int *processes, int *low,
                      int *high)
{
    for (*high = 0; *high < size; ++*high)
        for (*low = 0; *low < *high; ++*low)
            if (memcmp(devices[*low].uuid, devices[*high].uuid, CUDA_UUID_BYTES) == 0 &&
                !(processes && processes[*low] == processes[*high]))
                return true;
    return false;
}

static enum tutti_status tables_compare(const struct backend_record *mine, int rank,
                                        const struct backend_record *theirs, int peer)
{
    if (mine->table_hash == theirs->table_hash)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_MISMATCH,
                     "ranks disagree about the tuning table: rank %d has %.95s (%016" PRIx64
                     "), rank %d has %.95s (%016" PRIx64 "): give all ranks the same file in "
                     "TUTTI_TUNING_FILE, or none in the cache",
                     rank, record_read(mine).table_source, mine->table_hash, peer,
                     record_read(theirs).table_source, theirs->table_hash);
}

enum tutti_status cuda_records_compare(const struct backend_record *const *records, int rank,
                                       int size)
{
    enum tutti_status status = TUTTI_OK;
    struct cuda_device devices[CUDA_RANKS];
    int low, high, strict = 0;
    char text[2 * CUDA_UUID_BYTES + 1];
    for (int r = 0; r < size && status == TUTTI_OK; r++)
        status = tables_compare(records[rank], rank, records[r], r);
    devices_read(records, size, devices);
    while (strict < size && record_read(records[strict]).overlapping)
        strict++;
    if (status != TUTTI_OK || strict == size || !pair_find(devices, size, NULL, &low, &high))
        return status;
    for (int i = 0; i < CUDA_UUID_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", devices[high].uuid[i]);
    return error_set(TUTTI_ERR_DECLINED,
                     "ranks %d and %d are on one device, %.63s with UUID %s: give each rank a "
                     "device of its own, or set TUTTI_ALLOW_OVERLAPPING_DEVICES on all ranks (rank "
                     "%d has not)",
                     low, high, devices[high].name, text, strict);
}

void cuda_records_links(const struct backend_record *const *records, int size, int rank,
                        int16_t *links, const char **source)
{
    struct cuda_device devices[CUDA_RANKS];
    devices_read(records, size, devices);
    cuda_links(devices, size, rank, links, source);
}

enum tutti_status cuda_prepare(const struct backend_opening *opening, struct backend_arenas *arenas)
{
    struct cuda_setup *setup = opening->setup;
    const enum tutti_algo algo = opening->rules->forced;
    const bool forced = algo != TUTTI_ALGO_NONE && algo != TUTTI_ALGO_HOST_STAGED;
    int low, high;
    devices_read(opening->records, opening->size, setup->devices);
    if (opening->hosts.link) {
        setup->route = CUDA_ROUTE_FABRIC;
        setup->why = "the ranks run on several hosts, and a fabric joins the devices";
        return algo == TUTTI_ALGO_NONE || algo == TUTTI_ALGO_ONE_SHOT || algo == TUTTI_ALGO_TWO_SHOT
                   ? TUTTI_OK
                   : error_set(TUTTI_ERR_DECLINED,
                               "algorithm %d (%s) is forced by the options or TUTTI_ALGO, but the "
                               "ranks run on several hosts, and a fabric joins the devices: force "
                               "none, one_shot or two_shot",
                               (int)algo, tutti_algo_name(algo));
    }
    if (opening->hosts.group) {
        setup->route = CUDA_ROUTE_PROXY;
        setup->why = "the ranks run on several hosts";
        return forced ? error_set(TUTTI_ERR_DECLINED,
                                  "algorithm %d (%s) is forced by the options or TUTTI_ALGO, but "
                                  "the ranks run on several hosts, where a host thread stages all "
                                  "operations: force none or host_staged",
                                  (int)algo, tutti_algo_name(algo))
                      : TUTTI_OK;
    }
    if (opening->size == 1) {
        setup->route = CUDA_ROUTE_ALONE;
        return TUTTI_OK;
    }
    if (pair_find(setup->devices, opening->size, opening->processes, &low, &high)) {
        if (forced)
            return error_set(
                TUTTI_ERR_DECLINED,
                "algorithm %d (%s) is forced by the options or TUTTI_ALGO, but ranks %d and %d "
                "are processes that share a device, %.63s, where a host thread stages all "
                "operations: force none or host_staged, give each rank a device of its own, "
                "or have ranks that share a device be threads of one process",
                (int)algo, tutti_algo_name(algo), low, high, setup->devices[high].name);
        setup->route = CUDA_ROUTE_PROXY;
        setup->why = "processes share a device";
        arenas->bytes = cpu_group_arena_bytes(opening, &choice_rules_free);
        return TUTTI_OK;
    }
    setup->why = algo == TUTTI_ALGO_HOST_STAGED ? "asked for" : "ranks share a device";
    setup->route = forced ? CUDA_ROUTE_DEVICE
                   : algo == TUTTI_ALGO_HOST_STAGED ||
                           pair_find(setup->devices, opening->size, NULL, &low, &high)
                       ? CUDA_ROUTE_HOST
                       : CUDA_ROUTE_FOUND;
    return TUTTI_OK;
}
