/* SPDX-License-Identifier: MIT */
/*
 * The store stands still while ranks wait for a key, meet, shrink, make a group or share memory:
 * the process that serves it is stopped, or its file's lock is held. Their own time-out ends that,
 * not the store's, or an abort does, and what they say is that the store does not answer. Says how
 * long it took; the bound leaves room for busy machines.
 */
#include "faults.h"

#include "base/deadline.h"
#include "base/point.h"
#include "pg_members.h"
#include "shrink.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <unistd.h>

enum {
    SIZE = 3,
    CULPRIT = 1,        /* whose passage of the point stops the store */
    PATIENCE_MS = 1000, /* of the call; the store's own is RANKS_TIMEOUT_MS */
    BEFORE_ABORT_MS = 500,
    BOUND_MS = 20000,
    WAITS = 12,
    WAIT_MS = 50,
    CLOSES = 3,
    CLOSE_MS = 1500, /* much more than one gives a lock that nobody seems to use */
};
enum { READY, STOPPED, OVER, ON_AGAIN }; /* flags */

struct scenario {
    const char *title;
    ranks_fn *fn;
    const char *point;
    bool file;  /* else tcp */
    bool abort; /* else the call has a time-out */
};

struct shared {
    int64_t late_ns[SIZE]; /* behind the time-out, or the abort */
    bool told[SIZE];       /* that it was the store */
};

/* ---- standing still -------------------------------------------------------------------------- */

static char path[64]; /* of the file */

/* Set on the culprit. */
static struct ranks *armed;
static int lock = -1;

static bool is_stopped(pid_t pid)
{
    char name[32], text[256] = "";
    snprintf(name, sizeof name, "/proc/%d/stat", (int)pid);
    FILE *file = fopen(name, "re");
    if (file && !fgets(text, sizeof text, file))
        text[0] = 0;
    if (file)
        fclose(file);
    const char *behind_name = strrchr(text, ')');
    return behind_name && behind_name[1] == ' ' && behind_name[2] == 'T';
}

/* A lock belongs to an open file: another one of this process is as good as another process. */
static void store_stop(struct ranks *ranks)
{
    const struct scenario *scenario = ranks->context;
    if (scenario->file) {
        lock = open(path, O_RDWR | O_CLOEXEC);
        while (flock(lock, LOCK_EX) != 0)
            ;
    } else {
        kill(ranks->server, SIGSTOP);
        while (!is_stopped(ranks->server))
            usleep(1000);
    }
    ranks_raise(ranks, STOPPED);
}

static void store_continue(struct ranks *ranks)
{
    const struct scenario *scenario = ranks->context;
    if (scenario->file)
        close(lock);
    else
        kill(ranks->server, SIGCONT);
    ranks_raise(ranks, ON_AGAIN);
}

static void hook(const char *name)
{
    struct ranks *ranks = armed;
    if (!ranks || strcmp(name, ((const struct scenario *)ranks->context)->point) != 0)
        return;
    armed = NULL;
    store_stop(ranks);
}

/* ---- a call ---------------------------------------------------------------------------------- */

/* What ends it, and when. */
struct ending {
    struct ranks *ranks;
    tutti_comm_t *comm; /* to be aborted */
    pthread_t thread;
    int64_t due_ns;
};

static int64_t timeout_of(const struct scenario *scenario)
{
    return scenario->abort ? RANKS_TIMEOUT_MS : PATIENCE_MS;
}

static void *abort_soon(void *argument)
{
    struct ending *self = argument;
    if (!ranks_await(self->ranks, STOPPED, 1))
        return NULL;
    usleep(BEFORE_ABORT_MS * 1000); /* likely, not necessarily, at a loss by now */
    self->due_ns = deadline_now();
    tutti_comm_abort(self->comm);
    return NULL;
}

/* Before the call; the store stops in it, and for nobody before. */
static bool ending_begin(struct ending *self, struct ranks *ranks, int rank, tutti_comm_t *comm)
{
    const struct scenario *scenario = ranks->context;
    *self = (struct ending){.ranks = ranks, .comm = comm};
    armed = rank == CULPRIT ? ranks : NULL;
    ranks_raise(ranks, READY);
    if (!ranks_await(ranks, READY, SIZE))
        return false;
    if (!scenario->abort) {
        self->due_ns = deadline_after(PATIENCE_MS);
        return true;
    }
    return pthread_create(&self->thread, NULL, abort_soon, self) == 0;
}

/* Behind the call, whose outcome it judges. A rank may notice first that another has given up, or
 * wait for one that waits for the store. */
