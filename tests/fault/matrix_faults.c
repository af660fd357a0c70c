/* SPDX-License-Identifier: MIT */
/* What happens to a rank: the rows of the matrix. */
#include "matrix.h"

#include "device.h"
#include "matrix_store.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LATE_US = 100000, EXIT_STATUS = 7, SLOW_MS = 5 };

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

/* ---- of the process -------------------------------------------------------------------------- */

static void die(struct faults_rank *rank)
{
    faults_happened(rank->ranks);
    raise(SIGKILL);
}

static void stop(struct faults_rank *rank)
{
    faults_happened(rank->ranks);
    raise(SIGSTOP);
}

static void leave(struct faults_rank *rank)
{
    faults_happened(rank->ranks);
    exit(EXIT_STATUS);
}

static _Thread_local sigjmp_buf jump_target;

void *matrix_jump_target(void)
{
    return jump_target;
}

/* As an exception of C++, or a handler's siglongjmp(), does. */
static void throw(struct faults_rank * rank)
{
    faults_happened(rank->ranks);
    siglongjmp(jump_target, 1);
}

/* Whatever it asks for, a child is told that nothing is its own. Returns what it exits with. */
static int child_calls(const struct faults_rank *rank)
{
    float one = 1;
    if (device_all_reduce(&one, &one, 1, TUTTI_FLOAT32, TUTTI_SUM, rank->comm, TUTTI_STREAM_DEFAULT,
                          NULL) != TUTTI_ERR_INVALID ||
        !strstr(tutti_last_error(), "fork"))
        return 1;
    if (device_barrier(rank->comm, TUTTI_STREAM_DEFAULT) != TUTTI_ERR_INVALID)
        return 2;
    if (tutti_comm_status(rank->comm, NULL) != TUTTI_ERR_INVALID)
        return 3;
    tutti_comm_abort(rank->comm);
    return 0;
}

/* In the child of a process with threads the sanitizer of memory takes what lies on their stacks
 * for lost. */
#if defined(__SANITIZE_ADDRESS__)
static const bool sanitized = true;
#elif defined(__clang__)
static const bool sanitized = __has_feature(address_sanitizer);
#else
static const bool sanitized = false;
#endif

static void fork_once(struct faults_rank *rank, bool calls)
{
    int how = -1;
    faults_happened(rank->ranks);
    fflush(NULL);
    pid_t child = fork();
    if (child == 0 && calls)
        _exit(child_calls(rank));
    /* In exit() the driver's own handler dies of signal 11, where the parent has but a context,
     * some memory and a stream (580; four of four, and as many with a communicator, at the same
     * place). */
    if (child == 0 && (sanitized || device_is_gpu()))
        _exit(0);
    if (child == 0)
        exit(0); /* with all handlers of exit() */
    if (child < 0 || waitpid(child, &how, 0) != child || how != 0)
        ranks_fail(rank->ranks, rank->rank, __FILE__, how, "the child of fork()");
}

static void fork_calls(struct faults_rank *rank)
{
    fork_once(rank, true);
}

static void fork_exits(struct faults_rank *rank)
{
    fork_once(rank, false);
}

static void dawdle(struct faults_rank *rank)
{
    faults_happened(rank->ranks);
    usleep(LATE_US);
}

/* ---- of the set-up --------------------------------------------------------------------------- */

static void rename_communicator(struct matrix_rank *self)
{
    if (self->victim && self->cell->stage == SETUP)
        self->options.name = "another";
}

static void configure_otherwise(struct matrix_rank *self)
{
    if (self->victim)
        self->options.buffer_size = 1 << 20;
}

static void miscount_world(struct matrix_rank *self)
{
    if (self->victim)
        self->size++;
}

static void take_anothers_rank(struct matrix_rank *self)
{
    if (self->victim)
        self->rank = self->rank ? self->rank - 1 : 1;
}

static void wrap_store(struct matrix_rank *self, const struct store_manner *manner)
{
    self->wrapped = store_between(self->base.store, manner);
    if (!self->wrapped)
        abort();
}

