/* SPDX-License-Identifier: MIT */
#include "ranks.h"

#include "comm/comm.h"
#include "device.h"
#include "stacks.h"

#include <errno.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

static void give_up(const char *what)
{
    fprintf(stderr, "ranks: %s: %s (%s)\n", what, strerror(errno), tutti_last_error());
    exit(1);
}

/* Serves until it is killed. */
static void serve(struct ranks *ranks, pid_t parent)
{
    tutti_store_t *store;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent ||
        tutti_store_open("tcp://127.0.0.1:0?server=1", RANKS_TIMEOUT_MS, &store) != TUTTI_OK)
        _exit(1);
    snprintf(ranks->url, sizeof ranks->url, "%s", tutti_store_url(store));
    ranks_raise(ranks, 0);
    for (;;)
        pause();
}

/* CUDA survives no fork(): its threads have a process of their own, too, so that this one can start
 * others. TUTTI_TEST_IN_PROCESS, for tools that look at one process, keeps them here: for tests
 * that run once. */
static bool in_child(const struct ranks *ranks)
{
    return ranks->processes || (device_is_cuda() && !getenv("TUTTI_TEST_IN_PROCESS"));
}

static void store_start(struct ranks *ranks)
{
    static int count;
    pid_t parent = getpid();
    if (!ranks->processes) {
        snprintf(ranks->url, sizeof ranks->url, "memory:ranks-%d", count++);
        if (in_child(ranks)) /* which opens it */
            return;
        if (tutti_store_open(ranks->url, RANKS_TIMEOUT_MS, &ranks->memory) != TUTTI_OK)
            give_up(ranks->url);
        return;
    }
    fflush(NULL);
    pid_t child = fork();
    if (child == 0)
        serve(ranks, parent);
    ranks->server = child; /* shared: the child must not write it */
    if (child < 0 || !ranks_await(ranks, 0, 1))
        give_up("store server");
}

