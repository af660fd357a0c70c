/* SPDX-License-Identifier: MIT */
/* How a rank comes to its fault, and which errors the fault explains. */
#include "base/deadline.h"
#include "device.h"
#include "soak.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { STARVED_NS = SOAK_PATIENCE_MS * 1000000 / 4 };

/* A thread beside a rank. */
struct helper {
    pthread_t thread;
    struct soak_rank *self;
    int wrong; /* what the child of a fork() found */
};

bool fault_is_victim(const struct soak_rank *self)
{
    return self->episode->victims >> self->rank & 1;
}

int members_rank(const struct soak_members *members, int rank)
{
    for (int i = 0; i < members->size; i++)
        if (members->members[i] == rank)
            return i;
    return -1;
}

bool members_counts(const struct soak_rank *self, const struct soak_members *members)
{
    uint32_t dead = episode_is_deadly(self->episode) ? self->episode->victims : 0;
    for (int i = 0; i < members->size; i++)
        if (!(dead >> members->members[i] & 1))
            return members->members[i] == self->rank;
    return false;
}

/* ---- coming to it ---------------------------------------------------------------------------- */

/* Of the process' rank whose fault is an abort in a handler: one an episode. */
static tutti_comm_t *volatile interrupted;

static void on_signal(int number)
{
    int saved = errno;
    (void)number;
    tutti_comm_abort(interrupted);
    errno = saved;
}

/* The kernel sends it, whatever this process is doing. A handler runs on the calling thread, so
 * that it has ended when that one destroys what it works on. */
static bool timer_arm(struct soak_rank *self, int number)
{
    const int64_t delay_us = self->episode->delay_us;
    struct sigevent event = {.sigev_notify = number == SIGUSR1 ? SIGEV_THREAD_ID : SIGEV_SIGNAL,
                             .sigev_signo = number};
    const struct itimerspec when = {
        .it_value = {.tv_sec = delay_us / 1000000, .tv_nsec = delay_us % 1000000 * 1000 + 1}};
    event._sigev_un._tid = gettid();
    self->has_timer = timer_create(CLOCK_MONOTONIC, &event, &self->timer) == 0;
    return self->has_timer && timer_settime(self->timer, 0, &when, NULL) == 0;
}

static void *exit_soon(void *argument)
{
    struct helper *helper = argument;
    usleep((useconds_t)helper->self->episode->delay_us);
    if (SOAK_SANITIZED || helper->self->episode->delay_us % 2)
        _exit(0);
    exit(0);
}

static void *abort_soon(void *argument)
{
    struct helper *helper = argument;
    usleep((useconds_t)helper->self->episode->delay_us);
    tutti_comm_abort(helper->self->comms[0]);
    return NULL;
}

/* The child may neither use nor disturb what its parent has; CUDA survives no fork(). */
static int child_of(const struct soak_rank *self)
{
    tutti_comm_t *comm = self->comms[0];
    if (device_barrier(comm, TUTTI_STREAM_DEFAULT) != TUTTI_ERR_INVALID)
        return 2;
    if (tutti_comm_status(comm, NULL) != TUTTI_ERR_INVALID)
        return 3;
    tutti_comm_abort(comm); /* nothing to the parent */
    if (!device_is_cuda())
        tutti_comm_destroy(comm);
    return 0;
}

static void *fork_soon(void *argument)
{
    struct helper *helper = argument;
    int how = 0;
    usleep((useconds_t)helper->self->episode->delay_us);
    pid_t child = fork();
    if (child == 0)
        _exit(child_of(helper->self));
    while (child > 0 && waitpid(child, &how, 0) < 0 && errno == EINTR)
        ;
    helper->wrong = child < 0 ? 1 : how;
    return NULL;
}

static int helper_start(struct soak_rank *self, void *(*main)(void *))
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    struct helper *helper = calloc(1, sizeof *helper);
    RANKS_CHECK(helper);
    helper->self = self;
    self->helper = helper;
    RANKS_CHECK(pthread_create(&helper->thread, NULL, main, helper) == 0);
    return 0;
}

int fault_arm(struct soak_rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    if (!episode_is_of_setup(self->episode))
        RANKS_CHECK(ranks_await(ranks, SOAK_MET, (uint32_t)self->episode->size));
    self->progress->strikes_ns = (uint64_t)(deadline_now() + self->episode->delay_us * 1000);
    switch (self->episode->fault) {
    case SOAK_KILL:
    case SOAK_KILL_SETUP:
        RANKS_CHECK(timer_arm(self, SIGKILL));
        return 0;
    case SOAK_PAUSE:
    case SOAK_STOP:
        RANKS_CHECK(timer_arm(self, SIGSTOP));
        return 0;
    case SOAK_ABORT_SIGNAL:
        interrupted = self->comms[0];
        sigaction(SIGUSR1, &action, NULL);
        RANKS_CHECK(timer_arm(self, SIGUSR1));
        return 0;
    case SOAK_EXIT:
        return helper_start(self, exit_soon);
    case SOAK_ABORT_THREAD:
        return helper_start(self, abort_soon);
    case SOAK_FORK:
        return helper_start(self, fork_soon);
    case SOAK_NONE:
    case SOAK_LATE:
    case SOAK_COUNT:
    case SOAK_DTYPE:
    case SOAK_OP:
    case SOAK_LATE_SETUP:
    case SOAK_FAULTS:
        break;
    }
    return 0;
}

