/* SPDX-License-Identifier: MIT */
/*
 * What ranks leave for each other in the store, while they meet as a communicator, as a group of
 * symmetric memory, or to shrink. The store says for the peers what this rank said of itself, with
 * the input's changes: byte 0 chooses who meets, each five bytes after it one change. No peer is
 * there, so nobody may believe to have met one; whatever comes, the call ends with a message.
 */
#include "base/error.h"
#include "bootstrap/host.h"
#include "bootstrap/meet_internal.h"
#include "fuzz.h"
#include "tutti/recovery.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    MOST_BYTES = 16384, /* of a value: a topology is 9 KiB */
    MOST_KEYS = 256,
    MOST_ANSWERS = 400, /* then the store is gone */
    WAIT_MS = 5,
    CHANGE_BYTES = 5, /* which answer, what, where (2), with what */
};

enum change { FLIP, WRITE, CUT, LENGTHEN, ABSENT, GONE, WIPE, WRITE_WORD, CHANGES };

struct kept {
    char key[MEET_KEY_BYTES + 64];
    size_t size;
    uint8_t *value;
};

static struct {
    const uint8_t *changes;
    size_t change_count;
    int answers;
    int rank;
    int size;
    int64_t count;
    char token[MEET_TOKEN_BYTES]; /* of this rank */
    const uint8_t *record;        /* that it gives with its answer; NULL: none yet */
    size_t record_bytes;
    struct kept kept[MOST_KEYS];
    int kept_count;
} store;

/* ---- what the peers would say ---------------------------------------------------------------- */

static struct kept *find(const char *key)
{
    for (int i = store.kept_count; i-- > 0;)
        if (strcmp(store.kept[i].key, key) == 0)
            return &store.kept[i];
    return NULL;
}

static size_t say(uint8_t *value, const void *bytes, size_t size)
{
    memcpy(value, bytes, size);
    return size;
}

/* The value of a key that a peer sets; false if none would. */
static bool imagine(const char *key, uint8_t *value, size_t *size)
{
    char own[MEET_KEY_BYTES + 64];
    const char *last = strrchr(key, '/');
    const struct kept *kept;
    if (strstr(key, "/join/") || strstr(key, "/answer/")) {
        *size = say(value, &(struct meet_join){.token = "a", .size = store.size},
                    sizeof(struct meet_join));
        if (strstr(key, "/answer/")) /* to rank 0, whose record is not known */
            *size += sizeof(struct host_record);
    } else if (strstr(key, "/go/")) {
        struct meet_result result = {.meeting.generation = 7};
        result.tokens[store.rank] = meet_token_half(store.token);
        *size = say(value, &result, sizeof result);
        for (int r = 0; r < store.size && store.record; r++)
            *size += say(value + *size, store.record, store.record_bytes);
    } else {
        snprintf(own, sizeof own, "%.*s/%d", last ? (int)(last - key) : 0, key, store.rank);
        if (!(kept = find(own)))
            return false;
        *size = say(value, kept->value, kept->size);
    }
    return true;
}

static void change(enum change what, size_t at, uint8_t with, uint8_t *value, size_t *size,
                   enum tutti_status *status)
{
    size_t place = *size ? at % *size : 0;
    switch (what) {
    case FLIP:
        value[place] ^= with;
        break;
    case WRITE:
        value[place] = with;
        break;
    case CUT:
        *size = place;
        break;
    case LENGTHEN:
        *size = *size + with < MOST_BYTES ? *size + with : MOST_BYTES;
        break;
    case ABSENT:
        *status = TUTTI_ERR_TIMEOUT;
        break;
    case GONE:
        *status = TUTTI_ERR_SYSTEM;
        break;
    case WIPE:
        memset(value + place, with, *size - place);
        break;
    case WRITE_WORD:
        memset(value + place / 4 * 4, with, 4);
        break;
    case CHANGES:
        break;
    }
}

/* Each answer of the store, changed as the input says. */
static enum tutti_status answer(uint8_t *value, size_t *size)
{
    enum tutti_status status = store.answers < MOST_ANSWERS ? TUTTI_OK : TUTTI_ERR_SYSTEM;
    for (size_t i = 0; i < store.change_count; i++) {
        const uint8_t *one = store.changes + i * CHANGE_BYTES;
        if (one[0] == (store.answers & 255))
            change((enum change)(one[1] % CHANGES), (size_t)one[2] | (size_t)one[3] << 8, one[4],
                   value, size, &status);
    }
    store.answers++;
    return status == TUTTI_OK ? status : error_set(status, "the store of a fuzzer");
}

