/* SPDX-License-Identifier: MIT */
/*
 * file:PATH, a log in the format of PyTorch's FileStore.
 *
 * The file is a row of records {u32 length, key, u32 length, value}, appended under an exclusive
 * flock and read under a shared one. A user's key is written with "/" before it; "-/KEY" deletes
 * it. Two keys without "/" belong to the store: "refcount/" counts the open handles, "cleanup/"
 * those that were closed. PyTorch's last worker removes the file when nobody holds it.
 *
 * A record may lack its end only when its writer died, because records are read and written under
 * the lock. Readers do not see such a record; the next writer cuts it off, provided that the file
 * looks like a log at all.
 */
#include "store/store.h"

#include "base/error.h"
#include "store/buffer.h"
#include "store/file_log.h"
#include "store/nap.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LONGEST_NAP_NS = 5000000, /* between two looks at the file; a look is one fstat() */
    CLOSE_MS = 2000,          /* for the lock, when closing, while others write */
};

struct file {
    pthread_mutex_t lock; /* over all below, and over the flock, which is the descriptor's */
    int fd;
    off_t read_bytes; /* how much of the file the map knows */
    struct map map;   /* keys as the file has them */
    int world_size;   /* 0: nobody removes the file */
    bool cut;         /* the file has lost bytes that the map knows: nothing counts any more */
    char path[];
};

/* ---- the log ----------------------------------------------------------------------------------
 */

static bool take_string(const uint8_t *data, size_t size, size_t *at, const uint8_t **text,
                        uint32_t *length)
{
    if (size - *at < sizeof *length)
        return false;
    memcpy(length, data + *at, sizeof *length);
    if (size - *at - sizeof *length < *length)
        return false;
    *text = data + *at + sizeof *length;
    *at += sizeof *length + *length;
    return true;
}

/* Whether the bytes after the last whole record can be the start of one. */
static bool plausible(const uint8_t *data, size_t size)
{
    uint32_t length;
    size_t at = 0;
    const uint8_t *key;
    if (size < sizeof length)
        return true;
    memcpy(&length, data, sizeof length);
    if (length > FILE_LOG_KEY_BYTES)
        return false;
    if (!take_string(data, size, &at, &key, &length))
        return true;
    return file_log_key_known(key, length);
}

bool file_log_key_known(const uint8_t *key, size_t bytes)
{
    static const char *const own[] = {"refcount/", "cleanup/"};
    if (bytes > 0 && key[0] == '/')
        return true;
    if (bytes > 1 && key[0] == '-')
        return file_log_key_known(key + 1, bytes - 1);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (bytes == strlen(own[i]) && memcmp(key, own[i], bytes) == 0)
            return true;
    return false;
}

enum file_log_result file_log_apply(struct map *map, const uint8_t *data, size_t size, size_t *used)
{
    for (*used = 0; *used < size;) {
        size_t at = *used;
        const uint8_t *key, *value;
        uint32_t key_bytes, value_bytes;
        if (!take_string(data, size, &at, &key, &key_bytes) ||
            !take_string(data, size, &at, &value, &value_bytes))
            return plausible(data + *used, size - *used) ? FILE_LOG_CUT : FILE_LOG_FOREIGN;
        if (!file_log_key_known(key, key_bytes))
            return FILE_LOG_FOREIGN;
        if (key[0] == '-')
            map_erase(map, key + 1, key_bytes - 1);
        else if (!map_set(map, key, key_bytes, value, value_bytes))
            return FILE_LOG_NO_MEMORY;
        *used = at;
    }
    return FILE_LOG_WHOLE;
}

/* ---- the file ---------------------------------------------------------------------------------
 */

static enum tutti_status lock_timed_out(const struct file *file)
{
    return error_set(TUTTI_ERR_TIMEOUT, "another process holds the lock of %s: is it stopped?",
                     file->path);
}

/* Tries to take our own lock, then the file's: both or none. Not by pthread_mutex_clocklock(),
 * which older ThreadSanitizers do not know. */