static int ending_check(struct ending *self, int rank, enum tutti_status status)
{
    struct ranks *ranks = self->ranks;
    struct shared *shared = (struct shared *)(void *)ranks->shared;
    const struct scenario *scenario = ranks->context;
    const char *silent = scenario->file ? "holds the lock of /" : "the store at 127.0.0.1:";
    int64_t now = deadline_now();
    if (scenario->abort)
        pthread_join(self->thread, NULL);
    shared->late_ns[rank] = now - self->due_ns;
    shared->told[rank] =
        strstr(tutti_last_error(), silent) && strstr(tutti_last_error(), "stopped");
    RANKS_CHECK(status == TUTTI_ERR_PEER_DEAD ||
                status == (scenario->abort ? TUTTI_ERR_ABORTED : TUTTI_ERR_TIMEOUT));
    RANKS_CHECK(shared->late_ns[rank] < BOUND_MS * INT64_C(1000000));
    return 0;
}

/* The store goes on once all are back, and is as good as before. */
static int recover(struct ranks *ranks, int rank, tutti_store_t *store)
{
    ranks_raise(ranks, OVER);
    RANKS_CHECK(ranks_await(ranks, OVER, SIZE));
    if (rank == CULPRIT)
        store_continue(ranks);
    RANKS_CHECK(ranks_await(ranks, ON_AGAIN, 1));
    RANKS_CHECK(tutti_store_set(store, "behind it", "", 0) == TUTTI_OK);
    return 0;
}

/* ---- the calls ------------------------------------------------------------------------------- */

static int live_meet(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {
        .struct_size = sizeof options, .defer = true, .timeout_ms = timeout_of(ranks->context)};
    struct ending ending;
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    RANKS_CHECK(ending_begin(&ending, ranks, rank, comm));
    enum tutti_status status = tutti_comm_rendezvous(comm);
    int failed = ending_check(&ending, rank, status);
    tutti_comm_destroy(comm);
    return failed ? failed : recover(ranks, rank, store);
}

static int live_shrink(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_shrink_options options = {.struct_size = sizeof options,
                                                 .timeout_ms = timeout_of(ranks->context)};
    struct tutti_shrink_result result = {.struct_size = sizeof result};
    struct ending ending;
    tutti_comm_t *comm, *shrunk;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(ending_begin(&ending, ranks, rank, comm));
    enum tutti_status status = tutti_comm_shrink(comm, store, &options, &shrunk, &result);
    int failed = ending_check(&ending, rank, status);
    if (!failed)
        failed = recover(ranks, rank, store);
    tutti_comm_destroy(comm);
    return failed;
}

static int live_members(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int list[] = {2, 1, 0};
    struct ending ending;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(ending_begin(&ending, ranks, rank, comm));
    enum tutti_status status = pg_of(comm, store, list, SIZE, timeout_of(ranks->context), &pg);
    int failed = ending_check(&ending, rank, status);
    if (!failed)
        failed = recover(ranks, rank, store);
    tutti_comm_destroy(comm);
    return failed;
}

static int live_symm(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct ending ending;
    tutti_symm_group_t *group;
    void *memory;
    RANKS_CHECK(tutti_symm_group("stop", rank, SIZE, store, &group) == TUTTI_OK);
    RANKS_CHECK(tutti_symm_alloc(group, TUTTI_DEVICE_CPU, 4096, &memory) == TUTTI_OK);
    RANKS_CHECK(ending_begin(&ending, ranks, rank, NULL));
    enum tutti_status status = tutti_symm_rendezvous(memory, PATIENCE_MS, NULL);
    int failed = ending_check(&ending, rank, status);
    if (!failed)
        failed = recover(ranks, rank, store);
    tutti_symm_group_destroy(group);
    return failed;
}

/* A caller's own waits, one after the other. */
static int live_wait(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const char *key = "absent";
    struct ending ending;
    enum tutti_status status = TUTTI_ERR_TIMEOUT;
    RANKS_CHECK(ending_begin(&ending, ranks, rank, NULL));
    hook("a wait");
    RANKS_CHECK(ranks_await(ranks, STOPPED, 1));
    ending.due_ns = deadline_after(WAITS * WAIT_MS);
    for (int i = 0; i < WAITS && status == TUTTI_ERR_TIMEOUT; i++)
        status = tutti_store_wait(store, &key, 1, WAIT_MS);
    int failed = ending_check(&ending, rank, status);
    return failed ? failed : recover(ranks, rank, store);
}

