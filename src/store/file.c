/* SPDX-License-Identifier: MIT */
/*
 * file:PATH, a log in the format of PyTorch's FileStore.
 *
 * The file is a row of records {u32 length, key, u32 length, value}, appended under an exclusive
 * flock and read under a shared one. A user's key is written with "/" before it; "-/KEY" deletes
 * it. Two keys without "/" belong to the store: "refcount/" counts the open handles, "cleanup/"
 * those that were closed. The last worker of all removes the file once no handle is open.
 *
 * A record may lack its end only when its writer died, because records are read and written under
 * the lock. Readers do not see such a record; the next writer cuts it off, provided that the file
 * looks like a log at all.
 */
#include "base/error.h"
#include "base/fd.h"
#include "store/buffer.h"
#include "store/file_log.h"
#include "store/map_store.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    LONGEST_NAP_NS = 5000000, /* between two checks of the file's length or lock */
    CLOSE_MS = 2000,          /* for the lock, when closing, while others write */
};

struct file {
    struct map_store base; /* the map has the keys of the file */
    pthread_mutex_t lock;  /* guards all fields below, and the flock of `fd` */
    int fd;
    off_t read_bytes; /* how much of the file the map knows */
    int world_size;   /* 0: the file stays */
    bool cut;         /* the file has lost bytes that the map knows; all calls fail from then on */
    char path[];
};

static struct file *file_of(struct map_store *base)
{
    return (struct file *)(void *)base;
}

/* ---- the log --------------------------------------------------------------------------------- */

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
        else if (!map_put(map, key, key_bytes, false, value, value_bytes))
            return FILE_LOG_NO_MEMORY;
        *used = at;
    }
    return FILE_LOG_WHOLE;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Tries to take the handle's lock, then the file's: both or none. Not by pthread_mutex_clocklock(),
 * which older ThreadSanitizers do not know. */
static bool lock_try(struct file *file, int how, enum tutti_status *status)
{
    int result;
    if (pthread_mutex_trylock(&file->lock) != 0)
        return false;
    do
        result = flock(file->fd, how | LOCK_NB);
    while (result < 0 && errno == EINTR);
    if (result == 0)
        return true;
    if (errno != EWOULDBLOCK)
        *status = error_errno("flock(%s)", file->path);
    pthread_mutex_unlock(&file->lock);
    return false;
}

/* Takes both locks. Sleeps with neither lock held: other threads and the interrupt may use this
 * handle. */
static enum tutti_status lock(struct file *file, int how, struct store_call *call)
{
    int64_t nap_ns = 20000;
    enum tutti_status status = TUTTI_OK;
    while (!lock_try(file, how, &status)) {
        if (status == TUTTI_OK && deadline_passed(call->deadline))
            return error_set(TUTTI_ERR_TIMEOUT,
                             "another process holds the lock of %s: is it stopped?", file->path);
        if (status == TUTTI_OK)
            status = store_call_check(call);
        if (status != TUTTI_OK)
            return status;
        deadline_nap(call->deadline, &nap_ns, LONGEST_NAP_NS);
    }
    return TUTTI_OK;
}

