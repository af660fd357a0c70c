/* SPDX-License-Identifier: MIT */
/*
 * Each allocation and each system call of the library fails in turn, while something is opened,
 * used and ended: that ends with a message, or well where there is another way; no descriptor, no
 * thread and no shared mapping is left, and under AddressSanitizer no memory. The linker leads the
 * library's calls here (tests/unit/CMakeLists.txt has their names, too).
 */
#include "tutti/pg.h"
#include "tutti/recorder.h"
#include "tutti/tutti.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum {
    LEAST_TIMEOUT_MS = 300,
    MOST_TIMEOUT_MS = 60000,
    ELEMENTS = 1 << 15, /* of an operation: too many for one hop */
};

/* Time-outs of everything. Where a rank does not hear of the call that failed they are waited for;
 * where nothing was made to fail and it did not go well, one may have passed on a busy machine:
 * then they grow. */
static int64_t timeout_ms;

/* ---- turns ----------------------------------------------------------------------------------- */

/* X(name, its type, what it returns if it fails, errno then, parameters, arguments) */
#define CALL_MAP(X)                                                                                \
    X(malloc, void *, NULL, ENOMEM, (size_t size), (size))                                         \
    X(calloc, void *, NULL, ENOMEM, (size_t count, size_t size), (count, size))                    \
    X(realloc, void *, NULL, ENOMEM, (void *old, size_t size), (old, size))                        \
    X(aligned_alloc, void *, NULL, ENOMEM, (size_t at, size_t size), (at, size))                   \
    X(strdup, char *, NULL, ENOMEM, (const char *text), (text))                                    \
    X(memfd_create, int, -1, EMFILE, (const char *name, unsigned flags), (name, flags))            \
    X(mmap, void *, MAP_FAILED, ENOMEM,                                                            \
      (void *at, size_t size, int how, int flags, int fd, off_t from),                             \
      (at, size, how, flags, fd, from))                                                            \
    X(madvise, int, -1, EINVAL, (void *at, size_t size, int advice), (at, size, advice))           \
    X(fallocate, int, -1, ENOSPC, (int fd, int mode, off_t at, off_t size), (fd, mode, at, size))  \
    X(ftruncate, int, -1, EIO, (int fd, off_t size), (fd, size))                                   \
    X(fstat, int, -1, EIO, (int fd, struct stat *about), (fd, about))                              \
    X(flock, int, -1, ENOLCK, (int fd, int how), (fd, how))                                        \
    X(pread, ssize_t, -1, EIO, (int fd, void *to, size_t size, off_t at), (fd, to, size, at))      \
    X(pwrite, ssize_t, -1, ENOSPC, (int fd, const void *from, size_t size, off_t at),              \
      (fd, from, size, at))                                                                        \
    X(rename, int, -1, EACCES, (const char *from, const char *to), (from, to))                     \
    X(mkdir, int, -1, EROFS, (const char *path, mode_t mode), (path, mode))                        \
    X(fdopendir, DIR *, NULL, ENOMEM, (int fd), (fd))                                              \
    X(getrandom, ssize_t, -1, ENOSYS, (void *to, size_t size, unsigned flags), (to, size, flags))  \
    X(socket, int, -1, EMFILE, (int family, int type, int protocol), (family, type, protocol))     \
    X(bind, int, -1, EACCES, (int fd, const struct sockaddr *to, socklen_t size), (fd, to, size))  \
    X(listen, int, -1, EADDRINUSE, (int fd, int backlog), (fd, backlog))                           \
    X(accept4, int, -1, EMFILE, (int fd, struct sockaddr *from, socklen_t *size, int flags),       \
      (fd, from, size, flags))                                                                     \
    X(connect, int, -1, EACCES, (int fd, const struct sockaddr *to, socklen_t size),               \
      (fd, to, size))                                                                              \
    X(getsockname, int, -1, ENOBUFS, (int fd, struct sockaddr *own, socklen_t *size),              \
      (fd, own, size))                                                                             \
    X(getsockopt, int, -1, ENOBUFS, (int fd, int level, int name, void *to, socklen_t *size),      \
      (fd, level, name, to, size))                                                                 \
    X(getaddrinfo, int, EAI_MEMORY, ENOMEM,                                                        \
      (const char *host, const char *port, const struct addrinfo *hints, struct addrinfo **to),    \
      (host, port, hints, to))                                                                     \
    X(send, ssize_t, -1, EPIPE, (int fd, const void *from, size_t size, int flags),                \
      (fd, from, size, flags))                                                                     \
    X(recv, ssize_t, -1, ECONNRESET, (int fd, void *to, size_t size, int flags),                   \
      (fd, to, size, flags))                                                                       \
    X(sendmsg, ssize_t, -1, EPIPE, (int fd, const struct msghdr *what, int flags),                 \
      (fd, what, flags))                                                                           \
    X(recvmsg, ssize_t, -1, ENOBUFS, (int fd, struct msghdr *what, int flags), (fd, what, flags))  \
    X(poll, int, -1, ENOMEM, (struct pollfd * all, nfds_t count, int timeout),                     \
      (all, count, timeout))                                                                       \
    X(epoll_create1, int, -1, EMFILE, (int flags), (flags))                                        \
    X(epoll_ctl, int, -1, ENOSPC, (int set, int how, int fd, struct epoll_event *event),           \
      (set, how, fd, event))                                                                       \
    X(eventfd, int, -1, EMFILE, (unsigned count, int flags), (count, flags))                       \
    X(pthread_create, int, EAGAIN, EAGAIN,                                                         \
      (pthread_t * thread, const pthread_attr_t *how, void *(*fn)(void *), void *context),         \
      (thread, how, fn, context))

