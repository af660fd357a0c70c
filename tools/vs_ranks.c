/* SPDX-License-Identifier: MIT */
#include "tool.h"
#include "vs.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static const double start_seconds = 30, stop_seconds = 5, signal_seconds = 2;
static const double command_seconds = RIVAL_LIMIT_SECONDS + 5;
enum { LOOK_MS = 100, HELLO_MS = 1000, LOG_BYTES = 1500 };

static const struct vs_library *library_of(const struct vs_instance *instance)
{
    return &vs_libraries[instance->setting->library];
}

static bool is_ours(const struct vs_instance *instance)
{
    return !library_of(instance)->program;
}

/* Prints what is wrong with the setting, and the last lines of its processes. Returns false. */
static bool fail(const struct vs_instance *instance, const char *format, ...) TUTTI_PRINTF(2, 3);

static bool fail(const struct vs_instance *instance, const char *format, ...)
{
    char text[512], log[LOG_BYTES + 1];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tool_fail("%s: %s", instance->setting->name, text);
    off_t end = lseek(instance->log, 0, SEEK_END);
    ssize_t got = pread(instance->log, log, LOG_BYTES, end > LOG_BYTES ? end - LOG_BYTES : 0);
    log[got > 0 ? got : 0] = '\0';
    char *rest = NULL;
    for (char *line = strtok_r(log, "\n", &rest); line; line = strtok_r(NULL, "\n", &rest))
        fprintf(stderr, "    %s\n", line);
    return false;
}

/* ---- in the children ------------------------------------------------------------------------- */

static void put_environment(const struct vs_library *library, const char *const *words)
{
    for (int i = 0; i < VS_WORDS && words[i]; i++) {
        char text[512];
        vs_expand(library, words[i], text, sizeof text);
        char *equals = strchr(text, '=');
        *equals = '\0';
        setenv(text, equals + 1, 1);
    }
}

/* "0+1,2+3": the CPUs of each rank, Tutti's and the rivals' alike. False: they are not bound. */
static bool cpus_text(const struct bench_config *config, char *text, size_t capacity)
{
    size_t used = 0;
    for (int rank = 0; rank < config->ranks && config->placement.bound; rank++) {
        const char *before = rank ? "," : "";
        for (unsigned cpu = 0; cpu < CPU_SETSIZE && used < capacity; cpu++) {
            if (!CPU_ISSET(cpu, &config->placement.sets[rank]))
                continue;
            used += (size_t)snprintf(text + used, capacity - used, "%s%u", before, cpu);
            before = "+";
        }
    }
    return used > 0;
}

/* Sets the variables that a rank reads, and removes those of a launcher that started the tool. */
static void set_environment(const struct vs_instance *instance, int rank, const char *store_url)
{
    const struct bench_config *config = instance->config;
    char text[5 * CPU_SETSIZE];
    unsetenv("PMI_RANK");
    unsetenv("OMPI_COMM_WORLD_RANK");
    unsetenv(RIVAL_RANK);
    unsetenv(RIVAL_CPUS);
    setenv(RIVAL_SOCKET, instance->address, 1);
    setenv(RIVAL_STORE, store_url, 1);
    tool_setenv(RIVAL_COLLECTIVE, config->collective);
    tool_setenv(RIVAL_SIZE, (size_t)config->ranks);
    tool_setenv(RIVAL_CAPACITY, instance->capacity);
    if (!library_of(instance)->launcher)
        tool_setenv(RIVAL_RANK, (size_t)rank);
    unsetenv(RIVAL_THREADS);
    if (config->threads_per_rank && is_ours(instance))
        tool_setenv(RIVAL_THREADS, (size_t)config->threads_per_rank);
    if (cpus_text(config, text, sizeof text))
        setenv(RIVAL_CPUS, text, 1);
    put_environment(library_of(instance), library_of(instance)->environment);
    put_environment(library_of(instance), instance->setting->environment);
}

/* $TUTTI_BENCH_RIVALS/NAME, or NAME beside the tool. */
static void find_program(const char *name, char *path, size_t capacity)
{
    char self[512] = "";
    const char *folder = getenv("TUTTI_BENCH_RIVALS");
    if (!folder || !*folder) {
        ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
        char *slash = length > 0 ? strrchr(self, '/') : NULL;
        if (slash)
            *slash = '\0';
        folder = self;
    }
    snprintf(path, capacity, "%s/%s", folder, name);
}