static void be_newer(struct matrix_rank *self)
{
    static const struct store_manner manner = {.version_ahead = 1};
    if (self->victim)
        wrap_store(self, &manner);
}

static void slow_store(struct matrix_rank *self)
{
    static const struct store_manner manner = {.delay_ms = SLOW_MS};
    wrap_store(self, &manner);
}

static void unwrap_store(struct matrix_rank *self)
{
    tutti_store_close(self->wrapped);
    self->wrapped = NULL;
}

static void kill_store(struct faults_rank *rank)
{
    kill(rank->ranks->server, SIGKILL);
    faults_happened(rank->ranks);
}

/* ---- memory files ---------------------------------------------------------------------------- */

/* The library's calls, by the linker's --wrap. */
int __real_memfd_create(const char *name, unsigned flags);
int __real_fallocate(int fd, int mode, off_t offset, off_t length);
int __wrap_memfd_create(const char *name, unsigned flags);
int __wrap_fallocate(int fd, int mode, off_t offset, off_t length);

/* Of the calling thread: after `spared` more calls, those fail with that code; 0: they do not. */
static _Thread_local struct shortage {
    struct ranks *ranks;
    int spared;
    int memfd_code, fallocate_code;
} shortage;

static bool falls_short(int code)
{
    if (!code || shortage.spared-- > 0)
        return false;
    if (shortage.ranks)
        faults_happened(shortage.ranks);
    shortage.ranks = NULL;
    shortage.spared = 0;
    errno = code;
    return true;
}

int __wrap_memfd_create(const char *name, unsigned flags)
{
    return falls_short(shortage.memfd_code) ? -1 : __real_memfd_create(name, flags);
}

int __wrap_fallocate(int fd, int mode, off_t offset, off_t length)
{
    return falls_short(shortage.fallocate_code) ? -1 : __real_fallocate(fd, mode, offset, length);
}

/* From the first or second file on, in turn memfd_create() or the allocation of its pages. */
static void prepare_shortage(struct matrix_rank *self)
{
    int passage = self->base.scenario->point->passage - 1;
    if (!self->victim || self->cell->stage != SETUP)
        return;
    shortage = (struct shortage){.ranks = self->base.ranks, .spared = passage / 2};
    *(passage % 2 ? &shortage.fallocate_code : &shortage.memfd_code) =
        passage % 2 ? ENOSPC : ENOMEM;
}

static void run_short(struct faults_rank *rank)
{
    faults_happened(rank->ranks);
    shortage = (struct shortage){.memfd_code = ENOMEM, .fallocate_code = ENOSPC};
}

static void end_shortage(struct matrix_rank *self)
{
    (void)self;
    shortage = (struct shortage){.ranks = NULL};
}

/* ---- descriptors ----------------------------------------------------------------------------- */

static struct rlimit descriptors; /* as they were; none: rlim_max is 0 */

static void limit_descriptors(int more)
{
    int lowest = dup(STDERR_FILENO);
    if (lowest < 0 || getrlimit(RLIMIT_NOFILE, &descriptors) != 0)
        abort();
    close(lowest);
    struct rlimit limit = {.rlim_cur = (rlim_t)(lowest + more), .rlim_max = descriptors.rlim_max};
    setrlimit(RLIMIT_NOFILE, &limit);
}

static void prepare_descriptors(struct matrix_rank *self)
{
    if (!self->victim || self->cell->stage != SETUP)
        return;
    faults_happened(self->base.ranks);
    limit_descriptors(self->base.scenario->point->passage - 1);
}

static void use_up_descriptors(struct faults_rank *rank)
{
    faults_happened(rank->ranks);
    limit_descriptors(0);
}

static void restore_descriptors(struct matrix_rank *self)
{
    (void)self;
    if (descriptors.rlim_max)
        setrlimit(RLIMIT_NOFILE, &descriptors);
}

/* ---- what a machine may lack ----------------------------------------------------------------- */

static bool private_mounts(void)
{
    return unshare(CLONE_NEWNS) == 0 && mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL) == 0;
}