static enum tutti_status lock_try(struct file *file, int how, bool *taken)
{
    *taken = pthread_mutex_trylock(&file->lock) == 0;
    if (!*taken)
        return TUTTI_OK;
    while (flock(file->fd, how | LOCK_NB) < 0) {
        if (errno == EINTR)
            continue;
        enum tutti_status status =
            errno == EWOULDBLOCK ? TUTTI_OK : error_errno("flock(%s)", file->path);
        pthread_mutex_unlock(&file->lock);
        *taken = false;
        return status;
    }
    return TUTTI_OK;
}

/* Waits with neither lock held, so that others of this handle may ask for theirs, and whoever is to
 * interrupt the wait may use it, too. */
static enum tutti_status lock(struct file *file, int how, const struct store_limit *limit)
{
    int64_t nap_ns = 20000;
    for (;;) {
        bool taken;
        enum tutti_status status = lock_try(file, how, &taken);
        if (status != TUTTI_OK || taken)
            return status;
        if (deadline_passed(limit->deadline))
            return lock_timed_out(file);
        status = store_limit_ask(limit);
        if (status != TUTTI_OK)
            return status;
        nap(limit->deadline, &nap_ns, LONGEST_NAP_NS);
    }
}

static void unlock(struct file *file)
{
    flock(file->fd, LOCK_UN);
    pthread_mutex_unlock(&file->lock);
}

static enum tutti_status read_at(struct file *file, struct buffer *data, size_t size)
{
    uint8_t *room = buffer_reserve(data, size);
    if (!room)
        return error_set(TUTTI_ERR_NO_MEMORY, "reading %zu bytes of %s", size, file->path);
    while (data->size < size) {
        ssize_t bytes = pread(file->fd, room + data->size, size - data->size,
                              file->read_bytes + (off_t)data->size);
        if (bytes < 0 && errno == EINTR)
            continue;
        if (bytes < 0)
            return error_errno("reading %s", file->path);
        if (bytes == 0)
            break;
        data->size += (size_t)bytes;
    }
    return TUTTI_OK;
}

/* No user of the log takes anything away but what a dead writer has left, which nobody has read. */
static enum tutti_status cut_tell(struct file *file, off_t bytes)
{
    file->cut = true;
    return error_set(TUTTI_ERR_SYSTEM,
                     "%s was cut short while in use: it has %lld bytes where it had %lld, and keys "
                     "are lost: see which program writes to it, and start all ranks anew with "
                     "another file",
                     file->path, (long long)bytes, (long long)file->read_bytes);
}

/* Learns what others appended. A flock is held; `writable` says that it is the exclusive one. */
static enum tutti_status refresh(struct file *file, bool writable)
{
    struct stat about;
    struct buffer data = {0};
    size_t used;
    if (fstat(file->fd, &about) < 0)
        return error_errno("fstat(%s)", file->path);
    if (file->cut || about.st_size < file->read_bytes)
        return cut_tell(file, about.st_size);
    if (about.st_size == file->read_bytes)
        return TUTTI_OK;
    enum tutti_status status = read_at(file, &data, (size_t)(about.st_size - file->read_bytes));
    if (status == TUTTI_OK) {
        enum file_log_result result = file_log_apply(&file->map, data.data, data.size, &used);
        file->read_bytes += (off_t)used;
        if (result == FILE_LOG_NO_MEMORY)
            status = error_set(TUTTI_ERR_NO_MEMORY, "the contents of %s", file->path);
        else if (result == FILE_LOG_FOREIGN)
            status = error_set(TUTTI_ERR_INVALID,
                               "%s is no FileStore log at byte %lld: give another path, or "
                               "remove the file",
                               file->path, (long long)file->read_bytes);
        else if (result == FILE_LOG_CUT && writable && ftruncate(file->fd, file->read_bytes) < 0)
            status = error_errno("cutting a dead writer's record off %s", file->path);
    }
    buffer_fini(&data);
    return status;
}

/* Begins the use of the file: both locks, and the latest contents. unlock() ends it. */
static enum tutti_status begin(struct file *file, int how, const struct store_limit *limit)
{
    enum tutti_status status = lock(file, how, limit);
    if (status != TUTTI_OK)
        return status;
    status = refresh(file, how == LOCK_EX);
    if (status != TUTTI_OK)
        unlock(file);
    return status;
}

