/* SPDX-License-Identifier: MIT */
#include "ranks.h"

#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

/* Waits in a child until the parent opens the gate. If the parent ends before, the child exits. */
static bool wait_at_gate(int gate, pid_t parent, char *start)
{
    /* The request has no effect if the parent ended before it, so the parent is checked again. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) < 0 || getppid() != parent)
        return false;
    ssize_t got;
    do
        got = read(gate, start, RANKS_START_BYTES);
    while (got < 0 && errno == EINTR);
    close(gate);
    return got == RANKS_START_BYTES;
}

bool ranks_fork(struct ranks *ranks, int count, ranks_fn *fn, void *context)
{
    int gate[2];
    memset(ranks, 0, sizeof *ranks);
    ranks->gate = -1;
    if (pipe2(gate, O_CLOEXEC) < 0)
        return tool_fail_errno("cannot make a pipe");
    pid_t parent = getpid();
    fflush(NULL);
    for (int i = 0; i < count; i++) {
        pid_t pid = fork();
        if (pid < 0) {
            tool_fail_errno("cannot fork rank %d", i);
            goto err_end;
        }
        if (pid == 0) {
            char start[RANKS_START_BYTES];
            close(gate[1]);
            int status = wait_at_gate(gate[0], parent, start) ? fn(i, start, context) : TOOL_FAILED;
            fflush(NULL);
            _exit(status);
        }
        ranks->pids[ranks->count++] = pid;
        ranks->running++;
    }
    close(gate[0]);
    ranks->gate = gate[1];
    return true;

err_end:
    close(gate[0]);
    close(gate[1]);
    ranks_end(ranks);
    return false;
}

bool ranks_start(struct ranks *ranks, const char *start)
{
    /* Records are not longer than PIPE_BUF, so each child's read takes exactly one. All of
     * them fit into an empty pipe. */
    char record[RANKS_START_BYTES] = {0};
    snprintf(record, sizeof record, "%s", start);
    /* If no child is left to read it, write() returns an error instead of raising SIGPIPE. */
    const struct sigaction ignore = {.sa_handler = SIG_IGN};
    struct sigaction before;
    sigaction(SIGPIPE, &ignore, &before);
    bool ok = true;
    for (int i = 0; i < ranks->count && ok; i++)
        ok = write(ranks->gate, record, sizeof record) == (ssize_t)sizeof record;
    if (!ok)
        tool_fail_errno("cannot start the ranks");
    sigaction(SIGPIPE, &before, NULL);
    close(ranks->gate);
    ranks->gate = -1;
    return ok;
}

int ranks_reaped(struct ranks *ranks, pid_t pid)
{
    for (int i = 0; i < ranks->count; i++)
        if (ranks->pids[i] == pid) {
            ranks->pids[i] = 0;
            ranks->running--;
            return i;
        }
    return -1;
}

void ranks_await(struct ranks *ranks)
{
    for (int i = 0; i < ranks->count; i++) {
        pid_t pid = ranks->pids[i];
        if (pid == 0)
            continue;
        while (waitpid(pid, NULL, 0) < 0 && errno == EINTR)
            ;
        ranks_reaped(ranks, pid);
    }
}

void ranks_signal(const struct ranks *ranks, int signal)
{
    for (int i = 0; i < ranks->count; i++)
        if (ranks->pids[i])
            kill(ranks->pids[i], signal);
}

void ranks_end(struct ranks *ranks)
{
    if (ranks->count == 0)
        return;
    ranks_signal(ranks, SIGKILL);
    for (int i = 0; i < ranks->count; i++)
        if (ranks->pids[i]) {
            while (waitpid(ranks->pids[i], NULL, 0) < 0 && errno == EINTR)
                ;
            ranks->pids[i] = 0;
        }
    ranks->running = 0;
    if (ranks->gate >= 0)
        close(ranks->gate);
    ranks->gate = -1;
}

void ranks_describe_exit(int status, char *text, size_t capacity)
{
    if (WIFSIGNALED(status))
        snprintf(text, capacity, "was killed by signal %d (%s)%s", WTERMSIG(status),
                 strsignal(WTERMSIG(status)), WCOREDUMP(status) ? ", core dumped" : "");
    else
        snprintf(text, capacity, "exited with status %d", WEXITSTATUS(status));
}

/* ---- threads --------------------------------------------------------------------------------- */

struct crew {
    pthread_mutex_t gate; /* held until all threads have started, or one could not */
    bool complete;
    threads_fn *fn;
};

struct member {
    struct crew *crew;
    void *argument;
    pthread_t thread;
    bool result;
};

static void *member_main(void *context)
{
    struct member *self = context;
    pthread_mutex_lock(&self->crew->gate);
    pthread_mutex_unlock(&self->crew->gate);
    self->result = self->crew->complete && self->crew->fn(self->argument);
    return NULL;
}

int threads_run(int count, threads_fn *fn, void *arguments, size_t argument_bytes)
{
    struct crew crew = {.gate = PTHREAD_MUTEX_INITIALIZER, .fn = fn};
    struct member members[TUTTI_MAX_RANKS];
    int started = 0, good = 0, code = 0;
    pthread_mutex_lock(&crew.gate);
    for (; started < count; started++) {
        struct member *member = &members[started];
        *member =
            (struct member){&crew, (char *)arguments + (size_t)started * argument_bytes, 0, false};
        code = pthread_create(&member->thread, NULL, member_main, member);
        if (code)
            break;
    }
    crew.complete = started == count;
    pthread_mutex_unlock(&crew.gate);
    for (int i = 0; i < started; i++) {
        pthread_join(members[i].thread, NULL);
        good += members[i].result;
    }
    errno = code;
    return code ? -1 : good;
}
