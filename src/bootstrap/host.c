/* SPDX-License-Identifier: MIT */
#include "bootstrap/host.h"

#include "base/error.h"
#include "ipc/fork.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HOST_MAGIC UINT64_C(0x74757474692d6964)

static enum tutti_status boot_id_read(char *text, size_t size)
{
    const char *path = "/proc/sys/kernel/random/boot_id";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_errno("open(%s), which tells whether ranks share a host", path);
    ssize_t length = read(fd, text, size - 1);
    close(fd);
    if (length <= 0)
        return error_set(TUTTI_ERR_SYSTEM,
                         "%s is empty: ranks cannot tell whether they share a host", path);
    text[length] = 0;
    text[strcspn(text, "\n")] = 0;
    return TUTTI_OK;
}

static uint64_t user_namespace(void)
{
    struct stat info;
    return stat("/proc/self/ns/user", &info) == 0 ? (uint64_t)info.st_ino : 0;
}

enum tutti_status host_record_make(const struct tutti_comm *comm, const struct cuda_device *device,
                                   const struct cuda_table *table, struct host_record *record)
{
    cpu_set_t *set = (cpu_set_t *)(void *)record->cpus;
    static_assert(sizeof(cpu_set_t) == HOST_CPU_BYTES, "1024 processors");
    memset(record, 0, sizeof *record);
    record->magic = HOST_MAGIC;
    record->version = TUTTI_VERSION;
    record->layout = LAYOUT_VERSION;
    record->world_size = comm->world_size;
    record->pid = getpid();
    record->user = geteuid();
    record->user_namespace = user_namespace();
    record->config = comm->config;
    gethostname(record->name, sizeof record->name - 1);
    memcpy(record->process, fork_process_nonce(), sizeof record->process);
    if (device)
        record->device = *device;
    if (table) {
        record->table_hash = table->hash;
        memcpy(record->table_source, table->source, sizeof record->table_source);
    }
    /* Fails with more than 1024 processors: an empty mask then counts as plenty. */
    if (sched_getaffinity(0, sizeof record->cpus, set) != 0)
        memset(record->cpus, 0, sizeof record->cpus);
    return boot_id_read(record->boot_id, sizeof record->boot_id);
}

enum tutti_status host_records_take(struct host_record *records, const struct host_record *own,
                                    int rank, int size)
{
    if (memcmp(&records[rank], own, sizeof *own) != 0)
        return error_set(TUTTI_ERR_MISMATCH,
                         "rank %d finds in the store another record under its number than it set: "
                         "give each rank a number of its own",
                         rank);
    for (int r = 0; r < size; r++) {
        struct host_record *record = &records[r];
        record->boot_id[sizeof record->boot_id - 1] = 0;
        record->name[sizeof record->name - 1] = 0;
        record->device.name[sizeof record->device.name - 1] = 0;
        record->device.bus_id[sizeof record->device.bus_id - 1] = 0;
        record->table_source[sizeof record->table_source - 1] = 0;
    }
    return TUTTI_OK;
}

/* ---- the configuration ----------------------------------------------------------------------- */

enum { VALUE_BYTES = 40 };

/* A field's value in words. */
typedef void value_text_fn(uint64_t value, char text[VALUE_BYTES]);

static void number_text(uint64_t value, char text[VALUE_BYTES])
{
    snprintf(text, VALUE_BYTES, "%" PRIu64, value);
}

static void bytes_text(uint64_t value, char text[VALUE_BYTES])
{
    snprintf(text, VALUE_BYTES, "%" PRIu64 " bytes", value);
}

static void switch_text(uint64_t value, char text[VALUE_BYTES])
{
    snprintf(text, VALUE_BYTES, "%s", value ? "on" : "off");
}

static void device_text(uint64_t value, char text[VALUE_BYTES])
{
    snprintf(text, VALUE_BYTES, "%s", value == TUTTI_DEVICE_CPU ? "CPU" : "CUDA");
}

static void algo_text(uint64_t value, char text[VALUE_BYTES])
{
    snprintf(text, VALUE_BYTES, "%s", tutti_algo_name((enum tutti_algo)value));
}