/* The call that fails, and how often it has been made since. */
static const char *failing;
static int fails_at, made;

static bool turn(const char *name, int code)
{
    const char *wanted = __atomic_load_n(&failing, __ATOMIC_ACQUIRE);
    if (!wanted || strcmp(wanted, name) != 0 ||
        __atomic_add_fetch(&made, 1, __ATOMIC_RELAXED) != fails_at)
        return false;
    errno = code;
    return true;
}

#define DEFINE(name, type, failure, code, parameters, arguments)                                   \
    type __real_##name parameters;                                                                 \
    type __wrap_##name parameters;                                                                 \
    type __wrap_##name parameters                                                                  \
    {                                                                                              \
        return turn(#name, code) ? failure : __real_##name arguments;                              \
    }
CALL_MAP(DEFINE)

/* All but the eight bytes of an eventfd, for which there is room. */
ssize_t __real_read(int fd, void *to, size_t size);
ssize_t __wrap_read(int fd, void *to, size_t size);
ssize_t __wrap_read(int fd, void *to, size_t size)
{
    return size != sizeof(uint64_t) && turn("read", EIO) ? -1 : __real_read(fd, to, size);
}

ssize_t __real_write(int fd, const void *from, size_t size);
ssize_t __wrap_write(int fd, const void *from, size_t size);
ssize_t __wrap_write(int fd, const void *from, size_t size)
{
    return size != sizeof(uint64_t) && turn("write", ENOSPC) ? -1 : __real_write(fd, from, size);
}

int __real_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...);
int __wrap_open(const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return turn("open", EMFILE) ? -1 : __real_open(path, flags, mode);
}

int __real_openat(int folder, const char *path, int flags, ...);
int __wrap_openat(int folder, const char *path, int flags, ...);
int __wrap_openat(int folder, const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0;
    va_end(rest);
    return turn("openat", EMFILE) ? -1 : __real_openat(folder, path, flags, mode);
}

/* pidfd_open() alone, which old kernels and seccomp lack. */
long __real_syscall(long number, ...);
long __wrap_syscall(long number, ...);
long __wrap_syscall(long number, ...)
{
    const int count = number == SYS_futex ? 6 : number == SYS_membarrier ? 3 : 2;
    long values[6] = {0};
    va_list rest;
    va_start(rest, number);
    for (int i = 0; i < count; i++)
        values[i] = va_arg(rest, long);
    va_end(rest);
    if (number == SYS_pidfd_open && turn("pidfd_open", ENOSYS))
        return -1;
    return __real_syscall(number, values[0], values[1], values[2], values[3], values[4], values[5]);
}

static const char *const calls[] = {
#define NAME(name, ...) #name,
    CALL_MAP(NAME)
#undef NAME
        "read",
    "write", "open", "openat", "pidfd_open"};

static void turns_begin(const char *name, int at)
{
    fails_at = at;
    made = 0;
    __atomic_store_n(&failing, name, __ATOMIC_RELEASE);
}

static void turns_end(void)
{
    __atomic_store_n(&failing, NULL, __ATOMIC_RELEASE);
}

/* ---- what is left ---------------------------------------------------------------------------- */

static int count_entries(const char *path)
{
    DIR *folder = opendir(path);
    int count = 0;
    while (folder && readdir(folder))
        count++;
    closedir(folder);
    return count;
}

