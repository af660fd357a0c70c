/* SPDX-License-Identifier: MIT */
#include "bootstrap/host.h"

#include "base/error.h"
#include "base/layout.h"
#include "ipc/process.h"

#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HOST_MAGIC UINT64_C(0x74757474692d6964)

/* A task of the rank's threads. */
static void affinity_read(void *opaque, int task)
{
    cpu_set_t *set = (cpu_set_t *)opaque + task;
    static_assert(sizeof *set == HOST_CPU_BYTES, "1024 processors");
    if (sched_getaffinity(0, sizeof *set, set) != 0) /* more than 1024 processors */
        CPU_ZERO(set);
}

/* The processors that the rank's threads may run on together: OpenMP binds each of them, the
 * calling one too, to a core of its own if OMP_PROC_BIND says so. */
static enum tutti_status cpus_find(const struct host_threads *threads, uint8_t cpus[HOST_CPU_BYTES])
{
    const int count = threads->count > 1 ? threads->count : 1;
    cpu_set_t *sets = calloc((size_t)count, sizeof *sets);
    if (!sets)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for the affinity of %d threads", count);
    if (count > 1)
        threads->parallel(threads->context, count, affinity_read, sets);
    else
        affinity_read(sets, 0);
    for (int i = 1; i < count; i++)
        CPU_OR(&sets[0], &sets[0], &sets[i]);
    memcpy(cpus, &sets[0], HOST_CPU_BYTES);
    free(sets);
    return TUTTI_OK;
}

static enum tutti_status identity_make(int world_size, const struct channel_address *address,
                                       struct host_identity *identity)
{
    identity->magic = HOST_MAGIC;
    identity->version = TUTTI_VERSION;
    identity->layout = LAYOUT_VERSION;
    identity->world_size = world_size;
    identity->user = geteuid();
    identity->user_namespace = process_namespace("user");
    gethostname(identity->name, sizeof identity->name - 1);
    identity->address = *address;
    if (process_boot_id(identity->boot_id, sizeof identity->boot_id))
        return TUTTI_OK;
    return error_errno("reading /proc/sys/kernel/random/boot_id, which tells whether ranks share a "
                       "host");
}

enum tutti_status host_record_make(const struct comm_config *config, int world_size,
                                   const struct channel_address *address,
                                   const struct host_threads *threads, struct host_record *record)
{
    memset(record, 0, sizeof *record);
    record->config = *config;
    const enum tutti_status status = cpus_find(threads, record->identity.cpus);
    return status == TUTTI_OK ? identity_make(world_size, address, &record->identity) : status;
}

void host_parts(const struct host_record *records, int size, const struct backend_record **parts)
{
    for (int r = 0; r < size; r++)
        parts[r] = &records[r].part;
}

/* ---- identities ------------------------------------------------------------------------------ */

static void version_text(uint32_t version, char *text, size_t size)
{
    snprintf(text, size, "%u.%u.%u", version / 10000, version / 100 % 100, version % 100);
}

static enum tutti_status versions_compare(const struct host_record *records, int rank, int size)
{
    const struct host_identity *mine = &records[rank].identity;
    char my_version[32], their_version[32];
    for (int r = 0; r < size; r++) {
        const struct host_identity *theirs = &records[r].identity;
        if (theirs->magic == mine->magic && theirs->version == mine->version &&
            theirs->layout == mine->layout)
            continue;
        version_text(mine->version, my_version, sizeof my_version);
        version_text(theirs->version, their_version, sizeof their_version);
        return error_set(TUTTI_ERR_VERSION,
                         "rank %d runs Tutti %s (layout %u), rank %d runs %s (layout %u): run one "
                         "version on all ranks",
                         rank, my_version, mine->layout, r, their_version, theirs->layout);
    }
    return TUTTI_OK;
}

/* Each rank's sockets and their directory refuse other users. */
static bool same_user(const struct host_identity *a, const struct host_identity *b)
{
    return a->user == b->user || a->user_namespace == 0 || a->user_namespace != b->user_namespace;
}

static bool same_host(const struct host_identity *a, const struct host_identity *b)
{
    return strncmp(a->boot_id, b->boot_id, sizeof a->boot_id) == 0;
}