static void file_unlock(struct map_store *base)
{
    struct file *file = file_of(base);
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

/* Stores only append, and cut off the incomplete record of a dead writer, which no process has
 * read. */
static enum tutti_status cut_tell(struct file *file, off_t bytes)
{
    file->cut = true;
    return error_set(TUTTI_ERR_SYSTEM,
                     "%s was cut short while in use, to %lld bytes from %lld, so keys are lost: "
                     "find the program that writes to it, and restart all ranks with another "
                     "file",
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
        enum file_log_result result = file_log_apply(&file->base.map, data.data, data.size, &used);
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

static enum tutti_status file_lock(struct map_store *base, bool writes, struct store_call *call)
{
    struct file *file = file_of(base);
    enum tutti_status status = lock(file, writes ? LOCK_EX : LOCK_SH, call);
    if (status != TUTTI_OK)
        return status;
    status = refresh(file, writes);
    if (status != TUTTI_OK)
        file_unlock(base);
    return status;
}

static enum tutti_status append(const struct file *file, const struct buffer *record)
{
    for (size_t written = 0; written < record->size;) {
        ssize_t part = pwrite(file->fd, record->data + written, record->size - written,
                              file->read_bytes + (off_t)written);
        if (part >= 0) {
            written += (size_t)part;
        } else if (errno != EINTR) {
            const enum tutti_status status =
                error_errno("writing %zu bytes to %s%sgive the store another path", record->size,
                            file->path, error_full());
            /* If this cannot cut off the written part of the record, the next writer does. */
            const int cut = ftruncate(file->fd, file->read_bytes);
            (void)cut;
            return status;
        }
    }
    return TUTTI_OK;
}

/* Appends a record in one write and applies it to the map; the exclusive lock is held. The record
 * "-KEY", without a value, deletes KEY. */
static enum tutti_status file_put(struct map_store *base, const char *key,
                                  const struct store_bytes *value)
{
    struct file *file = file_of(base);
    const struct store_bytes bytes = value ? *value : (struct store_bytes){NULL, 0};
    const size_t minus = value ? 0 : 1, key_bytes = strlen(key);
    struct buffer record = {0};
    size_t used;
    buffer_put_u32(&record, (uint32_t)(minus + key_bytes));
    buffer_put(&record, "-", minus);
    buffer_put(&record, key, key_bytes);
    buffer_put_u32(&record, (uint32_t)bytes.size);
    buffer_put(&record, bytes.data, bytes.size);
    enum tutti_status status =
        record.failed ? error_set(TUTTI_ERR_NO_MEMORY, "a record of %zu bytes", bytes.size)
                      : append(file, &record);
    if (status == TUTTI_OK) {
        if (file_log_apply(&base->map, record.data, record.size, &used) == FILE_LOG_WHOLE)
            file->read_bytes += (off_t)record.size;
        else
            status = error_set(TUTTI_ERR_NO_MEMORY, "the contents of %s", file->path);
    }
    buffer_fini(&record);
    return status;
}

/* Returns true if the length of the file has changed, or is unknown. Takes no lock. */
static bool has_changed(const struct file *file, off_t bytes)
{
    struct stat about;
    return fstat(file->fd, &about) < 0 || about.st_size != bytes;
}

static void file_await_change(struct map_store *base, const struct store_call *call)
{
    struct file *file = file_of(base);
    const int64_t pause = store_call_pause(call);
    const off_t bytes = file->read_bytes;
    int64_t nap_ns = 20000;
    file_unlock(base);
    do
        deadline_nap(pause, &nap_ns, LONGEST_NAP_NS);
    while (!has_changed(file, bytes) && !deadline_passed(pause));
}

/* ---- opening and closing --------------------------------------------------------------------- */

static void file_free(struct file *file)
{
    fd_drop(&file->fd);
    map_fini(&file->base.map);
    pthread_mutex_destroy(&file->lock);
    free(file);
}

static enum tutti_status count_handle(struct file *file, const char *key, int64_t amount,
                                      int64_t deadline, int64_t *result)
{
    struct store_call call = {
        .op = STORE_ADD, .keys = &key, .count = 1, .amount = amount, .deadline = deadline};
    enum tutti_status status = map_store_serve(&file->base, &call);
    *result = call.number;
    return status;
}

/* Changes a count of the handles when a handle closes. A process that holds the lock for
 * STORE_GRACE_MS while the file does not change has stopped; then the count is left out. */
static enum tutti_status close_count(struct file *file, const char *key, int64_t amount,
                                     int64_t deadline, int64_t *result)
{
    enum tutti_status status;
    struct stat before;
    do {
        if (fstat(file->fd, &before) < 0)
            return error_errno("fstat(%s)", file->path);
        status = count_handle(file, key, amount, deadline_after(STORE_GRACE_MS), result);
    } while (status == TUTTI_ERR_TIMEOUT && has_changed(file, before.st_size) &&
             !deadline_passed(deadline));
    return status;
}

/* Counts itself as closed, as PyTorch's handles do. The last of all ranks removes the file: it
 * reads again how many are closed, since others counted themselves after it. Best effort: the file
 * may be gone. */
static void file_close(void *context)
{
    struct file *file = context;
    int64_t deadline = deadline_after(CLOSE_MS), closed, open = 1;
    if (close_count(file, "cleanup/", 1, deadline, &closed) == TUTTI_OK &&
        close_count(file, "refcount/", -1, deadline, &open) == TUTTI_OK && file->world_size > 0 &&
        open == 0 && close_count(file, "cleanup/", 0, deadline, &closed) == TUTTI_OK &&
        closed >= file->world_size)
        unlink(file->path);
    file_free(file);
}

/* A link is not followed, because the user that made it would choose the file. */
static enum tutti_status open_failed(const char *path)
{
    if (errno != ELOOP)
        return error_errno("open(%s)%sgive the store another path", path, error_full());
    return error_set(TUTTI_ERR_SYSTEM,
                     "%s is a symbolic link: give the path of the file itself, in a folder where "
                     "nobody else can make links",
                     path);
}

/* A user that may write to the file may tell the ranks anything. */
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

static enum tutti_status make_url(const struct file *file, char **url)
{
    char *path = realpath(file->path, NULL), size[32] = "";
    if (file->world_size)
        snprintf(size, sizeof size, "?world_size=%d", file->world_size);
    const bool made = path && asprintf(url, "file:%s%s", path, size) >= 0;
    free(path);
    return made ? TUTTI_OK : error_errno("the absolute path of %s", file->path);
}

enum tutti_status file_open(const struct store_url *url, int64_t timeout_ms, tutti_store_t **store)
{
    static const struct map_store_ops ops = {file_lock, file_unlock, file_put, file_await_change};
    static const struct store_kind kind = {.serve = map_store_serve, .close = file_close};
    int64_t handles;
    char *text = NULL;
    struct stat about;
    struct file *self = calloc(1, sizeof *self + strlen(url->text) + 1);
    if (!self)
        return error_errno("opening a file store");
    self->base.ops = &ops;
    strcpy(self->path, url->text);
    self->world_size = url->world_size;
    pthread_mutex_init(&self->lock, NULL);
    self->fd = fd_lift(
        open(self->path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0600));
    enum tutti_status status = TUTTI_OK;
    if (self->fd < 0 || fstat(self->fd, &about) < 0)
        status = open_failed(self->path);
    else
        status = file_check_owner(self->path, &about);
    if (status == TUTTI_OK)
        status = count_handle(self, "refcount/", 1, deadline_after(timeout_ms), &handles);
    if (status == TUTTI_OK)
        status = make_url(self, &text);
    if (status != TUTTI_OK) {
        file_free(self);
        return status;
    }
    return store_create(&kind, self, timeout_ms, text, store);
}
