/* SPDX-License-Identifier: MIT */
#include "device.h"
#include "ipc/futex.h"
#include "soak.h"

#include <dirent.h>
#include <execinfo.h>
#include <malloc.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

enum {
    OPERAND_BYTES = SOAK_MOST_BYTES + 3 * SOAK_GUARD,
    NAP_MS = 100,
    WARM_EPISODES = 50, /* until what a process opens once is open */
    MMAP_BYTES = 128 << 10,
};

static uint32_t devices; /* bit i: a rank of this process has used device i */

/* What a rank of this process has, from episode to episode. */
struct seat {
    pthread_t thread;
    struct soak_rank rank;
    unsigned char *memory[2];
};

/* ---- meters ---------------------------------------------------------------------------------- */

/* The library's own descriptors; all of them in *all. */
static int descriptors_count(int *all)
{
    char path[300], target[256];
    int ours = 0;
    *all = 0;
    DIR *folder = opendir("/proc/self/fd");
    for (struct dirent *entry; folder && (entry = readdir(folder)); ++*all) {
        snprintf(path, sizeof path, "/proc/self/fd/%s", entry->d_name);
        ssize_t length = readlink(path, target, sizeof target - 1);
        target[length > 0 ? length : 0] = 0;
        ours += strstr(target, "memfd:tutti-") || strstr(target, "pidfd");
    }
    if (folder)
        closedir(folder);
    return ours;
}

static int mappings_count(int *all)
{
    char line[512];
    int ours = 0;
    *all = 0;
    FILE *file = fopen("/proc/self/maps", "re");
    for (; file && fgets(line, sizeof line, file); ++*all)
        ours += strstr(line, "memfd:tutti-") != NULL;
    if (file)
        fclose(file);
    return ours;
}

/* In the allocator's callers' hands. */
static int64_t heap_kib(void)
{
    struct mallinfo2 heap = mallinfo2();
    return (int64_t)((heap.uordblks + heap.hblkhd) >> 10);
}

static int64_t rss_kib(void)
{
    long pages = 0, resident = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file && fscanf(file, "%ld %ld", &pages, &resident) != 2)
        resident = 0;
    if (file)
        fclose(file);
    return (int64_t)resident * (sysconf(_SC_PAGESIZE) / 1024);
}

/* A driver opens descriptors, and takes memory, for each device that a process comes to use. */
static void meters_renew(struct soak_meters *meters)
{
    static uint32_t known;
    const uint32_t used = __atomic_load_n(&devices, __ATOMIC_RELAXED);
    if (used == known)
        return;
    known = used;
    meters->episodes = 0;
    meters->warm_descriptors = meters->warm_mappings = 0;
}

