/* SPDX-License-Identifier: MIT */
#include "ipc/segment.h"

#include "base/error.h"
#include "base/fd.h"
#include "base/order.h"
#include "ipc/memory_limit.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008U /* Linux 6.3 */
#endif

enum {
    SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
    NAME_BYTES = 128,
    SMALL_BYTES = 1 << 20,
    PLACED_BYTES = 128 << 10, /* longer segments lie where reserve() says */
};
/* How many bytes are allocated at a time. The limit is read before each step, so ranks that start
 * together see each other's share. */
static const uint64_t SLICE_BYTES = UINT64_C(256) << 20;

/* Whole pages, at least one; 0 if the size cannot be represented. */
static size_t round_to_pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    if (bytes == 0)
        return page;
    return bytes > (size_t)INT64_MAX - page ? 0 : (bytes + page - 1) / page * page;
}

/* Reserves addresses for `bytes` bytes, so that no two of 128 successive segments of this process
 * lie at the same multiple of 2 MiB modulo 256 MiB (segment.h says why); NULL if there are none.
 * The hash combines each of the lower eight bits with one of the upper eight. Multiples of 2 MiB
 * leave the lower bits of equal offsets equal, so the upper ones always differ, and huge pages fit.
 */
static void *reserve(size_t bytes)
{
    static uint32_t reserved;
    const size_t step = (size_t)2 << 20, period = (size_t)256 << 20;
    size_t colour = order_fetch_add_u32(&reserved, 1) * step % period;
    unsigned char *all =
        mmap(NULL, bytes + period, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED)
        return NULL;
    size_t before = (colour - (uintptr_t)all) % period, after = period - before;
    if (before > 0)
        munmap(all, before);
    munmap(all + before + bytes, after);
    return all + before;
}

/* Maps the first `part` of `bytes` bytes, at addresses reserved for all of them. */
static enum tutti_status map_shared(int fd, size_t bytes, size_t part, struct segment *segment)
{
    void *reserved = bytes > PLACED_BYTES || part < bytes ? reserve(bytes) : NULL;
    if (!reserved && part < bytes)
        return error_errno("cannot reserve addresses for %zu bytes of shared memory; see ulimit -v",
                           bytes);
    void *base = mmap(reserved, part, PROT_READ | PROT_WRITE,
                      MAP_SHARED | (reserved ? MAP_FIXED : 0), fd, 0);
    if (base == MAP_FAILED) {
        enum tutti_status status =
            error_errno("cannot map %zu bytes of shared memory; see ulimit -v", bytes);
        if (reserved)
            munmap(reserved, bytes);
        return status;
    }
    if (madvise(base, bytes, MADV_DONTFORK) != 0) {
        enum tutti_status status = error_errno("madvise(MADV_DONTFORK) on shared memory");
        munmap(base, bytes);
        return status;
    }
    *segment = (struct segment){.base = base, .bytes = bytes};
    return TUTTI_OK;
}

/* Gives the file its size, `asked` in whole pages, and all its pages. */
static enum tutti_status allocate(int fd, size_t asked, size_t bytes)
{
    /* Past this limit the kernel sends SIGXFSZ instead of an error. */
    struct rlimit limit;
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur < bytes)
        return error_set(TUTTI_ERR_NO_MEMORY,
                         "cannot allocate %zu bytes of shared memory: the file size limit "
                         "(ulimit -f) is %" PRIu64 " bytes",
                         asked, (uint64_t)limit.rlim_cur);
    for (uint64_t done = 0; done < bytes;) {
        char name[NAME_BYTES];
        /* Small segments ignore the limit, as other allocations do. */
        uint64_t left = bytes < SMALL_BYTES ? bytes : memory_limit(name, sizeof name);
        if (bytes - done > left)
            return error_set(TUTTI_ERR_NO_MEMORY,
                             "cannot allocate %zu bytes of shared memory: %s has %" PRIu64
                             " bytes left; ask for less or free some",
                             asked, name, left + done);
        uint64_t slice = bytes - done < SLICE_BYTES ? bytes - done : SLICE_BYTES;
        if (fallocate(fd, 0, (off_t)done, (off_t)slice) != 0) {
            if (errno == EINTR)
                continue;
            if (errno == ENOSPC || errno == EFBIG)
                errno = ENOMEM;
            const int code = errno;
            left = memory_limit(name, sizeof name);
            errno = code;
            return error_errno("cannot allocate %zu bytes of shared memory; %s has %" PRIu64
                               " bytes left; ask for less or free some",
                               asked, name, left + done);
        }
        done += slice;
    }
    return TUTTI_OK;
}