struct ranks *ranks_create(int size, int processes, size_t shared_bytes)
{
    struct ranks *ranks = mmap(NULL, sizeof *ranks + shared_bytes, PROT_READ | PROT_WRITE,
                               MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (ranks == MAP_FAILED)
        give_up("mmap");
    ranks->size = size;
    ranks->processes = processes;
    ranks->shared_bytes = shared_bytes;
    if (hosts_prepare)
        hosts_prepare();
    store_start(ranks);
    return ranks;
}

void ranks_destroy(struct ranks *ranks)
{
    if (!ranks)
        return;
    tutti_store_close(ranks->memory);
    if (ranks->server > 0) {
        kill(ranks->server, SIGKILL);
        waitpid(ranks->server, NULL, 0);
    }
    munmap(ranks, sizeof *ranks + ranks->shared_bytes);
}

/* ---- watchdog -------------------------------------------------------------------------------- */

/* The children of the run that is on, for the signal handler. */
static pid_t children[RANKS_MOST];
static volatile sig_atomic_t child_count;

static void signal_children(int number)
{
    for (int i = 0; i < child_count; i++)
        if (children[i] > 0)
            kill(children[i], number);
}

static void bark(int number)
{
    static const char text[] = "ranks: the run did not end by its deadline: killed\n";
    (void)number;
    signal_children(SIGQUIT);
    sleep(1); /* for their stacks */
    signal_children(SIGKILL);
    stacks_write();
    if (write(STDERR_FILENO, text, sizeof text - 1) < 0)
        _exit(2);
    _exit(1);
}

static void watch(void)
{
    struct sigaction action = {.sa_handler = bark, .sa_flags = SA_RESTART};
    stacks_on_quit();
    sigaction(SIGALRM, &action, NULL);
    alarm(RANKS_DEADLINE_S);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

struct rank_thread {
    pthread_t thread;
    struct ranks *ranks;
    ranks_fn *fn;
    int rank;
};

static void *rank_main(void *argument)
{
    const struct rank_thread *self = argument;
    struct ranks *ranks = self->ranks;
    tutti_store_t *store;
    ranks->pids[self->rank] = getpid();
    if (device_is_cuda() && !device_bind(self->rank)) {
        ranks_fail(ranks, self->rank, __FILE__, __LINE__, "device_bind");
        return NULL;
    }
    if (tutti_store_open(ranks->url, RANKS_TIMEOUT_MS, &store) != TUTTI_OK) {
        ranks_fail(ranks, self->rank, __FILE__, __LINE__, "tutti_store_open");
        return NULL;
    }
    int line = self->fn(ranks, self->rank, store);
    if (line && !ranks->results[self->rank].line)
        ranks_fail(ranks, self->rank, "returned", line, "");
    tutti_store_close(store);
    return NULL;
}

/* Ranks first to last - 1 as threads. One alone needs none: then the process has no other. */
static void run_threads(struct ranks *ranks, ranks_fn *fn, int first, int last)
{
    struct rank_thread threads[RANKS_MOST];
    for (int r = first; r < last; r++) {
        threads[r] = (struct rank_thread){.ranks = ranks, .fn = fn, .rank = r};
        if (last - first == 1)
            rank_main(&threads[r]);
        else if (pthread_create(&threads[r].thread, NULL, rank_main, &threads[r]) != 0)
            give_up("pthread_create");
    }
    for (int r = first; last - first > 1 && r < last; r++)
        pthread_join(threads[r].thread, NULL);
}

static int processes_of(const struct ranks *ranks)
{
    return ranks->processes ? ranks->processes : 1;
}

static int first_rank_of(const struct ranks *ranks, int process)
{
    return process * ranks->size / processes_of(ranks);
}

/* A process's ranks; a store of threads lives as long as it has a handle. */
static void run_process(struct ranks *ranks, ranks_fn *fn, int process)
{
    tutti_store_t *keeper = NULL;
    if (!ranks->processes && tutti_store_open(ranks->url, RANKS_TIMEOUT_MS, &keeper) != TUTTI_OK)
        give_up(ranks->url);
    run_threads(ranks, fn, first_rank_of(ranks, process), first_rank_of(ranks, process + 1));
    tutti_store_close(keeper);
}

static void run_processes(struct ranks *ranks, ranks_fn *fn)
{
    pid_t parent = getpid();
    fflush(NULL);
    child_count = 0;
    for (int p = 0; p < processes_of(ranks); p++) {
        pid_t child = fork();
        if (child < 0)
            give_up("fork");
        if (child == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            if (getppid() != parent)
                _exit(1);
            if (hosts_enter)
                hosts_enter(first_rank_of(ranks, p));
            run_process(ranks, fn, p);
            fflush(NULL);
            _exit(0);
        }
        children[p] = child;
        child_count = p + 1;
    }
    for (int p = 0; p < processes_of(ranks); p++) {
        int how = 0;
        while (waitpid(children[p], &how, 0) < 0 && errno == EINTR)
            ;
        children[p] = 0;
        for (int r = first_rank_of(ranks, p); r < first_rank_of(ranks, p + 1); r++)
            ranks->results[r].signal = WIFSIGNALED(how) ? WTERMSIG(how) : 0;
    }
    child_count = 0;
}

int ranks_run(struct ranks *ranks, ranks_fn *fn)
{
    int failures = 0;
    comm_threads_exceed_cores = true; /* a machine with few cores tests parts, too */
    memset(ranks->results, 0, sizeof ranks->results);
    memset(ranks->flags, 0, sizeof ranks->flags);
    watch();
    if (in_child(ranks))
        run_processes(ranks, fn);
    else
        run_threads(ranks, fn, 0, ranks->size);
    alarm(0);
    for (int r = 0; r < ranks->size; r++) {
        const struct ranks_result *result = &ranks->results[r];
        bool killed = result->signal && !(r < 64 && ranks->expendable >> r & 1);
        if (killed)
            fprintf(stderr, "rank %d of %d ended by signal %d\n", r, ranks->size, result->signal);
        if (result->line)
            fprintf(stderr, "rank %d of %d failed: %s\n", r, ranks->size, result->text);
        failures += killed || result->line;
    }
    return failures;
}

int ranks_run_parts(const struct ranks_part *parts, size_t count)
{
    int failures = 0;
    for (size_t i = 0; i < count; i++) {
        for (const int *size = parts[i].sizes; *size; size++) {
            struct ranks *ranks = ranks_create(*size, *size, 0);
            const int failed = ranks_run(ranks, parts[i].fn);
            ranks_destroy(ranks);
            if (failed)
                fprintf(stderr, "%s failed\n", parts[i].name);
            failures += failed;
        }
    }
    return failures;
}

/* ---- for the ranks' parts -------------------------------------------------------------------- */

void ranks_raise(struct ranks *ranks, int flag)
{
    __atomic_fetch_add(&ranks->flags[flag], 1, __ATOMIC_ACQ_REL);
}

bool ranks_await(struct ranks *ranks, int flag, uint32_t times)
{
    for (int waited = 0; waited < RANKS_TIMEOUT_MS * 5; waited++) {
        if (__atomic_load_n(&ranks->flags[flag], __ATOMIC_ACQUIRE) >= times)
            return true;
        usleep(200);
    }
    return false;
}

bool ranks_meet(struct ranks *ranks, int flag)
{
    ranks_raise(ranks, flag);
    return ranks_await(ranks, flag, (uint32_t)ranks->size);
}

struct task {
    void (*run)(void *argument, int i);
    void *argument;
    int i;
};

static void *task_run(void *opaque)
{
    const struct task *task = opaque;
    task->run(task->argument, task->i);
    return NULL;
}

/* Threads for one call. Where one cannot be had, the calling thread runs the task. */
static void parallel(void *context, int tasks, void (*run)(void *argument, int i), void *argument)
{
    pthread_t threads[TUTTI_MAX_THREADS];
    struct task task[TUTTI_MAX_THREADS];
    bool started[TUTTI_MAX_THREADS] = {false};
    (void)context;
    for (int i = 1; i < tasks; i++) {
        task[i] = (struct task){run, argument, i};
        started[i] = pthread_create(&threads[i], NULL, task_run, &task[i]) == 0;
    }
    for (int i = 0; i < tasks; i++)
        if (!started[i])
            run(argument, i);
    for (int i = 1; i < tasks; i++)
        if (started[i])
            pthread_join(threads[i], NULL);
}

/* TUTTI_TEST_THREADS=3,1: three threads for each rank of even number, one for the others. */
static void threads_set(int rank, struct tutti_comm_options *options)
{
    const char *given = getenv("TUTTI_TEST_THREADS");
    if (!given || options->device != TUTTI_DEVICE_CPU || device_is_cuda())
        return;
    int counts[16], count = 0;
    for (const char *at = given; at && count < 16;
         at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL)
        counts[count++] = atoi(at);
    options->parallel = parallel;
    options->threads = counts[rank % count];
}

enum tutti_status ranks_join(const struct ranks *ranks, int rank, tutti_store_t *store,
                             const struct tutti_comm_options *options, tutti_comm_t **comm)
{
    struct tutti_comm_options own = {.struct_size = sizeof own};
    if (options)
        own = *options;
    if (!own.timeout_ms)
        own.timeout_ms = RANKS_TIMEOUT_MS;
    threads_set(rank, &own);
    if (hosts_fabric)
        own.fabric = hosts_fabric(rank);
    return tutti_comm_create(store, rank, ranks->size, &own, comm);
}

int ranks_fail(struct ranks *ranks, int rank, const char *file, int line, const char *what)
{
    struct ranks_result *result = &ranks->results[rank];
    snprintf(result->text, sizeof result->text, "%s:%d: %s [%s]", file, line, what,
             tutti_last_error());
    result->line = line;
    return line;
}

void ranks_share_cores(void)
{
    cpu_set_t all, two;
    CPU_ZERO(&two);
    if (sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    for (int core = 0; core < CPU_SETSIZE && CPU_COUNT(&two) < 2; core++)
        if (CPU_ISSET(core, &all))
            CPU_SET(core, &two);
    (void)sched_setaffinity(0, sizeof two, &two);
}

bool ranks_short(void)
{
    const char *text = getenv("TUTTI_TEST_SHORT");
    return text && *text && strcmp(text, "0") != 0;
}

int ranks_operations(int usual, int fewer)
{
    const char *text = getenv("TUTTI_TEST_OPERATIONS");
    return text ? atoi(text) : ranks_short() ? fewer : usual;
}

bool ranks_fit(int size)
{
    return !device_is_cuda() || size <= device_count(NULL);
}

int ranks_skip_direct(void)
{
    int value = 7, status = 0;
    const pid_t parent = getpid(), child = fork();
    if (child == 0) {
        int seen = 0;
        struct iovec to = {&seen, sizeof seen}, from = {&value, sizeof value};
        _exit(process_vm_readv(parent, &to, 1, &from, 1, 0) == sizeof seen && seen == 7 ? 0 : 1);
    }
    if (waitpid(child, &status, 0) == child && status == 0)
        return 0;
    printf("skipped: the kernel refuses copies between processes here\n");
    return 77;
}

int ranks_skip(int least)
{
    const char *reason, *direct = getenv("TUTTI_DIRECT");
    if (direct && strcmp(direct, "on") == 0 && ranks_skip_direct())
        return 77;
    if (!device_is_cuda() || device_count(&reason) >= least)
        return 0;
    if (*reason)
        printf("skipped: TUTTI_TEST_DEVICE=cuda: %s\n", reason);
    else
        printf("skipped: needs %d GPUs, this machine has %d\n", least, device_count(NULL));
    return 77;
}

int ranks_skip_cuda(const char *why)
{
    if (!device_is_cuda())
        return 0;
    printf("skipped: TUTTI_TEST_DEVICE=cuda: %s\n", why);
    return 77;
}
