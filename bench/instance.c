/* SPDX-License-Identifier: MIT */
#include "instance.h"

#include "now.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define START_LIMIT_MS   30000
#define STOP_LIMIT_MS    5000
#define SIGNAL_LIMIT_MS  2000
#define COMMAND_LIMIT_MS ((BENCH_COMMAND_LIMIT_S + 5) * 1000)

/* The last lines that the instance's processes wrote, indented, on stderr. */
static void show_log(const struct instance *instance)
{
    FILE *log = fopen(instance->log, "r");
    char line[512];

    if (log == NULL)
        return;
    if (fseek(log, -1500, SEEK_END) != 0)
        rewind(log);
    while (fgets(line, sizeof(line), log) != NULL)
        fprintf(stderr, "    %s", line);
    fclose(log);
}

/* In the child: what a rank reads of its environment. */
static void set_environment(const struct instance_place *place, const struct setting *setting,
                            int rank, const char *socket_path)
{
    char text[256];

    setenv(BENCH_ENV_SOCKET, socket_path, 1);
    snprintf(text, sizeof(text), "%s.store", socket_path);
    setenv(BENCH_ENV_STORE, text, 1);
    snprintf(text, sizeof(text), "%d", place->ranks);
    setenv(BENCH_ENV_SIZE, text, 1);
    snprintf(text, sizeof(text), "%zu", place->capacity);
    setenv(BENCH_ENV_CAPACITY, text, 1);
    setenv(BENCH_ENV_BIND, place->pinned ? "core" : "none", 1);
    if (setting->launcher == NULL) {
        snprintf(text, sizeof(text), "%d", rank);
        setenv(BENCH_ENV_RANK, text, 1);
    }
    for (int i = 0; i < SETTING_MAX_WORDS && setting->environment[i] != NULL; i++) {
        const char *equals = strchr(setting->environment[i], '=');

        snprintf(text, sizeof(text), "%.*s", (int)(equals - setting->environment[i]),
                 setting->environment[i]);
        setenv(text, equals + 1, 1);
    }
    /* Open MPI refuses root otherwise, and a container has nobody else. */
    setenv("OMPI_ALLOW_RUN_AS_ROOT", "1", 1);
    setenv("OMPI_ALLOW_RUN_AS_ROOT_CONFIRM", "1", 1);
}

/* In the child: becomes a rank, or the launcher of all of them. Does not return. */
static void become_child(const struct instance *instance, const struct instance_place *place,
                         int rank, const char *socket_path)
{
    const struct launcher *launcher = instance->setting->launcher;
    const char *words[SETTING_MAX_WORDS + 5] = {0};
    char worker[512];
    int count = 0;
    int log;

    prctl(PR_SET_PDEATHSIG, SIGTERM);
    signal(SIGINT, SIG_IGN); /* compare itself ends its children */
    log = open(instance->log, O_WRONLY | O_CREAT | O_APPEND, 0600);
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    dup2(log, STDOUT_FILENO);
    dup2(log, STDERR_FILENO);
    close(log);
    set_environment(place, instance->setting, rank, socket_path);
    snprintf(worker, sizeof(worker), "%s/%s", place->programs, instance->setting->program);
    if (launcher != NULL) {
        const char *const *arguments = place->pinned ? launcher->pinned : launcher->crowded;

        words[count++] = launcher->program;
        for (int i = 0; i < SETTING_MAX_WORDS && arguments[i] != NULL; i++)
            words[count++] = arguments[i];
        words[count++] = "-n";
        words[count++] = getenv(BENCH_ENV_SIZE);
    }
    words[count++] = worker;
    execvp(words[0], (char *const *)(uintptr_t)words);
    fprintf(stderr, "%s: %s\n", words[0], strerror(errno));
    _exit(127);
}

static int start_children(struct instance *instance, const struct instance_place *place,
                          const char *socket_path)
{
    int processes = instance->setting->launcher != NULL ? 1 : place->ranks;

    for (int rank = 0; rank < processes; rank++) {
        pid_t child = fork();

        if (child == 0)
            become_child(instance, place, rank, socket_path);
        if (child < 0) {
            fprintf(stderr, "compare: fork: %s\n", strerror(errno));
            return -1;
        }
        instance->children[rank] = child;
    }
    return 0;
}

/* Whether a child has ended, which none should before its socket is closed. */
static bool child_ended(struct instance *instance)
{
    for (int i = 0; i < BENCH_MAX_RANKS; i++) {
        if (instance->children[i] > 0 && waitpid(instance->children[i], NULL, WNOHANG) > 0) {
            instance->children[i] = 0;
            return true;
        }
    }
    return false;
}

/* Takes one connection and files it under the rank that it names. */
static int accept_rank(struct instance *instance, int listener)
{
    struct bench_hello hello;
    int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct pollfd ready = {.fd = fd, .events = POLLIN};

    if (fd < 0 || poll(&ready, 1, 1000) <= 0 ||
        recv(fd, &hello, sizeof(hello), 0) != (ssize_t)sizeof(hello) || hello.rank < 0 ||
        hello.rank >= instance->ranks || hello.size != instance->ranks ||
        instance->sockets[hello.rank] >= 0) {
        fprintf(stderr, "compare: %s: a rank's hello is missing or makes no sense\n",
                instance->setting->name);
        if (fd >= 0)
            close(fd);
        return -1;
    }
    instance->sockets[hello.rank] = fd;
    return 0;
}