static void matrix_text(uint64_t value, char text[VALUE_BYTES])
{
    if (value)
        snprintf(text, VALUE_BYTES, "one of %" PRIu64 " rows", value);
    else
        snprintf(text, VALUE_BYTES, "no matrix");
}

static void named_text(uint64_t value, char text[VALUE_BYTES])
{
    snprintf(text, VALUE_BYTES, "%s", value ? "devices" : "ranks");
}

/* One line a field of the configuration. */
static enum tutti_status config_compare(const struct host_record *mine, int rank,
                                        const struct host_record *theirs, int peer)
{
    const struct comm_config *a = &mine->config, *b = &theirs->config;
    const struct {
        const char *what; /* and where it is set */
        value_text_fn *text;
        uint64_t mine, theirs; /* none is negative */
    } fields[] = {
        {"world size", number_text, (uint64_t)mine->world_size, (uint64_t)theirs->world_size},
        {"device (options->device)", device_text, a->device, b->device},
        {"buffer size (options->buffer_size, TUTTI_BUFFER_SIZE)", bytes_text, a->buffer_size,
         b->buffer_size},
        {"strict mode (options->strict, TUTTI_STRICT)", switch_text, a->strict, b->strict},
        {"forced algorithm (options->algo, TUTTI_ALGO)", algo_text, a->algo, b->algo},
        {"links (TUTTI_FORCE_FULLY_CONNECTED)", switch_text, a->fully_connected,
         b->fully_connected},
        {"topology: the matrix in TUTTI_TOPOLOGY_FILE", matrix_text, a->topology_size,
         b->topology_size},
        {"topology: what the rows in TUTTI_TOPOLOGY_FILE stand for", named_text, a->topology_named,
         b->topology_named},
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        char my_text[VALUE_BYTES], their_text[VALUE_BYTES];
        if (fields[i].mine == fields[i].theirs)
            continue;
        fields[i].text(fields[i].mine, my_text);
        fields[i].text(fields[i].theirs, their_text);
        return error_set(TUTTI_ERR_MISMATCH,
                         "ranks disagree about the %s: rank %d has %s, rank %d has %s: set the "
                         "same on all ranks",
                         fields[i].what, rank, my_text, peer, their_text);
    }
    for (int leaf = 0; leaf < mine->world_size; leaf++) {
        if (mine->config.leaf_order[leaf] != theirs->config.leaf_order[leaf])
            return error_set(TUTTI_ERR_MISMATCH,
                             "ranks disagree about the leaf order: at leaf %d rank %d has %d, rank "
                             "%d has %d: set the same on all ranks",
                             leaf, rank, (int)mine->config.leaf_order[leaf], peer,
                             (int)theirs->config.leaf_order[leaf]);
    }
    if (mine->table_hash != theirs->table_hash)
        return error_set(TUTTI_ERR_MISMATCH,
                         "ranks disagree about the tuning table: rank %d has %.95s (%016" PRIx64
                         "), rank %d has %.95s (%016" PRIx64 "): give all ranks the same file in "
                         "TUTTI_TUNING_FILE, or none in the cache",
                         rank, mine->table_source, mine->table_hash, peer, theirs->table_source,
                         theirs->table_hash);
    return TUTTI_OK;
}

/* Two ranks of one device, by UUID, never by ordinal: CUDA_VISIBLE_DEVICES renumbers. `apart`: of
 * different processes. */
static bool pair_find(const struct host_record *records, int size, bool apart, int *low, int *high)
{
    for (*high = 0; *high < size; ++*high)
        for (*low = 0; *low < *high; ++*low) {
            const struct host_record *a = &records[*low], *b = &records[*high];
            if (memcmp(a->device.uuid, b->device.uuid, CUDA_UUID_BYTES) == 0 &&
                !(apart && memcmp(a->process, b->process, sizeof a->process) == 0))
                return true;
        }
    return false;
}

bool host_devices_overlap(const struct host_record *records, int size)
{
    int low, high;
    return pair_find(records, size, false, &low, &high);
}