/* Of shared memory. */
static int count_mappings(void)
{
    char line[1024];
    int count = 0;
    FILE *file = fopen("/proc/self/maps", "re");
    while (file && fgets(line, sizeof line, file))
        count += strstr(line, "/memfd:") != NULL;
    fclose(file);
    return count;
}

/* ---- what is opened, used and ended ---------------------------------------------------------- */

static char folder[64];

static enum tutti_status use_store(tutti_store_t *store)
{
    const char *keys[] = {"key", "number"};
    char value[8];
    int64_t number;
    size_t size;
    bool is;
    enum tutti_status status = tutti_store_set(store, "key", "value", 5);
    if (status == TUTTI_OK)
        status = tutti_store_add(store, "number", 1, &number);
    if (status == TUTTI_OK)
        status = tutti_store_wait(store, keys, 2, 0);
    if (status == TUTTI_OK)
        status = tutti_store_check(store, keys, 2, &is);
    if (status == TUTTI_OK)
        status = tutti_store_get(store, "key", 0, value, sizeof value, &size);
    if (status == TUTTI_OK)
        status = tutti_store_compare_set(store, "key", "value", 5, "other", 5, value, sizeof value,
                                         &size);
    if (status == TUTTI_OK)
        status = tutti_store_delete(store, "key", &is);
    return status == TUTTI_OK ? tutti_store_num_keys(store, &number) : status;
}

/* And through a prefix, with an all-gather of one. */
static enum tutti_status use_url(const char *url)
{
    tutti_store_t *store, *view;
    int value = 7, all;
    enum tutti_status status = tutti_store_open(url, timeout_ms, &store);
    if (status != TUTTI_OK)
        return status;
    status = use_store(store);
    if (status == TUTTI_OK)
        status = tutti_store_prefix(store, "prefix", &view);
    if (status == TUTTI_OK) {
        struct tutti_exchanger exchanger = {
            .struct_size = sizeof exchanger, .store = view, .prefix = "all", .size = 1};
        status = tutti_exchanger_all_gather(&exchanger, &value, sizeof value, &all, 0);
        tutti_store_close(view);
    }
    tutti_store_close(store);
    return status;
}

static enum tutti_status memory_store(void)
{
    return use_url("memory:calls");
}

static enum tutti_status file_store(void)
{
    char url[128];
    snprintf(url, sizeof url, "file:%s/store", folder);
    enum tutti_status status = use_url(url);
    unlink(url + 5);
    return status;
}

static enum tutti_status tcp_store(void)
{
    return use_url("tcp://127.0.0.1:0?server=1");
}

static enum tutti_status tcp_store_with_secret(void)
{
    setenv("TUTTI_STORE_SECRET", "0123456789abcdef", 1);
    enum tutti_status status = use_url("tcp://localhost:0?server=1&world_size=1");
    unsetenv("TUTTI_STORE_SECRET");
    return status;
}

static enum tutti_status env_store(void)
{
    return use_url("env:");
}

/* Every kind of operation of a communicator that has met; another one is made of it. */
static enum tutti_status use_communicator(tutti_comm_t *comm)
{
    static float data[TUTTI_MAX_RANKS][ELEMENTS];
    float *x = data[tutti_comm_rank(comm)];
    enum tutti_status status =
        tutti_all_reduce(x, x, 4, TUTTI_FLOAT32, TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT);
    if (status == TUTTI_OK)
        status =
            tutti_all_reduce(x, x, ELEMENTS, TUTTI_FLOAT32, TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT);
    if (status == TUTTI_OK)
        status = tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    if (status != TUTTI_OK)
        return status;
    tutti_comm_t *dup;
    status = tutti_comm_dup(comm, NULL, &dup);
    if (status == TUTTI_OK)
        status = tutti_all_reduce(x, x, 4, TUTTI_FLOAT32, TUTTI_SUM, dup, TUTTI_STREAM_DEFAULT);
    tutti_comm_destroy(dup);
    return status;
}

/* Two ranks as threads. Who fails ends the other's waits. */
static struct pair {
    tutti_comm_t *comms[2];
    enum tutti_status statuses[2];
} pair;

static void *pair_main(void *argument)
{
    int rank = argument == &pair.comms[1];
    enum tutti_status status = tutti_comm_rendezvous(pair.comms[rank]);
    if (status == TUTTI_OK)
        status = use_communicator(pair.comms[rank]);
    if (status != TUTTI_OK)
        tutti_comm_abort(pair.comms[!rank]);
    pair.statuses[rank] = status;
    return NULL;
}

