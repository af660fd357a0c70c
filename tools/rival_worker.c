/* SPDX-License-Identifier: MIT */
/* Links neither the tool nor the library. A rival's program is this file and its engine. */
#include "collective.h"
#include "rival.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static char error_text[sizeof((struct rival_result *)0)->text];

struct worker {
    const struct rival_engine *engine;
    enum tutti_collective which;
    const struct collective *collective;
    rival_operation *run;
    unsigned operations; /* so far */
    int rank, size;
    int fd;
    float *buffer;
    size_t capacity; /* bytes */
};

int rival_error(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(error_text, sizeof error_text, format, args);
    va_end(args);
    return -1;
}

const char *rival_env(const char *name, const char *fallback)
{
    const char *value = getenv(name);
    return value ? value : fallback;
}

static uint64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec;
}

/* ---- start ----------------------------------------------------------------------------------- */

/* Takes the rank from the environment: the process is bound before the library is initialised, so
 * that the library's threads and memory are on the rank's core. */
static int read_rank(struct worker *worker)
{
    static const char *const names[] = {RIVAL_RANK, "PMI_RANK", "OMPI_COMM_WORLD_RANK"};
    const char *text = NULL;
    for (size_t i = 0; i < sizeof names / sizeof *names && !text; i++)
        text = getenv(names[i]);
    worker->rank = text ? atoi(text) : -1;
    worker->size = atoi(rival_env(RIVAL_SIZE, "0"));
    worker->capacity = strtoull(rival_env(RIVAL_CAPACITY, "0"), NULL, 10);
    if (worker->rank < 0 || worker->rank >= worker->size)
        return rival_error("no rank in the environment: `tutti bench --vs` starts this program");
    return 0;
}

static int choose_operation(struct worker *worker)
{
    const struct rival_engine *engine = worker->engine;
    unsigned which = (unsigned)atoi(rival_env(RIVAL_COLLECTIVE, "0"));
    if (which >= RIVAL_OPERATIONS || !engine->operations[which])
        return rival_error("%s is %u, which this program does not have", RIVAL_COLLECTIVE, which);
    worker->which = (enum tutti_collective)which;
    worker->collective = &collectives[which];
    worker->run = engine->operations[which];
    if (!collective_is_in_place(worker->collective))
        worker->capacity *= 2;
    return 0;
}

static int bind_to_cpus(int rank)
{
    const char *cpus = rival_env(RIVAL_CPUS, "");
    if (!*cpus)
        return 0;
    for (int i = 0; i < rank && cpus; i++)
        if ((cpus = strchr(cpus, ',')))
            cpus++;
    if (!cpus)
        return rival_error("%s has no CPU of rank %d", RIVAL_CPUS, rank);
    cpu_set_t own;
    CPU_ZERO(&own);
    for (char *end = NULL; !end || *end == '+'; cpus = end + 1)
        CPU_SET((unsigned)strtoul(cpus, &end, 10), &own);
    if (sched_setaffinity(0, sizeof own, &own) != 0)
        return rival_error("sched_setaffinity: %s", strerror(errno));
    return 0;
}

static int connect_to_tool(struct worker *worker)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct rival_hello hello = {.rank = worker->rank};
    const char *name = rival_env(RIVAL_SOCKET, "");
    size_t length = strlen(name);
    if (length == 0 || length >= sizeof address.sun_path)
        return rival_error("%s is '%s', no name of a socket", RIVAL_SOCKET, name);
    memcpy(address.sun_path + 1, name, length);
    if (worker->engine->version)
        snprintf(hello.version, sizeof hello.version, "%s", worker->engine->version());
    worker->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (worker->fd < 0 ||
        connect(worker->fd, (const struct sockaddr *)&address,
                (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + length)) != 0 ||
        send(worker->fd, &hello, sizeof hello, MSG_NOSIGNAL) != (ssize_t)sizeof hello)
        return rival_error("socket %s: %s", name, strerror(errno));
    return 0;
}