static void hosts_find(const struct host_record *records, int size, struct hosts *hosts)
{
    hosts->count = 0;
    for (int r = 0; r < size; r++) {
        int low = 0;
        while (!same_host(&records[low].identity, &records[r].identity))
            low++;
        hosts->of[r] = low < r ? hosts->of[low] : hosts->count++;
        snprintf(hosts->names[hosts->of[r]], HOST_NAME_BYTES, "%.63s", records[low].identity.name);
    }
}

static enum tutti_status users_compare(const struct host_record *records, int rank, int size)
{
    const struct host_identity *mine = &records[rank].identity;
    for (int r = 0; r < size; r++) {
        const struct host_identity *theirs = &records[r].identity;
        if (same_host(mine, theirs) && !same_user(mine, theirs))
            return error_set(TUTTI_ERR_DECLINED,
                             "rank %d runs as user %u, rank %d as user %u: their processes do not "
                             "trust each other: start all ranks as one user",
                             rank, (unsigned)mine->user, r, (unsigned)theirs->user);
    }
    return TUTTI_OK;
}

static bool same_process(const struct host_identity *a, const struct host_identity *b)
{
    return memcmp(a->address.id, b->address.id, sizeof a->address.id) == 0;
}

struct rank_set host_remote_ranks(const struct host_record *records, int rank, int size)
{
    struct rank_set remote = rank_set_none;
    for (int r = 0; r < size; r++)
        if (!same_process(&records[r].identity, &records[rank].identity))
            rank_set_add(&remote, r);
    return remote;
}

bool host_processes(const struct host_record *records, int size, int *processes)
{
    bool shared = false;
    for (int r = 0; r < size; r++) {
        int low = 0;
        while (!same_process(&records[low].identity, &records[r].identity))
            low++;
        processes[r] = low;
        shared |= low < r;
    }
    return shared;
}

void host_addresses(const struct host_record *records, int size, struct channel_address *addresses)
{
    for (int r = 0; r < size; r++) {
        addresses[r] = records[r].identity.address;
        addresses[r].path.text[sizeof addresses[r].path.text - 1] = 0;
    }
}

enum tutti_status host_channels_check(const struct host_record *records, int rank, int size,
                                      const char *own_text)
{
    const struct rank_set remote = host_remote_ranks(records, rank, size);
    for (int r = 0; r < size && !rank_set_empty(remote); r++) {
        const int32_t status = records[r].identity.address.status;
        if (status == TUTTI_OK)
            continue;
        return r == rank
                   ? error_set(error_told(status), "%s", own_text)
                   : error_set(error_told(status),
                               "rank %d: rank %d could not take part (%s): look at its own error",
                               rank, r, tutti_status_text(error_told(status)));
    }
    return TUTTI_OK;
}

int host_cores(const struct host_record *records, int size)
{
    uint8_t together[HOST_CPU_BYTES] = {0};
    int cores = 0;
    for (int r = 0; r < size; r++) {
        uint8_t any = 0;
        for (int i = 0; i < HOST_CPU_BYTES; i++) {
            any |= records[r].identity.cpus[i];
            together[i] |= records[r].identity.cpus[i];
        }
        if (!any)
            return WORLD_RANKS;
    }
    for (int i = 0; i < HOST_CPU_BYTES; i++)
        cores += __builtin_popcount(together[i]);
    return cores;
}

/* ---- the configuration ----------------------------------------------------------------------- */

enum { VALUE_BYTES = 40 };

/* A field of the configuration. Its value is never negative. */
struct field {
    const char *what; /* its name, and where it is set */
    uint64_t mine, theirs;
    const char *zero, *other; /* what 0 and other values mean; NULL: a number */
    const char *unit;
};

static const char *value_text(const struct field *field, uint64_t value, char text[VALUE_BYTES])
{
    if (field->zero && value == 0)
        return field->zero;
    if (field->other)
        return field->other;
    snprintf(text, VALUE_BYTES, "%" PRIu64 "%s", value, field->unit ? field->unit : "");
    return text;
}