/* The second rank's thread is the test's, which does not fail. */
static enum tutti_status pair_run(void)
{
    pthread_t thread;
    assert_int_equal(__real_pthread_create(&thread, NULL, pair_main, &pair.comms[1]), 0);
    pair_main(&pair.comms[0]);
    pthread_join(thread, NULL);
    return pair.statuses[0] != TUTTI_OK ? pair.statuses[0] : pair.statuses[1];
}

static enum tutti_status communicator_of_threads(void)
{
    const struct tutti_comm_options options = {
        .struct_size = sizeof options, .timeout_ms = timeout_ms, .defer = true};
    tutti_store_t *store;
    enum tutti_status status = tutti_store_open("memory:calls", timeout_ms, &store);
    if (status != TUTTI_OK)
        return status;
    pair = (struct pair){.comms = {NULL}};
    for (int r = 0; r < 2 && status == TUTTI_OK; r++)
        status = tutti_comm_create(store, r, 2, &options, &pair.comms[r]);
    if (status == TUTTI_OK)
        status = pair_run();
    for (int r = 0; r < 2; r++)
        tutti_comm_destroy(pair.comms[r]);
    tutti_store_close(store);
    return status;
}

/* Opens, uses and ends a communicator of two processes. */
static enum tutti_status be_rank(int rank, const char *url)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .timeout_ms = timeout_ms};
    tutti_store_t *store;
    tutti_comm_t *comm;
    enum tutti_status status = tutti_store_open(url, timeout_ms, &store);
    if (status != TUTTI_OK)
        return status;
    status = tutti_comm_create(store, rank, 2, &options, &comm);
    if (status == TUTTI_OK) {
        status = use_communicator(comm);
        tutti_comm_destroy(comm);
    }
    tutti_store_close(store);
    return status;
}

/* A process that is killed while it creates a socket leaves the socket's file. */
static void remove_sockets(void)
{
    const struct dirent *entry;
    DIR *all = opendir(folder);
    assert_non_null(all);
    while ((entry = readdir(all)) != NULL) {
        if (strncmp(entry->d_name, "so-", 3) == 0 || strncmp(entry->d_name, "bd-", 3) == 0)
            unlinkat(dirfd(all), entry->d_name, 0);
    }
    closedir(all);
}

/* Only this process's calls fail; the other one does not outlive that. */
static enum tutti_status be_beside_a_process(int rank)
{
    const char *const name = failing;
    char url[128];
    turns_end();
    snprintf(url, sizeof url, "file:%s/store", folder);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0)
        _exit(be_rank(!rank, url) != TUTTI_OK);
    int at = fails_at;
    turns_begin(name, at);
    enum tutti_status status = be_rank(rank, url);
    turns_end();
    if (status != TUTTI_OK)
        kill(child, SIGKILL);
    waitpid(child, NULL, 0);
    if (status != TUTTI_OK)
        remove_sockets();
    unlink(url + 5);
    return status;
}

/* It leads the meeting, and the other one connects to it. */
static enum tutti_status first_of_two_processes(void)
{
    return be_beside_a_process(0);
}

static enum tutti_status second_of_two_processes(void)
{
    return be_beside_a_process(1);
}

static enum tutti_status symmetric_memory(void)
{
    tutti_store_t *store;
    tutti_symm_group_t *group;
    void *buffer;
    enum tutti_status status = tutti_store_open("memory:calls", timeout_ms, &store);
    if (status != TUTTI_OK)
        return status;
    status = tutti_symm_group("turns", 0, 1, store, &group);
    if (status == TUTTI_OK) {
        status = tutti_symm_alloc(group, TUTTI_DEVICE_CPU, 4096, &buffer);
        if (status == TUTTI_OK)
            status = tutti_symm_rendezvous(buffer, timeout_ms, NULL);
        tutti_symm_group_destroy(group);
    }
    tutti_store_close(store);
    return status;
}

/* A process group on a communicator, and a dump of it. */
static enum tutti_status use_group(tutti_comm_t *comm)
{
    static float x[4];
    static const int64_t count = 4;
    const struct tutti_tensor tensor = {.struct_size = sizeof tensor,
                                        .data = x,
                                        .dtype = TUTTI_FLOAT32,
                                        .dims = 1,
                                        .sizes = &count};
    tutti_work_t *work;
    tutti_pg_t *pg;
    enum tutti_status status = tutti_pg_create(comm, NULL, &pg);
    if (status != TUTTI_OK)
        return status;
    status = tutti_pg_all_reduce(pg, &tensor, 1, TUTTI_SUM, NULL, &work);
    if (status == TUTTI_OK) {
        status = tutti_work_wait_host(work, timeout_ms);
        tutti_work_destroy(work);
    }
    tutti_pg_destroy(pg);
    return status;
}