bool host_processes_overlap(const struct host_record *records, int size, int *low, int *high)
{
    return pair_find(records, size, true, low, high);
}

static enum tutti_status devices_compare(const struct host_record *records, int size)
{
    int low, high, strict = 0;
    char text[2 * CUDA_UUID_BYTES + 1];
    while (strict < size && records[strict].config.overlapping)
        strict++;
    if (strict == size || !pair_find(records, size, false, &low, &high))
        return TUTTI_OK;
    for (int i = 0; i < CUDA_UUID_BYTES; i++)
        snprintf(text + 2 * i, 3, "%02x", records[high].device.uuid[i]);
    return error_set(TUTTI_ERR_DECLINED,
                     "ranks %d and %d are on one device, %.63s with UUID %s: give each rank a "
                     "device of its own, or set TUTTI_ALLOW_OVERLAPPING_DEVICES on all ranks (rank "
                     "%d has not)",
                     low, high, records[high].device.name, text, strict);
}

/* Each rank's sockets and their directory refuse other users. */
static enum tutti_status users_compare(const struct host_record *mine, int rank,
                                       const struct host_record *theirs, int peer)
{
    if (mine->user == theirs->user || mine->user_namespace == 0 ||
        mine->user_namespace != theirs->user_namespace)
        return TUTTI_OK;
    return error_set(TUTTI_ERR_DECLINED,
                     "rank %d runs as user %u, rank %d as user %u: their processes do not trust "
                     "each other: start all ranks as one user",
                     rank, (unsigned)mine->user, peer, (unsigned)theirs->user);
}

static void version_text(uint32_t version, char *text, size_t size)
{
    snprintf(text, size, "%u.%u.%u", version / 10000, version / 100 % 100, version % 100);
}

static enum tutti_status version_compare(const struct host_record *mine, int rank,
                                         const struct host_record *theirs, int peer)
{
    char my_version[32], their_version[32];
    if (theirs->magic == mine->magic && theirs->version == mine->version &&
        theirs->layout == mine->layout)
        return TUTTI_OK;
    version_text(mine->version, my_version, sizeof my_version);
    version_text(theirs->version, their_version, sizeof their_version);
    return error_set(TUTTI_ERR_VERSION,
                     "rank %d runs Tutti %s (layout %u), rank %d runs %s (layout %u): run one "
                     "version on all ranks",
                     rank, my_version, mine->layout, peer, their_version, theirs->layout);
}

enum tutti_status host_records_compare(const struct host_record *records, int rank, int size)
{
    const struct host_record *mine = &records[rank];
    enum tutti_status status = TUTTI_OK;
    for (int r = 0; r < size && status == TUTTI_OK; r++)
        status = version_compare(mine, rank, &records[r], r);
    for (int r = 0; r < size && status == TUTTI_OK; r++)
        status = config_compare(mine, rank, &records[r], r);
    for (int r = 0; r < size && status == TUTTI_OK; r++) {
        if (strncmp(mine->boot_id, records[r].boot_id, sizeof mine->boot_id) != 0)
            status =
                error_set(TUTTI_ERR_DECLINED,
                          "rank %d runs on host %.63s (boot %.39s), rank %d on host %.63s (boot "
                          "%.39s): Tutti joins the ranks of one host",
                          rank, mine->name, mine->boot_id, r, records[r].name, records[r].boot_id);
    }
    for (int r = 0; r < size && status == TUTTI_OK; r++)
        status = users_compare(mine, rank, &records[r], r);
    if (status == TUTTI_OK && mine->config.device == TUTTI_DEVICE_CUDA)
        status = devices_compare(records, size);
    return status;
}

int host_cores(const struct host_record *records, int size)
{
    int cores = 0;
    for (size_t byte = 0; byte < HOST_CPU_BYTES; byte++) {
        unsigned bits = 0;
        for (int r = 0; r < size; r++)
            bits |= records[r].cpus[byte];
        cores += __builtin_popcount(bits);
    }
    return cores > 0 ? cores : TUTTI_MAX_RANKS;
}