static enum tutti_status field_compare(const struct field *field, int rank, int peer)
{
    char mine[VALUE_BYTES], theirs[VALUE_BYTES];
    if (field->mine == field->theirs)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_MISMATCH,
                     "ranks disagree about the %s: rank %d has %s, rank %d has %s: set the "
                     "same on all ranks",
                     field->what, rank, value_text(field, field->mine, mine), peer,
                     value_text(field, field->theirs, theirs));
}

static const char *direct_text(int32_t direct)
{
    return direct == TUTTI_DIRECT_ON ? "on" : direct == TUTTI_DIRECT_OFF ? "off" : "auto";
}

/* One line for each field of the configuration. */
static enum tutti_status config_compare(const struct host_record *mine, int rank,
                                        const struct host_record *theirs, int peer)
{
    const struct comm_config *a = &mine->config, *b = &theirs->config;
    const uint64_t my_size = (uint64_t)mine->identity.world_size;
    const uint64_t their_size = (uint64_t)theirs->identity.world_size;
    const struct field fields[] = {
        {"world size", my_size, their_size, NULL, NULL, NULL},
        {"device (options->device)", a->device, b->device, "CPU", "CUDA", NULL},
        {"buffer size (options->buffer_size, TUTTI_BUFFER_SIZE)", a->buffer_size, b->buffer_size,
         NULL, NULL, " bytes"},
        {"arena's size (options->arena_bytes, TUTTI_ARENA_BYTES)", a->arena_bytes, b->arena_bytes,
         NULL, NULL, " bytes"},
        {"strict mode (options->strict, TUTTI_STRICT)", a->strict, b->strict, "off", "on", NULL},
        {"links (TUTTI_FORCE_FULLY_CONNECTED)", a->fully_connected, b->fully_connected, "off", "on",
         NULL},
        {"topology: the matrix in TUTTI_TOPOLOGY_FILE", a->topology_size, b->topology_size,
         "no matrix", NULL, " rows"},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        enum tutti_status status = field_compare(&fields[i], rank, peer);
        if (status != TUTTI_OK)
            return status;
    }
    if (a->algo != b->algo || strcmp(a->kernel, b->kernel) != 0)
        return error_set(TUTTI_ERR_MISMATCH,
                         "ranks disagree about the forced algorithm (options->algo, TUTTI_ALGO): "
                         "rank %d has %s%s%s, rank %d has %s%s%s: set the same on all ranks",
                         rank, tutti_algo_name((enum tutti_algo)a->algo), *a->kernel ? " by " : "",
                         a->kernel, peer, tutti_algo_name((enum tutti_algo)b->algo),
                         *b->kernel ? " by " : "", b->kernel);
    if (a->direct != b->direct)
        return error_set(TUTTI_ERR_MISMATCH,
                         "ranks disagree about direct copies (options->direct, TUTTI_DIRECT): rank "
                         "%d has %s, rank %d has %s: set the same on all ranks",
                         rank, direct_text(a->direct), peer, direct_text(b->direct));
    if (strcmp(a->fabric, b->fabric) != 0)
        return error_set(TUTTI_ERR_MISMATCH,
                         "ranks disagree about the fabric (options->fabric): rank %d has %s, rank "
                         "%d has %s: pass one of the same name on all ranks, or NULL",
                         rank, *a->fabric ? a->fabric : "none", peer,
                         *b->fabric ? b->fabric : "none");
    for (int leaf = 0; leaf < mine->identity.world_size; leaf++) {
        if (mine->config.leaf_order[leaf] != theirs->config.leaf_order[leaf])
            return error_set(TUTTI_ERR_MISMATCH,
                             "ranks disagree about the leaf order: at leaf %d rank %d has %d, rank "
                             "%d has %d: set the same on all ranks",
                             leaf, rank, mine->config.leaf_order[leaf], peer,
                             theirs->config.leaf_order[leaf]);
    }
    return TUTTI_OK;
}

enum tutti_status host_records_compare(const struct host_record *records, int rank, int size,
                                       struct hosts *hosts)
{
    enum tutti_status status = versions_compare(records, rank, size);
    for (int r = 0; r < size && status == TUTTI_OK; r++)
        status = config_compare(&records[rank], rank, &records[r], r);
    if (status == TUTTI_OK)
        status = users_compare(records, rank, size);
    if (status == TUTTI_OK)
        hosts_find(records, size, hosts);
    return status;
}