bool matrix_is_root(void)
{
    static int known = -1;
    int how = -1;
    pid_t child = known < 0 ? fork() : -1;
    if (child == 0)
        _exit(private_mounts() ? 0 : 1);
    if (child > 0 && waitpid(child, &how, 0) == child)
        known = how == 0;
    return known == 1;
}

/* An empty directory in that place that nobody can write. */
static void cover(const char *path)
{
    if (!private_mounts() || mount("tmpfs", path, "tmpfs", MS_RDONLY, "size=4k") != 0) {
        perror(path);
        abort();
    }
}

static void prepare_no_shm(struct matrix_rank *self)
{
    if (self->cell->stage == SETUP)
        cover("/dev/shm");
    if (self->cell->stage == SETUP && self->victim)
        faults_happened(self->base.ranks);
}

static void lose_shm(struct faults_rank *rank)
{
    faults_happened(rank->ranks);
    cover("/dev/shm");
}

static char directory[128]; /* TUTTI_DIR as it was */
/* By this thread, which alone has mounts of its own then: another one would unmount the machine's.
 */
static _Thread_local bool tmp_covered;

static void cover_tmp(void)
{
    cover("/tmp");
    tmp_covered = true;
}

/* Without TUTTI_DIR sockets go to /tmp. */
static void prepare_read_only(struct matrix_rank *self)
{
    snprintf(directory, sizeof directory, "%s", getenv("TUTTI_DIR"));
    if (self->cell->stage != SETUP || !self->victim)
        return;
    faults_happened(self->base.ranks);
    cover_tmp();
    unsetenv("TUTTI_DIR");
    unsetenv("XDG_RUNTIME_DIR");
}

static void lock_tmp(struct faults_rank *rank)
{
    faults_happened(rank->ranks);
    cover_tmp();
}

static void unlock_tmp(struct matrix_rank *self)
{
    (void)self;
    if (tmp_covered)
        umount2("/tmp", MNT_DETACH);
    tmp_covered = false;
    setenv("TUTTI_DIR", directory, 1);
}

/* Neither of the two ways to a pidfd is there. */
static void forbid_pidfds(struct matrix_rank *self)
{
#define FIELD(n)               BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, n))
#define UNLESS(value, skipped) BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, value, 0, skipped)
#define REFUSE(code)           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (code))
    static struct sock_filter filter[] = {
        FIELD(nr),           UNLESS(SYS_pidfd_open, 1),
        REFUSE(EPERM),       UNLESS(SYS_getsockopt, 3),
        FIELD(args[2]),      UNLESS(SO_PEERPIDFD, 1),
        REFUSE(ENOPROTOOPT), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
#undef FIELD
#undef UNLESS
#undef REFUSE
    static const struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    (void)self;
    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0) {
        perror("seccomp");
        abort();
    }
}

/* ---- the rows -------------------------------------------------------------------------------- */

#define P  (1u << PROCESSES)
#define T  (1u << THREADS)
#define C  (1u << CUDA)
#define OK ONE_OF(OK)
#define ALL_OK                                                                                     \
    {                                                                                              \
        OK, OK, NULL                                                                               \
    }

static const char at_meeting[] = "it is told, or compared, when ranks meet, and nowhere else";
static const char of_calls[] = "only operations have it";

/* Who leaves with the others inside an operation, or waiting for it in the destroy stage. */
enum {
    LATE_OR_GONE = ONE_OF(ERR_TIMEOUT) | ONE_OF(ERR_PEER_DEAD),
    TIMED_OUT = ONE_OF(ERR_TIMEOUT),
    GONE = ONE_OF(ERR_PEER_DEAD),
    DIFFERS = ONE_OF(ERR_MISMATCH),
    /* Who has had its part of the store goes on until it misses the others. */
    NO_STORE = ONE_OF(ERR_SYSTEM) | LATE_OR_GONE | ONE_OF(OK),
    /* A rank that has not even got as far as the store just does not come; one that fails while
     * ranks connect is gone for the others. */
    NO_FILES = ONE_OF(ERR_SYSTEM) | LATE_OR_GONE,
};