static int accept_ranks(struct instance *instance, int listener)
{
    int64_t deadline = now_ms() + START_LIMIT_MS;

    for (int met = 0; met < instance->ranks;) {
        struct pollfd ready = {.fd = listener, .events = POLLIN};

        if (poll(&ready, 1, 100) > 0) {
            if (accept_rank(instance, listener) != 0)
                return -1;
            met++;
        } else if (child_ended(instance) || now_ms() > deadline) {
            fprintf(stderr, "compare: %s did not start (%d of %d ranks came); left out\n",
                    instance->setting->name, met, instance->ranks);
            return -1;
        }
    }
    return 0;
}

static int listen_at(struct sockaddr_un *address, int backlog)
{
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (const struct sockaddr *)address, sizeof(*address)) != 0 ||
        listen(fd, backlog) != 0) {
        fprintf(stderr, "compare: %s: %s\n", address->sun_path, strerror(errno));
        if (fd >= 0)
            close(fd);
        return -1;
    }
    return fd;
}

int instance_start(struct instance *instance, const struct setting *setting,
                   const struct instance_place *place)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[sizeof(address.sun_path)];
    int listener;
    int error;

    *instance = (struct instance){.setting = setting, .ranks = place->ranks};
    for (int rank = 0; rank < BENCH_MAX_RANKS; rank++)
        instance->sockets[rank] = -1;
    snprintf(path, sizeof(path), "%s/%s", place->directory, setting->name);
    for (char *space = path; (space = strchr(space, ' ')) != NULL;)
        *space = '-';
    strcpy(address.sun_path, path);
    snprintf(instance->log, sizeof(instance->log), "%s.log", path);
    listener = listen_at(&address, place->ranks);
    if (listener < 0)
        return -1;
    error = start_children(instance, place, address.sun_path);
    if (error == 0)
        error = accept_ranks(instance, listener);
    close(listener);
    unlink(address.sun_path);
    if (error != 0) {
        instance_stop(instance);
        show_log(instance);
    }
    return error;
}

/* Receives the result of one rank. [out] *result  zero unless it came. */
static int receive_result(struct instance *instance, int rank, int64_t deadline,
                          struct bench_result *result)
{
    struct pollfd ready = {.fd = instance->sockets[rank], .events = POLLIN};
    const char *problem = NULL;
    int events;

    *result = (struct bench_result){0};
    do {
        int64_t left = deadline - now_ms();

        events = poll(&ready, 1, left > 0 ? (int)left : 0);
    } while (events < 0 && errno == EINTR); /* who interrupts wants what has been sampled */
    if (events <= 0)
        problem = "gave no result in time";
    else if (recv(ready.fd, result, sizeof(*result), 0) != (ssize_t)sizeof(*result))
        problem = "ended";
    else if (result->failed)
        problem = result->text;
    else if (result->wrong != 0)
        problem = "has wrong elements";
    if (problem == NULL)
        return 0;
    fprintf(stderr, "compare: %s: rank %d: %s; left out from here\n", instance->setting->name, rank,
            problem);
    show_log(instance);
    return -1;
}

int instance_run(struct instance *instance, const struct bench_command *command,
                 struct instance_block *block)
{
    int64_t deadline = now_ms() + COMMAND_LIMIT_MS;
    uint64_t slowest = 0;

    *block = (struct instance_block){0};
    for (int rank = 0; rank < instance->ranks; rank++) {
        if (send(instance->sockets[rank], command, sizeof(*command), MSG_NOSIGNAL) < 0) {
            fprintf(stderr, "compare: %s: rank %d has ended\n", instance->setting->name, rank);
            show_log(instance);
            return -1;
        }
    }
    for (int rank = 0; rank < instance->ranks; rank++) {
        struct bench_result result;

        if (receive_result(instance, rank, deadline, &result) != 0) {
            block->wrong = result.wrong != 0;
            return -1;
        }
        if (result.nanoseconds > slowest)
            slowest = result.nanoseconds;
        block->preempted |= result.preempted > 0;
        memcpy(block->algo, result.algo, sizeof(block->algo));
    }
    block->nanoseconds = (double)slowest / command->iterations;
    return 0;
}

/* A launcher that is asked to end takes its ranks with it; one that is killed cannot. */
static void end_child(pid_t child, int64_t deadline)
{
    static const int signals[] = {SIGTERM, SIGKILL};

    for (size_t i = 0; i <= sizeof(signals) / sizeof(signals[0]); i++) {
        while (now_ms() < deadline) {
            if (waitpid(child, NULL, WNOHANG) != 0)
                return;
            poll(NULL, 0, 2);
        }
        if (i < sizeof(signals) / sizeof(signals[0]))
            kill(child, signals[i]);
        deadline = now_ms() + SIGNAL_LIMIT_MS;
    }
}

void instance_stop(struct instance *instance)
{
    int64_t deadline = now_ms() + STOP_LIMIT_MS;

    for (int rank = 0; rank < instance->ranks; rank++) {
        if (instance->sockets[rank] >= 0)
            close(instance->sockets[rank]);
        instance->sockets[rank] = -1;
    }
    for (int i = 0; i < BENCH_MAX_RANKS; i++) {
        if (instance->children[i] > 0)
            end_child(instance->children[i], deadline);
        instance->children[i] = 0;
    }
}