/* Other handles are closed, due at once, though their places in the file cannot be given back. The
 * quickest counts: the machine may be busy. */
static int live_close(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct shared *shared = (struct shared *)(void *)ranks->shared;
    struct ending ending;
    tutti_store_t *others[CLOSES];
    int64_t best_ns = INT64_MAX;
    for (int i = 0; i < CLOSES; i++)
        RANKS_CHECK(tutti_store_open(tutti_store_url(store), RANKS_TIMEOUT_MS, &others[i]) ==
                    TUTTI_OK);
    RANKS_CHECK(ending_begin(&ending, ranks, rank, NULL));
    hook("a close");
    RANKS_CHECK(ranks_await(ranks, STOPPED, 1));
    for (int i = 0; i < CLOSES; i++) {
        int64_t begun = deadline_now();
        tutti_store_close(others[i]);
        int64_t ns = deadline_now() - begun;
        best_ns = ns < best_ns ? ns : best_ns;
    }
    ending.due_ns = deadline_now() - best_ns;
    int failed = ending_check(&ending, rank, TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(failed || shared->late_ns[rank] < CLOSE_MS * INT64_C(1000000));
    return failed ? failed : recover(ranks, rank, store);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct scenario *scenario = ranks->context;
    char url[96];
    tutti_store_t *file;
    if (!scenario->file)
        return scenario->fn(ranks, rank, store);
    snprintf(url, sizeof url, "file:%s", path);
    RANKS_CHECK(tutti_store_open(url, RANKS_TIMEOUT_MS, &file) == TUTTI_OK);
    int failed = scenario->fn(ranks, rank, file);
    tutti_store_close(file);
    return failed;
}

static int run(const struct scenario *scenario)
{
    struct ranks *ranks = ranks_create(SIZE, SIZE, sizeof(struct shared));
    const struct shared *shared = (const struct shared *)(void *)ranks->shared;
    int64_t late_ns = 0;
    bool told = scenario->abort;
    ranks->context = scenario;
    int failures = ranks_run(ranks, live);
    for (int r = 0; r < SIZE; r++) {
        told |= shared->told[r];
        late_ns = shared->late_ns[r] > late_ns ? shared->late_ns[r] : late_ns;
    }
    if (!told)
        failures += printf("nobody said that the store did not answer\n") > 0;
    printf("%s, the %s store stops at %s: %.1f ms behind %s%s\n", scenario->title,
           scenario->file ? "file" : "tcp", scenario->point, (double)late_ns / 1e6,
           scenario->abort ? "the abort" : "the time-out", failures ? ", FAILED" : "");
    fflush(stdout);
    ranks_destroy(ranks);
    unlink(path);
    return failures;
}

int main(void)
{
    static const struct scenario scenarios[] = {
        {"waiting", live_wait, "a wait", false, false},
        {"waiting", live_wait, "a wait", true, false},
        {"closing", live_close, "a close", true, false},
        {"meeting", live_meet, "meet.joined", false, false},
        {"meeting", live_meet, "meet.joined", false, true},
        {"meeting", live_meet, "meet.joined", true, false},
        {"meeting", live_meet, "meet.joined", true, true},
        {"meeting", live_meet, "meet.answered", false, false},
        {"meeting", live_meet, "meet.answered", false, true},
        {"shrinking", live_shrink, "agree.entered", false, false},
        {"shrinking", live_shrink, "agree.entered", false, true},
        {"shrinking", live_shrink, "agree.entered", true, false},
        {"shrinking", live_shrink, "agree.entered", true, true},
        {"shrinking", live_shrink, "shrink.assembled", false, false},
        {"shrinking", live_shrink, "shrink.assembled", false, true},
        {"a group", live_members, "agree.entered", false, false},
        {"a group", live_members, "agree.entered", false, true},
        {"a group", live_members, "agree.entered", true, false},
        {"sharing memory", live_symm, "meet.answered", false, false},
        {"sharing memory", live_symm, "meet.joined", true, false},
    };
    const int count = sizeof scenarios / sizeof *scenarios;
    int failures = 0, skip = ranks_skip_cuda("stores know no devices");
    if (skip)
        return skip;
    point_hook = hook;
    faults_directory_create();
    snprintf(path, sizeof path, "/tmp/tutti-store-stop-%d", (int)getpid());
    for (int i = 0; i < count; i += ranks_short() ? 3 : 1)
        failures += run(&scenarios[i]);
    return failures + faults_directory_check() ? 1 : 0;
}