/* Appends a record in one write and applies it to the map; the exclusive lock is held. */
static enum tutti_status append(struct file *file, const char *prefix, const char *key,
                                const void *value, size_t size)
{
    struct buffer record = {0};
    size_t prefix_bytes = strlen(prefix), key_bytes = strlen(key), used;
    enum tutti_status status = TUTTI_OK;
    buffer_put_u32(&record, (uint32_t)(prefix_bytes + key_bytes));
    buffer_put(&record, prefix, prefix_bytes);
    buffer_put(&record, key, key_bytes);
    buffer_put_u32(&record, (uint32_t)size);
    buffer_put(&record, value, size);
    if (record.failed) {
        status = error_set(TUTTI_ERR_NO_MEMORY, "a record of %zu bytes", size);
        goto err_record;
    }
    for (size_t written = 0; written < record.size;) {
        ssize_t bytes = pwrite(file->fd, record.data + written, record.size - written,
                               file->read_bytes + (off_t)written);
        if (bytes < 0 && errno == EINTR)
            continue;
        if (bytes < 0) {
            status = error_errno("writing %zu bytes to %s%sgive the store another path",
                                 record.size, file->path, error_full());
            /* Nobody may see half a record; if even this fails, the next writer does it. */
            if (ftruncate(file->fd, file->read_bytes) < 0)
                goto err_record;
            goto err_record;
        }
        written += (size_t)bytes;
    }
    if (file_log_apply(&file->map, record.data, record.size, &used) == FILE_LOG_WHOLE)
        file->read_bytes += (off_t)record.size;
    else
        status = error_set(TUTTI_ERR_NO_MEMORY, "the contents of %s", file->path);
err_record:
    buffer_fini(&record);
    return status;
}

/* ---- operations -------------------------------------------------------------------------------
 */

static struct map_entry *find(const struct file *file, const char *prefix, const char *key)
{
    char joined[STORE_KEY_BYTES + 16];
    int length = snprintf(joined, sizeof joined, "%s%s", prefix, key);
    return map_find(&file->map, joined, (size_t)length);
}

static const char *missing(const struct file *file, const char *const *keys, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (!find(file, "/", keys[i]))
            return keys[i];
    return NULL;
}

static void copy_out(const void *from, size_t bytes, void *value, size_t capacity, size_t *size)
{
    *size = bytes;
    if (bytes > 0 && capacity > 0)
        memcpy(value, from, bytes < capacity ? bytes : capacity);
}

/* Whether the file is no longer as long as it was when somebody looked for his keys: cheap, and
 * takes no lock. */
static bool has_news(const struct file *file, off_t seen_bytes)
{
    struct stat about;
    return fstat(file->fd, &about) < 0 || about.st_size != seen_bytes;
}

/* The file of the handle that is called, which is an operation's context. */
static struct file *file_of(const void *context)
{
    return ((const tutti_store_t *)context)->context;
}

/* Begins an operation that waits for nothing but the locks. */
static enum tutti_status begin_call(const void *context, int how)
{
    const struct store_limit limit = store_limit(context, 0);
    return begin(file_of(context), how, &limit);
}

/* Returns with the file in use (see begin()) and all keys there, or with an error. */
static enum tutti_status await(const void *context, const char *call, const char *const *keys,
                               size_t count, int64_t timeout_ms)
{
    struct file *file = file_of(context);
    const struct store_limit limit = store_limit(context, timeout_ms);
    int64_t nap_ns = 20000;
    for (;;) {
        enum tutti_status status = begin(file, LOCK_SH, &limit);
        if (status != TUTTI_OK)
            return status;
        const char *key = missing(file, keys, count);
        if (!key)
            return TUTTI_OK;
        off_t seen_bytes = file->read_bytes;
        unlock(file);
        do {
            if (deadline_passed(limit.deadline))
                return store_timed_out(call, key, count, timeout_ms);
            status = store_limit_ask(&limit);
            if (status != TUTTI_OK)
                return status;
            nap(limit.deadline, &nap_ns, LONGEST_NAP_NS);
        } while (!has_news(file, seen_bytes));
    }
}

static enum tutti_status file_set(void *context, const char *key, const void *value, size_t size)
{
    struct file *file = file_of(context);
    enum tutti_status status = begin_call(context, LOCK_EX);
    if (status != TUTTI_OK)
        return status;
    status = append(file, "/", key, value, size);
    unlock(file);
    return status;
}

