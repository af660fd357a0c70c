/* SPDX-License-Identifier: MIT */
/*
 * One rank never comes to the set-up: every other rank names it, whatever the store is and
 * whichever rank it is. Rank 0, which serves most stores, serves until the others know why it gives
 * up; if it never comes itself, the others say so. All victims of a kind of store are tried at the
 * same time.
 */
#include "tutti/tutti.h"

#include <arpa/inet.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 5, TIMEOUT_MS = 4000, TEXT_BYTES = 1024 };

/* One victim's ranks share it. */
struct episode {
    int victim;
    int port;
    uint32_t started, ended;
    struct tutti_unique_id id;
    uint32_t has_id;
    enum tutti_status status[SIZE];
    char text[SIZE][TEXT_BYTES];
};

struct kind {
    const char *name;
    enum tutti_status (*open)(const struct episode *episode, int rank, tutti_store_t **store);
};

static const char *folder;
static tutti_store_t *agent;

/* Until all ranks have done it. The test's time-out bounds it. */
static void await(const uint32_t *count, uint32_t wanted)
{
    while (__atomic_load_n(count, __ATOMIC_ACQUIRE) < wanted)
        usleep(1000);
}

static void set_number(const char *name, int number)
{
    char text[16];
    snprintf(text, sizeof text, "%d", number);
    setenv(name, text, 1);
}

static void set_torchrun(int rank, int port)
{
    set_number("RANK", rank);
    set_number("WORLD_SIZE", SIZE);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    set_number("MASTER_PORT", port);
}

/* ---- kinds of store -------------------------------------------------------------------------- */

static enum tutti_status env_open(const struct episode *episode, int rank, tutti_store_t **store)
{
    set_torchrun(rank, episode->port);
    return tutti_store_open("env:", TIMEOUT_MS, store);
}

/* Without an address rank 0 writes one to a file. */
static enum tutti_status private_open(const struct episode *episode, int rank,
                                      tutti_store_t **store)
{
    set_number("SLURM_PROCID", rank);
    set_number("SLURM_NTASKS", SIZE);
    set_number("SLURM_JOB_ID", (int)getppid());
    set_number("SLURM_STEP_ID", episode->victim);
    return tutti_store_open("env:", TIMEOUT_MS, store);
}

static enum tutti_status agent_open(const struct episode *episode, int rank, tutti_store_t **store)
{
    char count[16];
    set_torchrun(rank, atoi(strrchr(tutti_store_url(agent), ':') + 1));
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    snprintf(count, sizeof count, "%d", episode->victim + 1); /* keys of their own */
    setenv("TORCHELASTIC_RESTART_COUNT", count, 1);
    return tutti_store_open("env:", TIMEOUT_MS, store);
}

static enum tutti_status tcp_open(const struct episode *episode, int rank, tutti_store_t **store)
{
    char url[128];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d%s", episode->port, rank ? "" : "?server=1");
    return tutti_store_open(url, TIMEOUT_MS, store);
}

static enum tutti_status joined_open(const struct episode *episode, int rank, tutti_store_t **store)
{
    char url[128];
    snprintf(url, sizeof url, "tcp://127.0.0.1:%d?world_size=%d&rank=%d%s", episode->port, SIZE,
             rank, rank ? "" : "&server=1");
    return tutti_store_open(url, TIMEOUT_MS, store);
}

static enum tutti_status file_open(const struct episode *episode, int rank, tutti_store_t **store)
{
    char url[256];
    (void)rank;
    snprintf(url, sizeof url, "file:%s/store-%d", folder, episode->victim);
    return tutti_store_open(url, TIMEOUT_MS, store);
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static enum tutti_status meet(const struct kind *kind, struct episode *episode, int rank)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .timeout_ms = TIMEOUT_MS};
    tutti_store_t *store = NULL;
    tutti_comm_t *comm = NULL;
    enum tutti_status status;
    if (!kind->open)
        return tutti_comm_create_from_id(&episode->id, rank, SIZE, &options, &comm);
    status = kind->open(episode, rank, &store);
    if (status == TUTTI_OK)
        status = tutti_comm_create(store, rank, SIZE, &options, &comm);
    snprintf(episode->text[rank], TEXT_BYTES, "%s", tutti_last_error());
    tutti_store_close(store);
    return status;
}