static enum tutti_status group_and_dump(void)
{
    char path[128];
    tutti_store_t *store;
    tutti_comm_t *comm;
    enum tutti_status status = tutti_store_open("memory:calls", timeout_ms, &store);
    if (status != TUTTI_OK)
        return status;
    status = tutti_comm_create(store, 0, 1, NULL, &comm);
    if (status == TUTTI_OK) {
        status = use_group(comm);
        snprintf(path, sizeof path, "%s/dump", folder);
        if (status == TUTTI_OK)
            status = tutti_comm_dump(comm, path);
        unlink(path);
        tutti_comm_destroy(comm);
    }
    tutti_store_close(store);
    return status;
}

/* ---- all of them ----------------------------------------------------------------------------- */

typedef enum tutti_status use_fn(void);

/* With one call that fails, unless it is not made so often: *reached. */
static enum tutti_status use_with(use_fn *use, const char *call, int at, bool *reached)
{
    for (timeout_ms = LEAST_TIMEOUT_MS;; timeout_ms *= 2) {
        turns_begin(call, at);
        enum tutti_status status = use();
        turns_end();
        *reached = made >= at;
        if (status == TUTTI_OK || *reached || timeout_ms >= MOST_TIMEOUT_MS)
            return status;
    }
}

static void fail_at(use_fn *use, const char *call, int at, bool *reached)
{
    int descriptors = count_entries("/proc/self/fd"), mappings = count_mappings();
    int threads = count_entries("/proc/self/task");
    enum tutti_status status = use_with(use, call, at, reached);
    if (status != TUTTI_OK && !*reached)
        fail_msg("call %d of %s was not made, yet: %s", at, call, tutti_last_error());
    if (status != TUTTI_OK && !*tutti_last_error())
        fail_msg("call %d of %s failed: no message", at, call);
    /* A thread that was joined may be seen for a moment. */
    for (int i = 0; i < 20000 && count_entries("/proc/self/task") > threads; i++)
        usleep(1000);
    if (count_entries("/proc/self/fd") != descriptors || count_mappings() != mappings ||
        count_entries("/proc/self/task") > threads)
        fail_msg("call %d of %s failed: something is left [%s]", at, call, tutti_last_error());
}

static void take_turns(use_fn *use)
{
    /* So many first calls of a function fail one by one, then ever fewer. */
    const int each = getenv("TUTTI_TEST_SHORT") ? 2 : 8;
    int failures = 0;
    bool reached;
    /* It also makes what lives as long as the process. */
    if (use_with(use, "nothing", 1, &reached) != TUTTI_OK)
        fail_msg("nothing failed, yet: %s", tutti_last_error());
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        reached = true;
        for (int at = 1; reached; at += at < each ? 1 : at / 2) {
            fail_at(use, calls[i], at, &reached);
            failures += reached;
        }
    }
    print_message("%d failures\n", failures);
    assert_true(failures > 0);
}

#define TURNS(name)                                                                                \
    static void all_calls_of_##name(void **state)                                                  \
    {                                                                                              \
        (void)state;                                                                               \
        take_turns(name);                                                                          \
    }
TURNS(memory_store)
TURNS(file_store)
TURNS(tcp_store)
TURNS(tcp_store_with_secret)
TURNS(env_store)
TURNS(communicator_of_threads)
TURNS(first_of_two_processes)
TURNS(second_of_two_processes)
TURNS(symmetric_memory)
TURNS(group_and_dump)

static int begin(void **state)
{
    (void)state;
    strcpy(folder, "/tmp/tutti-turns-XXXXXX");
    if (!mkdtemp(folder))
        return -1;
    setenv("TUTTI_DIR", folder, 1);
    setenv("PMI_RANK", "0", 1); /* env: finds a launcher, of one rank */
    setenv("PMI_SIZE", "1", 1);
    unsetenv("TUTTI_DEBUG");
    return 0;
}

static int end(void **state)
{
    (void)state;
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(all_calls_of_memory_store),
        cmocka_unit_test(all_calls_of_file_store),
        cmocka_unit_test(all_calls_of_tcp_store),
        cmocka_unit_test(all_calls_of_tcp_store_with_secret),
        cmocka_unit_test(all_calls_of_env_store),
        cmocka_unit_test(all_calls_of_communicator_of_threads),
        cmocka_unit_test(all_calls_of_first_of_two_processes),
        cmocka_unit_test(all_calls_of_second_of_two_processes),
        cmocka_unit_test(all_calls_of_symmetric_memory),
        cmocka_unit_test(all_calls_of_group_and_dump),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