/* Runs the rank, or the launcher of all ranks. */
static void execute(const struct vs_instance *instance)
{
    const struct vs_library *library = library_of(instance);
    const char *words[VS_WORDS + 5] = {0};
    char program[600], launcher[512];
    int count = 0;
    find_program(library->program, program, sizeof program);
    if (library->launcher) {
        const char *const *arguments =
            instance->config->placement.bound ? library->bound : library->crowded;
        vs_expand(library, library->launcher, launcher, sizeof launcher);
        words[count++] = launcher;
        for (int i = 0; i < VS_WORDS && arguments[i]; i++)
            words[count++] = arguments[i];
        words[count++] = "-n";
        words[count++] = getenv(RIVAL_SIZE);
        /* A launcher that gets SIGTERM ends its ranks, too. */
        prctl(PR_SET_PDEATHSIG, SIGTERM);
    }
    words[count++] = program;
    execvp(words[0], (char *const *)(uintptr_t)words);
    fprintf(stderr, "%s: %s\n", words[0], strerror(errno));
}

static int become_rank(int index, const char *store_url, void *context)
{
    const struct vs_instance *instance = context;
    set_environment(instance, index, store_url);
    dup2(open("/dev/null", O_RDONLY | O_CLOEXEC), STDIN_FILENO);
    dup2(instance->log, STDOUT_FILENO);
    dup2(instance->log, STDERR_FILENO);
    if (!is_ours(instance)) {
        execute(instance);
        return 127;
    }
    /* Closes the sockets of other instances. While one is open here, its rank does not see that the
     * tool has closed it. */
    close_range(STDERR_FILENO + 1, ~0U, 0);
    return rival_tutti_main(instance->ping);
}

/* ---- start ----------------------------------------------------------------------------------- */

/* Whether the program that starts the setting exists, and has the collective. */
static bool check_programs(const struct vs_instance *instance)
{
    const struct vs_library *library = library_of(instance);
    char path[600];
    if (library->all_reduce_only && instance->config->collective != TUTTI_COLLECTIVE_ALL_REDUCE)
        return tool_fail("%s is left out: its %s is not measured", library->name,
                         collective_name(instance->config->collective));
    find_program(library->program, path, sizeof path);
    if (access(path, X_OK) != 0)
        return tool_fail("%s: %s is not built: run `make bench`", library->name, library->program);
    if (!library->root)
        return true;
    vs_expand(library, library->launcher, path, sizeof path);
    return access(path, X_OK) == 0 ||
           tool_fail("%s: %s is missing: run `make bench`", library->name, path);
}

/* An abstract address, whose name the kernel chooses. */
static bool open_listener(struct vs_instance *instance)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    socklen_t length = sizeof(sa_family_t);
    instance->listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (instance->listener < 0 ||
        bind(instance->listener, (const struct sockaddr *)&address, length) != 0 ||
        listen(instance->listener, TUTTI_MAX_RANKS) != 0)
        return tool_fail_errno("cannot make a socket");
    length = sizeof address;
    if (getsockname(instance->listener, (struct sockaddr *)&address, &length) != 0)
        return tool_fail_errno("cannot name a socket");
    size_t name = length - offsetof(struct sockaddr_un, sun_path) - 1;
    if (name >= sizeof instance->address)
        return tool_fail("cannot name a socket");
    memcpy(instance->address, address.sun_path + 1, name);
    instance->address[name] = '\0';
    return true;
}

bool vs_instance_fork(struct vs_instance *instance)
{
    instance->listener = instance->log = -1;
    for (int rank = 0; rank < TUTTI_MAX_RANKS; rank++)
        instance->sockets[rank] = -1;
    if (!is_ours(instance) && !check_programs(instance))
        return false;
    instance->log = memfd_create("tutti-bench-log", MFD_CLOEXEC);
    if (instance->log < 0)
        return tool_fail_errno("cannot make a log");
    /* O_APPEND, because several processes write to it. */
    fcntl(instance->log, F_SETFL, O_APPEND);
    return open_listener(instance) &&
           ranks_fork(&instance->ranks,
                      library_of(instance)->launcher ? 1 : instance->config->ranks, become_rank,
                      instance);
}

/* Reaps processes, and returns whether one has ended. None may end before its socket is closed. */
static bool any_ended(struct vs_instance *instance)
{
    bool ended = false;
    for (int i = 0; i < instance->ranks.count; i++) {
        pid_t pid = instance->ranks.pids[i];
        if (pid && waitpid(pid, NULL, WNOHANG) == pid) {
            ranks_reaped(&instance->ranks, pid);
            ended = true;
        }
    }
    return ended;
}