static enum tutti_status look(const char *key, uint8_t *value, size_t *size)
{
    const struct kept *kept = find(key);
    memset(value, 0, MOST_BYTES);
    *size = 0;
    if (kept)
        *size = say(value, kept->value, kept->size);
    else if (!imagine(key, value, size))
        return error_set(TUTTI_ERR_TIMEOUT, "no peer would set %s", key);
    return answer(value, size);
}

/* ---- the store's calls ----------------------------------------------------------------------- */

static enum tutti_status set(void *context, const char *key, const void *value, size_t size)
{
    struct kept *kept = &store.kept[store.kept_count];
    (void)context;
    if (store.kept_count == MOST_KEYS)
        return error_set(TUTTI_ERR_SYSTEM, "the store of a fuzzer is full");
    fuzz_check(strlen(key) < sizeof kept->key && size + 256 <= MOST_BYTES);
    kept->value = malloc(size + 1);
    fuzz_check(kept->value != NULL);
    if (size)
        memcpy(kept->value, value, size);
    kept->size = size;
    strcpy(kept->key, key);
    store.kept_count++;
    if (strstr(key, "/answer/")) {
        store.record = kept->value + sizeof(struct meet_join);
        store.record_bytes = size - sizeof(struct meet_join);
    }
    if (strstr(key, "/join/") && size == sizeof(struct meet_join))
        memcpy(store.token, kept->value + offsetof(struct meet_join, token), sizeof store.token);
    return TUTTI_OK;
}

static void copy_out(const uint8_t *from, size_t bytes, void *value, size_t capacity, size_t *size)
{
    *size = bytes;
    if (capacity && bytes)
        memcpy(value, from, bytes < capacity ? bytes : capacity);
}

static enum tutti_status get(void *context, const char *key, int64_t timeout_ms, void *value,
                             size_t capacity, size_t *size)
{
    static uint8_t bytes[MOST_BYTES];
    size_t found;
    (void)context, (void)timeout_ms;
    enum tutti_status status = look(key, bytes, &found);
    if (status == TUTTI_OK)
        copy_out(bytes, found, value, capacity, size);
    return status;
}

static enum tutti_status wait(void *context, const char *const *keys, size_t count,
                              int64_t timeout_ms)
{
    static uint8_t bytes[MOST_BYTES];
    enum tutti_status status = TUTTI_OK;
    size_t size;
    (void)context, (void)timeout_ms;
    for (size_t i = 0; i < count && status == TUTTI_OK; i++)
        status = look(keys[i], bytes, &size);
    return status;
}

static enum tutti_status add(void *context, const char *key, int64_t amount, int64_t *result)
{
    uint8_t bytes[MOST_BYTES] = {0}; /* what is longer than a number */
    size_t size = sizeof *result;
    (void)context, (void)key;
    store.count += amount;
    memcpy(bytes, &store.count, sizeof store.count);
    enum tutti_status status = answer(bytes, &size);
    memcpy(result, bytes, sizeof *result);
    return status;
}

static enum tutti_status check(void *context, const char *const *keys, size_t count, bool *exists)
{
    enum tutti_status status = wait(context, keys, count, 0);
    *exists = status == TUTTI_OK;
    return status == TUTTI_ERR_TIMEOUT ? TUTTI_OK : status;
}

static enum tutti_status compare_set(void *context, const char *key, const void *expected,
                                     size_t expected_size, const void *desired, size_t desired_size,
                                     void *value, size_t capacity, size_t *size)
{
    (void)expected, (void)expected_size;
    enum tutti_status status = find(key) ? TUTTI_OK : set(context, key, desired, desired_size);
    return status == TUTTI_OK ? get(context, key, 0, value, capacity, size) : status;
}

static enum tutti_status delete_key(void *context, const char *key, bool *deleted)
{
    (void)context, (void)key;
    *deleted = false;
    return TUTTI_OK;
}

static enum tutti_status num_keys(void *context, int64_t *count)
{
    (void)context;
    *count = store.kept_count;
    return TUTTI_OK;
}