/* Between episodes, when this process has no communicator. */
static void meters_read(struct soak_meters *meters)
{
    enum { TRIES = 200, NAP_US = 10000 };
    int all_descriptors, all_mappings, ours = 0;
    malloc_trim(0);
    /* What captured graphs have kept a thread of the driver's frees. */
    for (int i = 0; i < (device_is_cuda() ? TRIES : 1); i++) {
        ours = descriptors_count(&all_descriptors) + mappings_count(&all_mappings);
        if (!ours)
            break;
        usleep(NAP_US);
    }
    meters_renew(meters);
    meters->descriptors = all_descriptors;
    meters->mappings = all_mappings;
    meters->leftovers = ours;
    meters->rss_kib = rss_kib();
    meters->heap_kib = heap_kib();
    meters->graphs = device_graphs();
    /* The library opens none for good; a driver of GPUs may open some as it gets to know one. */
    if (++meters->episodes == (device_is_cuda() ? WARM_EPISODES : 1))
        meters->warm_descriptors = all_descriptors;
    if (meters->episodes != WARM_EPISODES)
        return;
    meters->warm_mappings = all_mappings;
    meters->warm_rss_kib = meters->rss_kib;
    meters->warm_heap_kib = meters->heap_kib;
    meters->warm_graphs = meters->graphs;
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static void *rank_main(void *argument)
{
    struct seat *seat = argument;
    struct soak_rank *self = &seat->rank;
    const struct soak_episode *episode = self->episode;
    int device = 0;
    for (int r = 0; r < self->rank; r++) /* a GPU each, those of a process beside each other */
        device += episode->slot_of[r] <= episode->slot_of[self->rank];
    for (int r = self->rank + 1; r < episode->size; r++)
        device += episode->slot_of[r] < episode->slot_of[self->rank];
    if (device_is_cuda())
        __atomic_fetch_or(&devices, UINT32_C(1) << device, __ATOMIC_RELAXED);
    int line = device_is_cuda() && !device_bind(device)
                   ? ranks_fail(self->ranks, self->rank, __FILE__, __LINE__, "device_bind")
                   : life_run(self);
    if (line && !self->ranks->results[self->rank].line)
        ranks_fail(self->ranks, self->rank, "returned", line, "");
    return NULL;
}

static void seat_open(struct seat *seat)
{
    for (int i = 0; i < 2; i++) {
        seat->memory[i] = mmap(NULL, OPERAND_BYTES, PROT_READ | PROT_WRITE,
                               MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (seat->memory[i] == MAP_FAILED)
            abort();
    }
}

static void environment_set(const struct soak_episode *episode)
{
    char text[16];
    snprintf(text, sizeof text, "%d", episode->graph);
    setenv("TUTTI_TEST_GRAPH", text, 1);
    setenv("TUTTI_TEST_STREAMS", episode->streams == 2 ? "2" : "1", 1);
}

/* This process' ranks in an episode, each a thread. */
static void episode_run(struct soak *soak, const struct soak_episode *episode, int slot,
                        struct seat *seats)
{
    tutti_store_t *keeper = NULL;
    int count = 0;
    environment_set(episode);
    if (episode->store == SOAK_STORE_MEMORY &&
        tutti_store_open("memory:soak", SOAK_GENEROUS_MS, &keeper) != TUTTI_OK)
        abort();
    for (int r = 0; r < episode->size; r++) {
        if (episode->slot_of[r] != slot)
            continue;
        struct seat *seat = &seats[count++];
        seat->rank = (struct soak_rank){
            .soak = soak,
            .ranks = soak->ranks,
            .episode = episode,
            .progress = &soak->shared->progress[r],
            .rank = r,
            .memory = {seat->memory[0], seat->memory[1]},
            .send = seat->memory[0],
            .recv = seat->memory[1],
        };
        if (pthread_create(&seat->thread, NULL, rank_main, seat) != 0)
            abort();
    }
    for (int i = 0; i < count; i++) {
        pthread_join(seats[i].thread, NULL);
        for (int m = 0; m < 2; m++)
            madvise(seats[i].memory[m], OPERAND_BYTES, MADV_DONTNEED);
    }
    tutti_store_close(keeper);
}

/* The supervisor wants to know where each thread is. */
static void on_question(int number)
{
    void *frames[64];
    static const char title[] = "---- a thread\n";
    (void)number;
    if (write(STDERR_FILENO, title, sizeof title - 1) > 0)
        backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
}

void worker_run(struct soak *soak, int slot, uint32_t turn)
{
    struct seat seats[SOAK_RANKS];
    struct soak_shared *shared = soak->shared;
    struct soak_meters *meters = &shared->meters[slot];
    struct sigaction action = {.sa_handler = on_question, .sa_flags = SA_RESTART};
    void *frames[1];
    backtrace(frames, 1); /* loads what it needs */
    sigaction(SIGUSR2, &action, NULL);
    mallopt(M_MMAP_THRESHOLD, MMAP_BYTES); /* else it grows with what was freed */
    for (int i = 0; i < SOAK_RANKS; i++)
        seat_open(&seats[i]);
    while (!__atomic_load_n(&shared->stop, __ATOMIC_ACQUIRE)) {
        uint32_t now = __atomic_load_n(&shared->turn, __ATOMIC_ACQUIRE);
        struct soak_episode episode;
        bool is_in = false;
        if (now == turn) {
            futex_sleep(&shared->turn, turn, NAP_MS);
            continue;
        }
        turn = now;
        episode_make(&soak->config, shared->number, &episode);
        if (shared->calm)
            episode_calm(&episode);
        for (int r = 0; r < episode.size; r++)
            is_in |= episode.slot_of[r] == slot;
        if (!is_in)
            continue;
        episode_run(soak, &episode, slot, seats);
        meters_read(meters);
        __atomic_store_n(&meters->turn, turn, __ATOMIC_RELEASE);
        __atomic_add_fetch(&shared->ended, 1, __ATOMIC_ACQ_REL);
        futex_wake_all(&shared->ended);
    }
    exit(0); /* where a sanitizer looks for leaks */
}