static enum tutti_status file_get(void *context, const char *key, int64_t timeout_ms, void *value,
                                  size_t capacity, size_t *size)
{
    struct file *file = file_of(context);
    enum tutti_status status = await(context, "tutti_store_get", &key, 1, timeout_ms);
    if (status != TUTTI_OK)
        return status;
    struct map_entry *entry = find(file, "/", key);
    copy_out(entry->value, entry->value_bytes, value, capacity, size);
    unlock(file);
    return status;
}

static enum tutti_status file_wait(void *context, const char *const *keys, size_t count,
                                   int64_t timeout_ms)
{
    enum tutti_status status = await(context, "tutti_store_wait", keys, count, timeout_ms);
    if (status == TUTTI_OK)
        unlock(file_of(context));
    return status;
}

static enum tutti_status add_under(struct file *file, const char *prefix, const char *key,
                                   int64_t amount, const struct store_limit *limit, int64_t *result)
{
    char text[MAP_NUMBER_BYTES];
    int64_t sum;
    enum tutti_status status = begin(file, LOCK_EX, limit);
    if (status != TUTTI_OK)
        return status;
    if (!map_number(find(file, prefix, key), &sum) || __builtin_add_overflow(sum, amount, &sum)) {
        status = error_set(TUTTI_ERR_INVALID,
                           "tutti_store_add(%s): the value is no 64-bit decimal number, or the sum "
                           "would not be",
                           key);
    } else {
        int length = snprintf(text, sizeof text, "%" PRId64, sum);
        status = append(file, prefix, key, text, (size_t)length);
        *result = sum;
    }
    unlock(file);
    return status;
}

static enum tutti_status file_add(void *context, const char *key, int64_t amount, int64_t *result)
{
    const struct store_limit limit = store_limit(context, 0);
    return add_under(file_of(context), "/", key, amount, &limit, result);
}

static enum tutti_status file_check(void *context, const char *const *keys, size_t count,
                                    bool *exists)
{
    struct file *file = file_of(context);
    enum tutti_status status = begin_call(context, LOCK_SH);
    if (status != TUTTI_OK)
        return status;
    *exists = !missing(file, keys, count);
    unlock(file);
    return status;
}

static enum tutti_status file_compare_set(void *context, const char *key, const void *expected,
                                          size_t expected_size, const void *desired,
                                          size_t desired_size, void *value, size_t capacity,
                                          size_t *size)
{
    struct file *file = file_of(context);
    enum tutti_status status = begin_call(context, LOCK_EX);
    if (status != TUTTI_OK)
        return status;
    struct map_entry *entry = find(file, "/", key);
    if (map_entry_is(entry, expected, expected_size))
        status = append(file, "/", key, desired, desired_size);
    entry = find(file, "/", key);
    if (entry)
        copy_out(entry->value, entry->value_bytes, value, capacity, size);
    else
        copy_out(expected, expected_size, value, capacity, size);
    unlock(file);
    return status;
}

static enum tutti_status file_delete(void *context, const char *key, bool *deleted)
{
    struct file *file = file_of(context);
    enum tutti_status status = begin_call(context, LOCK_EX);
    if (status != TUTTI_OK)
        return status;
    *deleted = find(file, "/", key) != NULL;
    if (*deleted)
        status = append(file, "-/", key, NULL, 0);
    unlock(file);
    return status;
}

static enum tutti_status file_num_keys(void *context, int64_t *count)
{
    struct file *file = file_of(context);
    enum tutti_status status = begin_call(context, LOCK_SH);
    if (status != TUTTI_OK)
        return status;
    *count = (int64_t)file->map.count;
    unlock(file);
    return status;
}

/* ---- opening and closing ----------------------------------------------------------------------
 */

static void file_free(struct file *file)
{
    if (file->fd >= 0)
        close(file->fd);
    map_fini(&file->map);
    pthread_mutex_destroy(&file->lock);
    free(file);
}

/* Counts as a handle closes. Whoever holds the lock of a file that stays as it is has stopped, and
 * is not waited for. */