static tutti_store_t *store_begin(int rank, int size)
{
    const struct tutti_store_ops ops = {.struct_size = sizeof ops,
                                        .set = set,
                                        .get = get,
                                        .wait = wait,
                                        .add = add,
                                        .check = check,
                                        .compare_set = compare_set,
                                        .delete_key = delete_key,
                                        .num_keys = num_keys};
    tutti_store_t *handle;
    store.rank = rank;
    store.size = size;
    fuzz_check(tutti_store_from_ops(&ops, NULL, &handle) == TUTTI_OK);
    return handle;
}

static void store_end(tutti_store_t *handle)
{
    tutti_store_close(handle);
    for (int i = 0; i < store.kept_count; i++)
        free(store.kept[i].value);
    memset(&store, 0, sizeof store);
}

/* ---- who meets ------------------------------------------------------------------------------- */

static void check_failed(enum tutti_status status)
{
    const char *text = tutti_last_error();
    fuzz_check(status != TUTTI_OK && text && *text);
}

static void meet_communicator(int rank, int size)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .timeout_ms = WAIT_MS};
    tutti_store_t *handle = store_begin(rank, size);
    tutti_comm_t *comm;
    check_failed(tutti_comm_create(handle, rank, size, &options, &comm));
    fuzz_check(comm == NULL);
    store_end(handle);
}

/* A path that names a file in memory. */
static void meet_with_topology(int rank, int size)
{
    static const char text[] = "tutti-topology 1\nranks 3\nX 1 1\n1 X 1\n1 1 X\n";
    char path[64];
    int fd = memfd_create("topology", MFD_CLOEXEC);
    fuzz_check(fd >= 0 && write(fd, text, sizeof text - 1) == sizeof text - 1);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    setenv("TUTTI_TOPOLOGY_FILE", path, 1);
    (void)size;
    meet_communicator(rank, 3);
    unsetenv("TUTTI_TOPOLOGY_FILE");
    close(fd);
}

static void meet_symmetric(int rank, int size)
{
    tutti_store_t *handle = store_begin(rank, size);
    tutti_symm_group_t *group;
    void *buffer;
    fuzz_check(tutti_symm_group("fuzz", rank, size, handle, &group) == TUTTI_OK);
    fuzz_check(tutti_symm_alloc(group, TUTTI_DEVICE_CPU, 4096, &buffer) == TUTTI_OK);
    check_failed(tutti_symm_rendezvous(buffer, WAIT_MS, NULL));
    tutti_symm_group_destroy(group);
    store_end(handle);
}

/* A communicator of one rank is well, and shrinks to itself unless the store has other ideas. */
static void meet_survivors(int rank, int size)
{
    const struct tutti_shrink_options options = {.struct_size = sizeof options,
                                                 .timeout_ms = WAIT_MS};
    int new_rank = -1;
    struct tutti_shrink_result result = {
        .struct_size = sizeof result, .capacity = 1, .new_ranks = &new_rank};
    tutti_store_t *memory, *handle;
    tutti_comm_t *comm, *shrunk;
    (void)rank, (void)size;
    fuzz_check(tutti_store_open("memory:fuzz", WAIT_MS, &memory) == TUTTI_OK);
    fuzz_check(tutti_comm_create(memory, 0, 1, NULL, &comm) == TUTTI_OK);
    handle = store_begin(0, 1);
    enum tutti_status status = tutti_comm_shrink(comm, handle, &options, &shrunk, &result);
    fuzz_check((status == TUTTI_OK) == (shrunk != NULL));
    if (status == TUTTI_OK)
        fuzz_check(result.rank == 0 && result.world_size == 1 && new_rank == 0);
    else
        check_failed(status);
    tutti_comm_destroy(shrunk);
    tutti_comm_destroy(comm);
    tutti_store_close(memory);
    store_end(handle);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static void (*const meetings[])(int rank, int size) = {meet_communicator, meet_with_topology,
                                                           meet_symmetric, meet_survivors};
    if (size < 1)
        return 0;
    int before = fuzz_lowest_free(), ranks = 2 + (bytes[0] >> 2 & 1),
        rank = (bytes[0] >> 3) % ranks;
    store.changes = bytes + 1;
    store.change_count = (size - 1) / CHANGE_BYTES;
    meetings[bytes[0] % 4](rank, ranks);
    fuzz_check(fuzz_lowest_free() == before);
    return 0;
}