/* Accepts one connection, and keeps it under the rank in its hello. */
static bool accept_rank(struct vs_instance *instance)
{
    struct rival_hello hello;
    struct ucred peer = {0};
    socklen_t length = sizeof peer;
    int fd = accept4(instance->listener, NULL, NULL, SOCK_CLOEXEC);
    struct pollfd ready = {.fd = fd, .events = POLLIN};
    if (fd < 0 || getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0 ||
        peer.uid != geteuid() || poll(&ready, 1, HELLO_MS) <= 0 ||
        recv(fd, &hello, sizeof hello, 0) != (ssize_t)sizeof hello || hello.rank < 0 ||
        hello.rank >= instance->config->ranks || instance->sockets[hello.rank] >= 0) {
        if (fd >= 0)
            close(fd);
        return fail(instance, "a rank's hello is missing or makes no sense");
    }
    instance->sockets[hello.rank] = fd;
    memcpy(instance->version, hello.version, sizeof instance->version);
    instance->version[sizeof instance->version - 1] = '\0';
    return true;
}

bool vs_instance_meet(struct vs_instance *instance, const char *store_url)
{
    double deadline = clock_seconds() + start_seconds;
    if (!ranks_start(&instance->ranks, store_url))
        return false;
    for (int met = 0; met < instance->config->ranks;) {
        struct pollfd ready = {.fd = instance->listener, .events = POLLIN};
        if (poll(&ready, 1, LOOK_MS) > 0) {
            if (!accept_rank(instance))
                return false;
            met++;
        } else if (any_ended(instance) || clock_seconds() > deadline) {
            return fail(instance, "did not start (%d of %d ranks came)", met,
                        instance->config->ranks);
        }
    }
    close(instance->listener);
    instance->listener = -1;
    return instance->alive = true;
}

/* ---- a block --------------------------------------------------------------------------------- */

static bool receive_result(struct vs_instance *instance, int rank, double deadline,
                           struct rival_result *result)
{
    struct pollfd ready = {.fd = instance->sockets[rank], .events = POLLIN};
    const char *problem = NULL;
    int events;
    *result = (struct rival_result){0};
    do {
        double left = deadline - clock_seconds();
        events = poll(&ready, 1, left > 0 ? (int)(left * 1e3) : 0);
    } while (events < 0 && errno == EINTR);
    if (events <= 0)
        problem = "gave no result in time";
    else if (recv(ready.fd, result, sizeof *result, 0) != (ssize_t)sizeof *result)
        problem = "ended";
    else if (result->failed)
        problem = result->text;
    else if (result->wrong)
        problem = "has wrong elements";
    return !problem || fail(instance, "rank %d %s; left out from here", rank, problem);
}

bool vs_instance_run(struct vs_instance *instance, const struct rival_command *command,
                     struct vs_block *block)
{
    double deadline = clock_seconds() + command_seconds;
    uint64_t slowest = 0;
    *block = (struct vs_block){0};
    for (int rank = 0; rank < instance->config->ranks; rank++)
        if (send(instance->sockets[rank], command, sizeof *command, MSG_NOSIGNAL) < 0)
            return fail(instance, "rank %d ended; left out from here", rank);
    for (int rank = 0; rank < instance->config->ranks; rank++) {
        struct rival_result result;
        if (!receive_result(instance, rank, deadline, &result)) {
            block->wrong = result.wrong != 0;
            return false;
        }
        slowest = result.nanoseconds > slowest ? result.nanoseconds : slowest;
        block->preempted |= result.preempted > 0;
        if (rank == 0)
            block->round_trip_ns = result.round_trip_ns;
        memcpy(block->algo, result.algo, sizeof block->algo);
    }
    block->us = (double)slowest * 1e-3 / (command->iterations ? command->iterations : 1);
    return true;
}

/* ---- end ------------------------------------------------------------------------------------- */

static bool await_end(struct vs_instance *instance, double seconds)
{
    double deadline = clock_seconds() + seconds;
    while (instance->ranks.running > 0 && clock_seconds() < deadline) {
        any_ended(instance);
        poll(NULL, 0, instance->ranks.running > 0 ? 2 : 0);
    }
    return instance->ranks.running == 0;
}

void vs_instance_stop(struct vs_instance *instance)
{
    for (int rank = 0; rank < instance->config->ranks; rank++) {
        if (instance->sockets[rank] >= 0)
            close(instance->sockets[rank]);
        instance->sockets[rank] = -1;
    }
    /* A launcher that was killed cannot end its ranks. */
    if (instance->ranks.count && instance->ranks.gate < 0 && !await_end(instance, stop_seconds)) {
        ranks_signal(&instance->ranks, SIGTERM);
        await_end(instance, signal_seconds);
    }
    ranks_end(&instance->ranks);
    if (instance->listener >= 0)
        close(instance->listener);
    if (instance->log >= 0)
        close(instance->log);
    instance->listener = instance->log = -1;
    instance->alive = false;
}