static void rank_run(const struct kind *kind, struct episode *episode, int rank)
{
    if (!kind->open && rank == 0 && tutti_unique_id_create(&episode->id) != TUTTI_OK)
        _exit(1);
    __atomic_fetch_add(&episode->started, 1, __ATOMIC_RELEASE);
    await(&episode->started, SIZE);
    if (rank == episode->victim) { /* it runs, and may serve the id */
        await(&episode->ended, SIZE - 1);
        _exit(0);
    }
    episode->status[rank] = meet(kind, episode, rank);
    if (!kind->open)
        snprintf(episode->text[rank], TEXT_BYTES, "%s", tutti_last_error());
    __atomic_fetch_add(&episode->ended, 1, __ATOMIC_RELEASE);
    if (!kind->open)
        await(&episode->ended, SIZE - 1);
    _exit(0);
}

static bool names(const char *text, int rank)
{
    char name[16];
    const int length = snprintf(name, sizeof name, "rank %d", rank);
    for (const char *at = text; (at = strstr(at, name)); at += length)
        if (at[length] < '0' || at[length] > '9')
            return true;
    return false;
}

/* A rank may name itself, and rank 0 has written most of the texts. */
static bool blames(const char *text, int victim, int own)
{
    for (int r = 1; r < SIZE; r++)
        if (r != victim && r != own && names(text, r))
            return false;
    return names(text, victim) && (strstr(text, "did not") || strstr(text, "has not come") ||
                                   strstr(text, "is rank 0 running?"));
}

static int judge(const struct kind *kind, const struct episode *episode)
{
    int failures = 0;
    for (int r = 0; r < SIZE; r++)
        if (r != episode->victim && (episode->status[r] != TUTTI_ERR_TIMEOUT ||
                                     !blames(episode->text[r], episode->victim, r)))
            failures += printf("failed: %s, rank %d is missing, rank %d says %s: %s\n", kind->name,
                               episode->victim, r, tutti_status_text(episode->status[r]),
                               episode->text[r]) > 0;
    return failures;
}

/* A port at which nobody listens while *held is open. */
static int port_take(int *held)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, (struct sockaddr *)&address, size) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) != 0)
        exit(1);
    *held = fd;
    return ntohs(address.sin_port);
}

static int run(const struct kind *kind)
{
    int failures = 0, status, ports[SIZE];
    struct episode *episodes = mmap(NULL, SIZE * sizeof *episodes, PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (episodes == MAP_FAILED)
        return 1;
    /* Each has a port of its own. Rank 0 serves there, unless it is the one that does not come. */
    for (int victim = 0; victim < SIZE; victim++)
        episodes[victim].port = port_take(&ports[victim]);
    for (int victim = 1; victim < SIZE; victim++)
        close(ports[victim]);
    for (int victim = 0; victim < SIZE; victim++) {
        episodes[victim].victim = victim;
        for (int rank = 0; rank < SIZE; rank++) {
            const pid_t pid = fork();
            if (pid < 0)
                return 1;
            if (pid == 0)
                rank_run(kind, &episodes[victim], rank);
        }
    }
    while (wait(&status) > 0)
        failures += status != 0;
    for (int victim = 0; victim < SIZE; victim++)
        failures += judge(kind, &episodes[victim]);
    close(ports[0]);
    munmap(episodes, SIZE * sizeof *episodes);
    printf("%s: %s\n", kind->name, failures ? "FAILED" : "each rank names the missing one");
    fflush(stdout);
    return failures;
}

int main(int argc, char **argv)
{
    static const struct kind kinds[] = {
        {"env", env_open}, {"env without an address", private_open}, {"agent", agent_open},
        {"tcp", tcp_open}, {"tcp with a world size", joined_open},   {"file", file_open},
        {"id", NULL},
    };
    char path[] = "/tmp/tutti-absent-XXXXXX", command[64];
    int failures = 0;
    folder = mkdtemp(path);
    if (!folder || setenv("TUTTI_DIR", folder, 1) != 0 ||
        tutti_store_open("tcp://127.0.0.1:0?server=1", TIMEOUT_MS, &agent) != TUTTI_OK)
        return 1;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (argc < 2 || strcmp(argv[1], kinds[i].name) == 0)
            failures += run(&kinds[i]);
    tutti_store_close(agent);
    snprintf(command, sizeof command, "rm -r %s", path);
    return system(command) != 0 || failures > 0;
}
