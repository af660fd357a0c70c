/* SPDX-License-Identifier: MIT */
#include "worker.h"

#include "now.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static char error_text[sizeof((struct bench_result *)0)->text];

int bench_error(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(error_text, sizeof(error_text), format, arguments);
    va_end(arguments);
    return -1;
}

const char *bench_env(const char *name, const char *fallback)
{
    const char *value = getenv(name);

    return value != NULL ? value : fallback;
}

int bench_env_rank(int *rank, int *size)
{
    *rank = atoi(bench_env(BENCH_ENV_RANK, "-1"));
    *size = atoi(bench_env(BENCH_ENV_SIZE, "0"));
    if (*rank < 0 || *rank >= *size)
        return bench_error("%s and %s are not set: start this program with compare", BENCH_ENV_RANK,
                           BENCH_ENV_SIZE);
    return 0;
}

/* Puts this process on the rank-th of the cores that it may use, round and round. */
static int bind_to_core(int rank)
{
    cpu_set_t allowed;
    cpu_set_t one;
    int skip;

    if (sched_getaffinity(0, sizeof(allowed), &allowed) != 0)
        return bench_error("sched_getaffinity: %s", strerror(errno));
    skip = rank % CPU_COUNT(&allowed);
    for (int core = 0; core < CPU_SETSIZE; core++) {
        if (!CPU_ISSET(core, &allowed) || skip-- > 0)
            continue;
        CPU_ZERO(&one);
        CPU_SET(core, &one);
        if (sched_setaffinity(0, sizeof(one), &one) != 0)
            return bench_error("sched_setaffinity: %s", strerror(errno));
        return 0;
    }
    return bench_error("no core for rank %d", rank);
}

static int connect_to_compare(int rank, int size, int *fd)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct bench_hello hello = {.rank = rank, .size = size};
    const char *path = bench_env(BENCH_ENV_SOCKET, "");

    if (*path == '\0' || strlen(path) >= sizeof(address.sun_path))
        return bench_error("%s is \"%s\", no path of a socket", BENCH_ENV_SOCKET, path);
    strcpy(address.sun_path, path);
    *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (*fd < 0)
        return bench_error("socket: %s", strerror(errno));
    if (connect(*fd, (const struct sockaddr *)&address, sizeof(address)) != 0 ||
        send(*fd, &hello, sizeof(hello), MSG_NOSIGNAL) != (ssize_t)sizeof(hello)) {
        bench_error("%s: %s", path, strerror(errno));
        close(*fd);
        return -1;
    }
    return 0;
}

/* Ten bits that look random, so that a chunk that lands in the wrong place is noticed. */
static uint32_t pattern(size_t index)
{
    return (uint32_t)index * 2654435761u >> 22;
}

/* One operation on small integers, whose sums float32 holds exactly; counts the wrong elements. */
static int check(float *buffer, size_t count, int rank, int size, uint64_t *wrong)
{
    float weight = (float)(rank + 1);
    float expected = (float)(size * (size + 1) / 2);
    int error;

    for (size_t i = 0; i < count; i++)
        buffer[i] = weight * (float)pattern(i);
    error = bench_engine.all_reduce(buffer, count);
    for (size_t i = 0; error == 0 && i < count; i++)
        *wrong += buffer[i] != expected * (float)pattern(i);
    /* Timed operations sum zeros: in place, any other value would grow into infinity. */
    memset(buffer, 0, count * sizeof(float));
    return error;
}

/* How often this thread has lost its core to another one. */
static uint64_t preemptions(void)
{
    struct rusage usage;

    getrusage(RUSAGE_THREAD, &usage);
    return (uint64_t)usage.ru_nivcsw;
}

static int run_block(const struct bench_command *command, float *buffer, int rank, int size,
                     struct bench_result *result)
{
    size_t count = command->bytes / sizeof(float);
    int64_t start;
    int error = 0;

    if (command->flags & BENCH_CHECK)
        error = check(buffer, count, rank, size, &result->wrong);
    for (uint32_t i = 0; error == 0 && i < command->warmup; i++)
        error = bench_engine.all_reduce(buffer, count);
    result->preempted = preemptions();
    start = now_ns();
    for (uint32_t i = 0; error == 0 && i < command->iterations; i++)
        error = bench_engine.all_reduce(buffer, count);
    result->nanoseconds = (uint64_t)(now_ns() - start);
    result->preempted = preemptions() - result->preempted;
    if (error == 0 && command->flags & BENCH_CHECK)
        error = check(buffer, count, rank, size, &result->wrong);
    if (bench_engine.algorithm != NULL)
        snprintf(result->algo, sizeof(result->algo), "%s", bench_engine.algorithm(count));
    return error;
}

/* Obeys commands until compare closes the socket. */
static int serve(int fd, float *buffer, size_t capacity, int rank, int size)
{
    struct bench_command command;
    size_t prepared = 0;
    int error = 0;

    while (error == 0 && read(fd, &command, sizeof(command)) == (ssize_t)sizeof(command)) {
        struct bench_result result = {0};

        alarm(BENCH_COMMAND_LIMIT_S);
        if (command.bytes > capacity || command.bytes < sizeof(float))
            error = bench_error("a message of %llu bytes", (unsigned long long)command.bytes);
        if (error == 0 && command.bytes != prepared && bench_engine.prepare != NULL)
            error = bench_engine.prepare(buffer, command.bytes / sizeof(float));
        prepared = command.bytes;
        if (error == 0)
            error = run_block(&command, buffer, rank, size, &result);
        if (error != 0) {
            result.failed = 1;
            memcpy(result.text, error_text, sizeof(result.text));
        }
        alarm(0);
        if (send(fd, &result, sizeof(result), MSG_NOSIGNAL) != (ssize_t)sizeof(result))
            break;
    }
    return error;
}

static int alloc_buffer(size_t bytes, float **buffer)
{
    void *memory;

    if (bench_engine.alloc != NULL && bench_engine.alloc(bytes, buffer) != 0)
        return -1;
    if (*buffer != NULL)
        return 0;
    memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return bench_error("%zu bytes of memory: %s", bytes, strerror(errno));
    *buffer = memory;
    return 0;
}

int main(int argc, char **argv)
{
    size_t capacity = strtoull(bench_env(BENCH_ENV_CAPACITY, "0"), NULL, 10);
    bool bind = strcmp(bench_env(BENCH_ENV_BIND, "none"), "core") == 0;
    float *buffer = NULL;
    int status = EXIT_FAILURE;
    int rank = 0;
    int size = 0;
    int fd = -1;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(BENCH_COMMAND_LIMIT_S);
    /* A process that compare started itself is told its rank before the engine makes threads. */
    if (bind && bench_env_rank(&rank, &size) == 0 && bind_to_core(rank) != 0)
        goto out;
    if (bench_engine.init(&argc, &argv, &rank, &size) != 0)
        goto out;
    if (bind && bind_to_core(rank) != 0)
        goto err_fini;
    if (alloc_buffer(capacity, &buffer) != 0 || connect_to_compare(rank, size, &fd) != 0)
        goto err_fini;
    alarm(0);
    if (serve(fd, buffer, capacity, rank, size) == 0)
        status = EXIT_SUCCESS;
    close(fd);
    alarm(BENCH_COMMAND_LIMIT_S);

err_fini:
    bench_engine.fini();
out:
    if (status != EXIT_SUCCESS)
        fprintf(stderr, "rank %d: %s\n", rank, error_text);
    return status;
}