const struct fault matrix_faults[] = {
    {.name = "SIGKILL",
     .id = "kill",
     .places = P | C,
     .strike = die,
     .setup = {LATE_OR_GONE, VICTIM_ENDS, NULL},
     .operation = {GONE, VICTIM_ENDS, NULL},
     .group = {GONE, VICTIM_ENDS, NULL},
     .destroy = {GONE, VICTIM_ENDS, NULL}},
    {.name = "SIGSTOP, SIGCONT",
     .id = "stop",
     .places = P | C,
     .strike = stop,
     .setup = {LATE_OR_GONE, LATE_OR_GONE, NULL},
     .operation = {TIMED_OUT, TIMED_OUT, NULL},
     .group = {TIMED_OUT, LATE_OR_GONE, NULL},
     .destroy = {GONE, OK, NULL}},
    {.name = "exit",
     .id = "exit",
     .places = P | C,
     .strike = leave,
     .setup = {LATE_OR_GONE, VICTIM_ENDS, NULL},
     .operation = {GONE, VICTIM_ENDS, NULL},
     .group = {GONE, VICTIM_ENDS, NULL},
     .destroy = {GONE, VICTIM_ENDS, NULL}},
    {.name = "exception",
     .id = "throw",
     .before = true,
     .places = P | T | C,
     .strike = throw,
     .thrown = true,
     .caller = true,
     .setup = {TIMED_OUT, OK, NULL},
     .operation = {GONE, OK, NULL},
     .group = {GONE, OK, NULL},
     .destroy = {.why = "no user code runs in it"}},
    {.name = "fork, the child calls",
     .id = "fork",
     .places = P | T | C,
     .strike = fork_calls,
     .caller = true,
     .setup = ALL_OK,
     .operation = ALL_OK,
     .group = ALL_OK,
     .destroy = {GONE, OK, NULL}},
    {.name = "fork, the child exits",
     .id = "fork-exit",
     .places = P | T | C,
     .strike = fork_exits,
     .caller = true,
     .setup = ALL_OK,
     .operation = ALL_OK,
     .group = ALL_OK,
     .destroy = {GONE, OK, NULL}},
    {.name = "late",
     .id = "late",
     .places = P | T | C,
     .strike = dawdle,
     .setup = ALL_OK,
     .operation = ALL_OK,
     .group = ALL_OK,
     .destroy = {GONE, OK, NULL}},
    {.name = "never arrives",
     .id = "never",
     .places = P | T | C,
     .absent = true,
     .setup = {TIMED_OUT, OK, NULL},
     .operation = {TIMED_OUT, TIMED_OUT, NULL},
     .group = {TIMED_OUT, TIMED_OUT, NULL},
     .destroy = ALL_OK},
    {.name = "wrong count",
     .id = "count",
     .places = P | T | C,
     .wrong = WRONG_COUNT,
     .only = of_calls,
     .operation = {DIFFERS, DIFFERS, NULL},
     .group = {DIFFERS, DIFFERS, NULL}},
    {.name = "wrong dtype",
     .id = "dtype",
     .places = P | T | C,
     .wrong = WRONG_DTYPE,
     .only = of_calls,
     .operation = {DIFFERS, DIFFERS, NULL},
     .group = {DIFFERS, DIFFERS, NULL}},
    {.name = "wrong op",
     .id = "op",
     .places = P | T | C,
     .wrong = WRONG_OP,
     .only = of_calls,
     .operation = {DIFFERS, DIFFERS, NULL},
     .group = {DIFFERS, DIFFERS, NULL}},
    {.name = "wrong order of calls",
     .id = "order",
     .places = P | T | C,
     .wrong = WRONG_ORDER,
     .prepare = rename_communicator,
     .setup = {TIMED_OUT, TIMED_OUT, NULL},
     .operation = {DIFFERS, DIFFERS, NULL},
     .group = {DIFFERS, DIFFERS, NULL},
     .destroy = {.why = "communicators are destroyed in any order"}},
    {.name = "other library version",
     .id = "version",
     .places = P | T | C,
     .prepare = be_newer,
     .mend = unwrap_store,
     .only = at_meeting,
     .setup = {ONE_OF(ERR_VERSION), ONE_OF(ERR_VERSION), NULL}},
    {.name = "other configuration",
     .id = "config",
     .places = P | T | C,
     .prepare = configure_otherwise,
     .only = at_meeting,
     .setup = {DIFFERS, DIFFERS, NULL}},
    {.name = "other world size",
     .id = "size",
     .places = P | T | C,
     .prepare = miscount_world,
     .only = at_meeting,
     .setup = {DIFFERS, DIFFERS, NULL}},
    {.name = "rank given twice",
     .id = "twice",
     .places = P | T | C,
     .prepare = take_anothers_rank,
     .only = at_meeting,
     .nameless = true,
     .setup = {DIFFERS, DIFFERS, NULL}},
    {.name = "store dies",
     .id = "store-dies",
     .places = P | C,
     .strike = kill_store,
     .nameless = true,
     .everywhere = true,
     .setup = {NO_STORE, NO_STORE, NULL},
     .operation = ALL_OK,
     .group = ALL_OK,
     .destroy = {GONE, OK, NULL}},
    {.name = "store slow",
     .id = "store-slow",
     .places = P | T | C,
     .prepare = slow_store,
     .mend = unwrap_store,
     .only = "the store is not used: see the row above",
     .everywhere = true,
     .setup = ALL_OK},
    {.name = "ENOMEM, ENOSPC at memfd",
     .id = "memory",
     .before = true,
     .places = P | T | C,
     .strike = run_short,
     .prepare = prepare_shortage,
     .mend = end_shortage,
     .sparse = true,
     .setup = {ONE_OF(ERR_NO_MEMORY), ONE_OF(ERR_NO_MEMORY), NULL},
     .operation = ALL_OK,
     .group = {ONE_OF(ERR_NO_MEMORY), ONE_OF(ERR_NO_MEMORY), NULL},
     .destroy = {GONE, OK, NULL}},
    {.name = "EMFILE",
     .id = "emfile",
     .before = true,
     .places = P | C,
     .strike = use_up_descriptors,
     .prepare = prepare_descriptors,
     .mend = restore_descriptors,
     .sparse = true,
     .setup = {NO_FILES, ONE_OF(ERR_SYSTEM), NULL},
     .operation = ALL_OK,
     .group = {ONE_OF(ERR_SYSTEM), ONE_OF(ERR_SYSTEM), NULL},
     .destroy = {GONE, OK, NULL}},
    {.name = "no /dev/shm",
     .id = "no-shm",
     .before = true,
     .places = P | C,
     .needs_root = true,
     .everywhere = true,
     .strike = lose_shm,
     .prepare = prepare_no_shm,
     .setup = ALL_OK,
     .operation = ALL_OK,
     .group = ALL_OK,
     .destroy = {GONE, OK, NULL}},
    {.name = "read-only /tmp",
     .id = "read-only",
     .before = true,
     .places = P | C,
     .needs_root = true,
     .strike = lock_tmp,
     .prepare = prepare_read_only,
     .mend = unlock_tmp,
     .setup = {ONE_OF(ERR_SYSTEM), ONE_OF(ERR_SYSTEM), NULL},
     .operation = ALL_OK,
     .group = ALL_OK,
     .destroy = {GONE, OK, NULL}},
    {.name = "seccomp without pidfd_open, SIGKILL",
     .id = "no-pidfd",
     .places = P | C,
     .strike = die,
     .prepare = forbid_pidfds,
     .setup = {LATE_OR_GONE, VICTIM_ENDS, NULL},
     .operation = {GONE, VICTIM_ENDS, NULL},
     .group = {GONE, VICTIM_ENDS, NULL},
     .destroy = {GONE, VICTIM_ENDS, NULL}},
};

const int matrix_fault_count = sizeof matrix_faults / sizeof *matrix_faults;