/* Says why memfd_create() failed. */
static enum tutti_status refused_memfd(const char *label)
{
    if (errno == EPERM || errno == EACCES || errno == ENOSYS)
        return error_errno("memfd_create() is blocked, and all shared memory needs it: allow it "
                           "in the seccomp profile of the container or service (Docker: "
                           "--security-opt seccomp=PROFILE)");
    return error_errno("cannot make the memory file \"%s\"; see ulimit -n, and whether memory is "
                       "left",
                       label);
}

enum tutti_status segment_create(const char *label, size_t bytes, struct segment *segment, int *fd)
{
    enum tutti_status status;
    size_t rounded = round_to_pages(bytes);
    *segment = (struct segment){0};
    *fd = -1;
    if (rounded == 0)
        return error_set(TUTTI_ERR_NO_MEMORY,
                         "cannot allocate %zu bytes of shared memory: no file is larger than "
                         "%" PRIi64 " bytes",
                         bytes, INT64_MAX);

    int file = fd_lift(memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL));
    if (file < 0 && errno == EINVAL)
        file = fd_lift(memfd_create(label, MFD_CLOEXEC | MFD_ALLOW_SEALING));
    if (file < 0)
        return refused_memfd(label);
    status = allocate(file, bytes, rounded);
    if (status != TUTTI_OK)
        goto err_close;
    if (fcntl(file, F_ADD_SEALS, SEALS) != 0) {
        status = error_errno("cannot seal shared memory \"%s\"", label);
        goto err_close;
    }
    status = map_shared(file, rounded, rounded, segment);
    if (status != TUTTI_OK)
        goto err_close;
    *fd = file;
    return TUTTI_OK;

err_close:
    close(file);
    return status;
}

enum tutti_status segment_map(int fd, size_t bytes, struct segment *segment)
{
    return segment_map_part(fd, bytes, bytes, segment);
}

enum tutti_status segment_map_part(int fd, size_t bytes, size_t part, struct segment *segment)
{
    size_t rounded = round_to_pages(bytes);
    *segment = (struct segment){0};

    /* Only a memfd that was made for sealing can have these three seals. F_GET_SEALS fails for
     * other files, or returns F_SEAL_SEAL alone. */
    int seals = fcntl(fd, F_GET_SEALS);
    if (seals < 0 || (seals & SEALS) != SEALS)
        return error_set(TUTTI_ERR_INVALID,
                         "descriptor %d is not a sealed memfd (seals %#x, needed %#x): a peer sent "
                         "something other than a segment",
                         fd, seals < 0 ? 0U : (unsigned)seals, (unsigned)SEALS);
    int flags = fcntl(fd, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) != O_RDWR ||
        (seals & (F_SEAL_WRITE | F_SEAL_FUTURE_WRITE)) != 0)
        return error_set(TUTTI_ERR_INVALID, "descriptor %d is a segment that cannot be written",
                         fd);
    struct stat info;
    if (fstat(fd, &info) != 0)
        return error_errno("fstat of a peer's segment");
    if (rounded == 0 || (uint64_t)info.st_size != rounded)
        return error_set(TUTTI_ERR_INVALID, "a peer's segment has %" PRIi64 " bytes, expected %zu",
                         (int64_t)info.st_size, rounded);
    return map_shared(fd, rounded, round_to_pages(part), segment);
}

void segment_nodes(const void *const *pages, int count, int *nodes)
{
    /* Without nodes to move to, the call says where the pages are. */
    const bool told = syscall(SYS_move_pages, 0, (unsigned long)count, pages, NULL, nodes, 0) == 0;
    for (int i = 0; i < count; i++)
        nodes[i] = told && nodes[i] >= 0 ? nodes[i] : -1;
}

void segment_unmap(struct segment *segment)
{
    if (segment->base)
        munmap(segment->base, segment->bytes);
    *segment = (struct segment){0};
}