static enum tutti_status close_count(struct file *file, const char *key, int64_t amount,
                                     int64_t deadline, int64_t *result)
{
    enum tutti_status status;
    struct stat before;
    do {
        const struct store_limit limit = {.deadline = deadline_after(STORE_GRACE_MS)};
        if (fstat(file->fd, &before) < 0)
            return error_errno("fstat(%s)", file->path);
        status = add_under(file, "", key, amount, &limit, result);
    } while (status == TUTTI_ERR_TIMEOUT && has_news(file, before.st_size) &&
             !deadline_passed(deadline));
    return status;
}

/* Gives the place back as PyTorch's handles do; the last of all ranks removes the file. Best
 * effort: a file that is gone needs nothing. */
static void file_close(void *context)
{
    struct file *file = context;
    int64_t deadline = deadline_after(CLOSE_MS), closed, open = 1;
    if (close_count(file, "cleanup/", 1, deadline, &closed) == TUTTI_OK &&
        close_count(file, "refcount/", -1, deadline, &open) == TUTTI_OK && file->world_size > 0 &&
        closed >= file->world_size && open == 0)
        unlink(file->path);
    file_free(file);
}

/* A link is not followed: whoever made it would choose the file. */
static enum tutti_status open_failed(const char *path)
{
    if (errno != ELOOP)
        return error_errno("open(%s)%sgive the store another path", path, error_full());
    return error_set(TUTTI_ERR_SYSTEM,
                     "%s is a symbolic link: give the path of the file itself, in a folder where "
                     "nobody else can make links",
                     path);
}

/* Whoever may write to it may say anything to the ranks. */
static enum tutti_status file_check_owner(const char *path, const struct stat *about)
{
    if (!S_ISREG(about->st_mode))
        return error_set(TUTTI_ERR_INVALID, "%s is no regular file", path);
    if (about->st_uid != geteuid() && about->st_uid != 0)
        return error_set(TUTTI_ERR_SYSTEM,
                         "%s belongs to user %u, this process runs as user %u: give a path that "
                         "nobody else can create, or remove the file",
                         path, (unsigned)about->st_uid, (unsigned)geteuid());
    if (about->st_mode & (S_IWGRP | S_IWOTH))
        return error_set(TUTTI_ERR_SYSTEM,
                         "others may write to %s (mode %04o): chmod it to 0600, or remove it", path,
                         (unsigned)about->st_mode & 07777);
    return TUTTI_OK;
}

enum tutti_status file_open(const struct store_url *url, int64_t timeout_ms, tutti_store_t **store)
{
    static const struct store_ops ops = {
        .base =
            {
                .struct_size = sizeof ops.base,
                .set = file_set,
                .get = file_get,
                .wait = file_wait,
                .add = file_add,
                .check = file_check,
                .compare_set = file_compare_set,
                .delete_key = file_delete,
                .num_keys = file_num_keys,
                .close = file_close,
            },
        .bounded = true,
    };
    const struct store_limit limit = {.deadline = deadline_after(timeout_ms)};
    int64_t handles;
    char *text = NULL;
    struct stat about;
    struct file *self = calloc(1, sizeof *self + strlen(url->text) + 1);
    if (!self)
        return error_errno("opening a file store");
    strcpy(self->path, url->text);
    self->world_size = url->world_size;
    pthread_mutex_init(&self->lock, NULL);
    self->fd =
        open(self->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600);
    enum tutti_status status = TUTTI_OK;
    if (self->fd < 0 || fstat(self->fd, &about) < 0)
        status = open_failed(self->path);
    else
        status = file_check_owner(self->path, &about);
    if (status == TUTTI_OK)
        status = add_under(self, "", "refcount/", 1, &limit, &handles);
    if (status == TUTTI_OK) {
        char *path = realpath(self->path, NULL), size[32] = "";
        if (self->world_size)
            snprintf(size, sizeof size, "?world_size=%d", self->world_size);
        if (!path || asprintf(&text, "file:%s%s", path, size) < 0) {
            text = NULL;
            status = error_errno("the absolute path of %s", self->path);
        }
        free(path);
    }
    if (status != TUTTI_OK) {
        file_free(self);
        return status;
    }
    return store_create(&ops, self, timeout_ms, text, store);
}