static int allocate(struct worker *worker)
{
    const struct rival_engine *engine = worker->engine;
    if (engine->alloc && engine->alloc(worker->capacity, &worker->buffer) != 0)
        return -1;
    if (worker->buffer)
        return 0;
    void *memory =
        mmap(NULL, worker->capacity, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return rival_error("%zu bytes of memory: %s", worker->capacity, strerror(errno));
    worker->buffer = memory;
    return 0;
}

/* ---- a block --------------------------------------------------------------------------------- */

/* Ten bits that look random, so that a chunk in the wrong place is noticed. */
static float pattern(size_t index)
{
    return (float)((uint32_t)index * 2654435761u >> 22);
}

/* Elements of a block. The buffer has one block, or one for each rank. */
static size_t block_count(const struct worker *worker, size_t bytes)
{
    return bytes / sizeof(float) / (size_t)collective_blocks(worker->collective, worker->size);
}

/* The result of an operation on the buffer: *first is the element of the buffer with which the
 * result would begin in place. */
static const float *result_of(const struct worker *worker, size_t count, size_t *first)
{
    const struct collective *collective = worker->collective;
    *first = collective->send_all ? (size_t)worker->rank * count : 0;
    if (!collective_is_in_place(collective))
        return worker->buffer + (size_t)collective_blocks(collective, worker->size) * count;
    return worker->buffer + (worker->engine->scatters_to_first && collective->reduces ? 0 : *first);
}

/* The root of the next operation: the roots take turns. */
static int root_of(const struct worker *worker)
{
    return (int)(worker->operations % (unsigned)worker->size);
}

static int run_one(struct worker *worker, size_t count)
{
    const int root = root_of(worker);
    worker->operations++;
    return worker->run(worker->buffer, count, root);
}

/* Runs one operation on small integers, whose sums are exact in float32: element i of a rank's
 * buffer is pattern(i) times rank + 1. Counts the wrong elements. */
static int check(struct worker *worker, size_t bytes, uint64_t *wrong)
{
    const struct collective *collective = worker->collective;
    const int ranks = worker->size;
    const size_t all = bytes / sizeof(float), count = block_count(worker, bytes);
    const size_t results = count * (size_t)collective_recv_blocks(collective, ranks);
    size_t first;
    const float *result = result_of(worker, count, &first);
    for (size_t i = 0; i < all; i++)
        worker->buffer[i] = (float)(worker->rank + 1) * pattern(i);
    const int root = root_of(worker);
    const bool receives = !collective->recv_at_root || worker->rank == root;
    int error = run_one(worker, count);
    for (size_t i = 0; !error && receives && i < results; i++) {
        int factor =
            collective->reduces
                ? ranks * (ranks + 1) / 2
                : collective_source(worker->which, worker->rank, ranks, root, (int)(i / count)) + 1;
        size_t from = collective->send_all ? first + i % count : i;
        *wrong += result[i] != (float)factor * pattern(from);
    }
    /* Timed operations sum zeros, because other values would grow to infinity in place. */
    memset(worker->buffer, 0, bytes);
    return error;
}

/* How often another thread has taken this thread's core. */
static uint64_t preemptions(void)
{
    struct rusage usage;
    getrusage(RUSAGE_THREAD, &usage);
    return (uint64_t)usage.ru_nivcsw;
}

static int run_block(struct worker *worker, const struct rival_command *command,
                     struct rival_result *result)
{
    const struct rival_engine *engine = worker->engine;
    size_t count = block_count(worker, command->bytes);
    int error = 0;
    if (command->check)
        error = check(worker, command->bytes, &result->wrong);
    for (uint32_t i = 0; !error && i < command->warmup; i++)
        error = run_one(worker, count);
    result->preempted = preemptions();
    uint64_t start = now_ns();
    for (uint32_t i = 0; !error && i < command->iterations; i++)
        error = run_one(worker, count);
    result->nanoseconds = now_ns() - start;
    result->preempted = preemptions() - result->preempted;
    if (!error && command->check)
        error = check(worker, command->bytes, &result->wrong);
    if (engine->algorithm && worker->collective->chosen)
        snprintf(result->algo, sizeof result->algo, "%s", engine->algorithm(count));
    return error;
}

static int obey(struct worker *worker, const struct rival_command *command, size_t *prepared,
                struct rival_result *result)
{
    const struct rival_engine *engine = worker->engine;
    if (command->bytes == 0) {
        result->round_trip_ns = engine->probe ? engine->probe() : 0;
        return 0;
    }
    if (command->bytes > worker->capacity || block_count(worker, command->bytes) == 0)
        return rival_error("a message of %llu bytes", (unsigned long long)command->bytes);
    if (command->bytes != *prepared && engine->prepare &&
        engine->prepare(worker->buffer, block_count(worker, command->bytes)) != 0)
        return -1;
    *prepared = command->bytes;
    return run_block(worker, command, result);
}

/* Runs commands until the tool closes the socket. */
static int serve(struct worker *worker)
{
    struct rival_command command;
    size_t prepared = 0;
    int error = 0;
    while (!error && read(worker->fd, &command, sizeof command) == (ssize_t)sizeof command) {
        struct rival_result result = {0};
        alarm(RIVAL_LIMIT_SECONDS);
        error = obey(worker, &command, &prepared, &result);
        if (error) {
            result.failed = 1;
            memcpy(result.text, error_text, sizeof result.text);
        }
        alarm(0);
        if (send(worker->fd, &result, sizeof result, MSG_NOSIGNAL) != (ssize_t)sizeof result)
            break;
    }
    return error;
}

int rival_main(const struct rival_engine *engine)
{
    struct worker worker = {.engine = engine, .fd = -1};
    int error = -1;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(RIVAL_LIMIT_SECONDS);
    if (read_rank(&worker) != 0 || choose_operation(&worker) != 0 ||
        bind_to_cpus(worker.rank) != 0 || engine->init(worker.rank, worker.size) != 0)
        goto out;
    /* Bind again, because the library may have bound this thread. */
    if (bind_to_cpus(worker.rank) != 0 || allocate(&worker) != 0 || connect_to_tool(&worker) != 0)
        goto err_fini;
    alarm(0);
    error = serve(&worker);
    alarm(RIVAL_LIMIT_SECONDS);

err_fini:
    if (worker.fd >= 0)
        close(worker.fd);
    engine->fini();
out:
    if (error)
        fprintf(stderr, "rank %d: %s\n", worker.rank, error_text);
    return error ? EXIT_FAILURE : EXIT_SUCCESS;
}