void fault_disarm(struct soak_rank *self)
{
    struct helper *helper = self->helper;
    if (self->has_timer)
        timer_delete(self->timer);
    self->has_timer = false;
    self->helper = NULL;
    if (!helper)
        return;
    pthread_join(helper->thread, NULL);
    if (helper->wrong) {
        char text[64];
        snprintf(text, sizeof text, "the child of a fork() ended with %x", (unsigned)helper->wrong);
        ranks_fail(self->ranks, self->rank, __FILE__, __LINE__, text);
    }
    free(helper);
}

int fault_await(struct soak_rank *self)
{
    struct ranks *ranks = self->ranks;
    const int rank = self->rank;
    const enum soak_fault fault = self->episode->fault;
    if (!fault_is_victim(self))
        return 0;
    if (fault == SOAK_STOP)
        RANKS_CHECK(ranks_await(ranks, SOAK_WOKEN, 1));
    if (fault == SOAK_ABORT_THREAD || fault == SOAK_ABORT_SIGNAL)
        for (int64_t end = deadline_after(SOAK_GENEROUS_MS);
             tutti_comm_status(self->comms[0], NULL) == TUTTI_OK; usleep(100))
            RANKS_CHECK(!deadline_passed(end));
    while (episode_is_deadly(self->episode))
        pause();
    return 0;
}

/* ---- time-outs ------------------------------------------------------------------------------- */

/* How long a thread has waited for a processor in its life. */
static uint64_t waited_of(int pid, int tid)
{
    char path[64];
    unsigned long long ran, waited = 0;
    snprintf(path, sizeof path, "/proc/%d/task/%d/schedstat", pid, tid);
    FILE *file = fopen(path, "re");
    if (file && fscanf(file, "%llu %llu", &ran, &waited) != 2)
        waited = 0;
    if (file)
        fclose(file);
    return waited;
}

bool fault_begin_timeout(struct soak_rank *self)
{
    int others = self->episode->size;
    for (int r = 0; r < self->episode->size; r++)
        others -= (int)(self->episode->victims >> r & 1);
    self->progress->pid = getpid();
    self->progress->tid = gettid();
    self->progress->waited_ns = waited_of(self->progress->pid, self->progress->tid);
    ranks_raise(self->ranks, SOAK_READY);
    return ranks_await(self->ranks, SOAK_READY, (uint32_t)others);
}

/* Whether a rank that is named for its lateness, and was to blame for none, has not been given the
 * time to be there. */
static bool is_starved(const struct soak_rank *self, int rank)
{
    const struct soak_progress *progress = &self->soak->shared->progress[rank];
    return progress->pid &&
           waited_of(progress->pid, progress->tid) - progress->waited_ns > STARVED_NS;
}

/* ---- explaining ------------------------------------------------------------------------------ */

void fault_notice(struct soak_rank *self)
{
    self->progress->noticed_ns = (uint64_t)deadline_now();
}

static enum tutti_status status_of(enum soak_fault fault)
{
    static const enum tutti_status statuses[SOAK_FAULTS] = {
        [SOAK_KILL] = TUTTI_ERR_PEER_DEAD,       [SOAK_EXIT] = TUTTI_ERR_PEER_DEAD,
        [SOAK_STOP] = TUTTI_ERR_TIMEOUT,         [SOAK_LATE] = TUTTI_ERR_TIMEOUT,
        [SOAK_COUNT] = TUTTI_ERR_MISMATCH,       [SOAK_DTYPE] = TUTTI_ERR_MISMATCH,
        [SOAK_OP] = TUTTI_ERR_MISMATCH,          [SOAK_ABORT_THREAD] = TUTTI_ERR_ABORTED,
        [SOAK_ABORT_SIGNAL] = TUTTI_ERR_ABORTED, [SOAK_KILL_SETUP] = TUTTI_ERR_PEER_DEAD,
        [SOAK_LATE_SETUP] = TUTTI_ERR_TIMEOUT,
    };
    return statuses[fault];
}

const char *fault_explains(struct soak_rank *self, enum tutti_status status,
                           const struct tutti_fault *fault, int comm)
{
    const struct soak_episode *episode = self->episode;
    const struct soak_members *members = &episode->comms[comm];
    bool is_peer = false, is_rank = false, is_hit = false;
    for (int i = 0; i < members->size; i++) {
        bool is_victim = episode->victims >> members->members[i] & 1;
        is_hit |= is_victim;
        is_peer |= is_victim && i == fault->peer;
        is_rank |= is_victim && i == fault->rank;
    }
    if (!is_hit || (comm && !episode_is_deadly(episode)))
        return "an error without a fault";
    if (status != status_of(episode->fault) &&
        !(episode_is_of_setup(episode) && status == TUTTI_ERR_TIMEOUT))
        return "not the error of this fault";
    if (fault->status != status)
        return "the communicator has another status";
    if (is_peer || (status == TUTTI_ERR_MISMATCH && is_rank) || episode_is_of_setup(episode))
        return NULL; /* who did not get as far as a communicator leaves those who did */
    if (status == TUTTI_ERR_TIMEOUT && fault->peer >= 0 && fault->peer < members->size &&
        is_starved(self, members->members[fault->peer])) {
        self->progress->starved++;
        return NULL;
    }
    return "the wrong rank is named";
}
