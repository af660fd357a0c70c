/* SPDX-License-Identifier: MIT */
#include "base/deadline.h"
#include "dump.h"
#include "ipc/futex.h"
#include "results.h"
#include "soak.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    NAP_NS = 2000000,
    HANG_S = 2 * SOAK_GENEROUS_MS / 1000, /* without a step of any rank: no wait is that long */
    GRACE_MS = 3000,                      /* for other ranks to say what they saw, too */
    END_MS = 30000,
    SERVER_EPISODES = 500, /* of one server: keys stay there */
    LINE_S = 60,           /* between two lines of the report */
};

struct slot {
    pid_t pid; /* 0: none */
    int64_t stopped_ns;
    bool is_in; /* the episode */
};

struct boss {
    struct soak *soak;
    struct soak_totals *totals;
    struct ranks *server;
    struct slot slots[SOAK_SLOTS];
    struct soak_episode episode;
    bool failed;
};

static void complain(struct boss *boss, const char *what)
{
    printf("soak: episode %llu: %s\n", (unsigned long long)boss->episode.number, what);
    boss->failed = true;
    boss->totals->wrong++;
}

/* ---- processes ------------------------------------------------------------------------------- */

static void slot_start(struct boss *boss, int index)
{
    struct slot *slot = &boss->slots[index];
    struct soak_meters *meters = &boss->soak->shared->meters[index];
    pid_t parent = getpid();
    uint32_t turn = boss->soak->shared->turn;
    memset(meters, 0, sizeof *meters);
    fflush(NULL);
    slot->pid = fork();
    slot->stopped_ns = 0;
    if (slot->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(1);
        worker_run(boss->soak, index, turn);
    }
    if (slot->pid < 0) {
        perror("soak: fork");
        exit(1);
    }
    meters->pid = slot->pid;
    boss->totals->starts++;
}

static void server_start(struct boss *boss)
{
    struct soak_shared *shared = boss->soak->shared;
    ranks_destroy(boss->server);
    boss->server = ranks_create(1, 1, 0);
    memcpy(shared->url, boss->server->url, sizeof shared->url);
}

static bool is_victim(const struct boss *boss, int slot, const struct soak_progress **progress)
{
    const struct soak_episode *episode = &boss->episode;
    for (int r = 0; r < episode->size; r++) {
        *progress = &boss->soak->shared->progress[r];
        if (episode->slot_of[r] == slot && episode->victims >> r & 1)
            return true;
    }
    return false;
}

/* Where the signal struck. */
static void strike_note(struct boss *boss, int slot)
{
    const struct soak_episode *episode = &boss->episode;
    uint64_t inside = 0;
    for (int r = 0; r < episode->size; r++)
        if (episode->slot_of[r] == slot)
            inside |= boss->soak->shared->progress[r].inside;
    boss->totals->signals++;
    boss->totals->struck += inside;
}

static void slot_ended(struct boss *boss, int index, int how)
{
    char text[128];
    const struct soak_progress *progress;
    const enum soak_fault fault = boss->episode.fault;
    bool by_exit = fault == SOAK_EXIT && WIFEXITED(how) && WEXITSTATUS(how) == 0;
    bool by_kill = (fault == SOAK_KILL || fault == SOAK_KILL_SETUP) && WIFSIGNALED(how) &&
                   WTERMSIG(how) == SIGKILL;
    boss->slots[index].pid = 0;
    boss->soak->shared->meters[index].pid = 0;
    if (is_victim(boss, index, &progress) && (by_exit || by_kill)) {
        strike_note(boss, index);
        return;
    }
    snprintf(text, sizeof text, "process %d ended, by %s %d, which is no fault of this episode",
             index, WIFSIGNALED(how) ? "signal" : "status",
             WIFSIGNALED(how) ? WTERMSIG(how) : WEXITSTATUS(how));
    complain(boss, text);
}

/* Children that ended or stopped; orphans of theirs are ours, too. */
static void children_look(struct boss *boss)
{
    int how;
    for (pid_t pid; (pid = waitpid(-1, &how, WNOHANG | WUNTRACED)) > 0;)
        for (int s = 0; s < SOAK_SLOTS; s++) {
            if (boss->slots[s].pid != pid)
                continue;
            if (!WIFSTOPPED(how)) {
                slot_ended(boss, s, how);
                continue;
            }
            boss->slots[s].stopped_ns = deadline_now();
            boss->totals->faults[SOAK_PAUSE] += boss->episode.fault == SOAK_PAUSE;
            strike_note(boss, s);
        }
}

/* Who is stopped goes on: soon, or when all others have given him up. */
static void stopped_wake(struct boss *boss)
{
    struct ranks *ranks = boss->soak->ranks;
    const struct soak_episode *episode = &boss->episode;
    uint32_t others = 0, failed = __atomic_load_n(&ranks->flags[SOAK_FAILED], __ATOMIC_ACQUIRE);
    for (int r = 0; r < episode->size; r++)
        others += !(episode->victims >> r & 1);
    for (int s = 0; s < SOAK_SLOTS; s++) {
        struct slot *slot = &boss->slots[s];
        bool waits = episode->fault == SOAK_STOP
                         ? failed < others && !boss->failed
                         : deadline_now() - slot->stopped_ns < episode->delay_us * 100000;
        if (!slot->pid || !slot->stopped_ns || waits)
            continue;
        slot->stopped_ns = 0;
        kill(slot->pid, SIGCONT);
        ranks_raise(ranks, SOAK_WOKEN);
    }
}

/* ---- what went wrong ------------------------------------------------------------------------- */

/* A dump in JSON on the standard output. */
static bool dump_print(void *context, const struct record_page *page)
{
    (void)context;
    json_t *root = dump_page_to_json(page);
    results_print_json(root, stdout);
    json_decref(root);
    return true;
}

static void threads_ask(pid_t pid)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *folder = opendir(path);
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        if (entry->d_name[0] != '.' && syscall(SYS_tgkill, pid, atoi(entry->d_name), SIGUSR2) == 0)
            usleep(50000); /* one after the other */
    if (folder)
        closedir(folder);
}

/* All that can be known of ranks that do not go on. */
static void hang_tell(struct boss *boss)
{
    boss->totals->hangs++;
    complain(boss, "no rank has made a step for as long as no wait may last");
    for (int s = 0; s < SOAK_SLOTS; s++) {
        if (!boss->slots[s].pid)
            continue;
        printf("soak: process %d of slot %d:\n", (int)boss->slots[s].pid, s);
        fflush(stdout);
        dump_read_process(boss->slots[s].pid, dump_print, NULL);
        threads_ask(boss->slots[s].pid);
    }
}

static void results_tell(struct boss *boss)
{
    const struct soak_config *config = &boss->soak->config;
    const struct soak_episode *episode = &boss->episode;
    for (int r = 0; r < episode->size; r++)
        if (boss->soak->ranks->results[r].line)
            printf("soak: rank %d of %d (process %d): %s\n", r, episode->size, episode->slot_of[r],
                   boss->soak->ranks->results[r].text);
    printf("soak: seed %llu, episode %llu, fault %s at operation %d of %d, ranks %x; again with: "
           "soak --seed %llu --from %llu --episodes 100%s%s\n",
           (unsigned long long)config->seed, (unsigned long long)episode->number,
           soak_fault_name(episode->fault), episode->fault_at, episode->operations,
           episode->victims, (unsigned long long)config->seed, (unsigned long long)episode->number,
           config->threads ? " --threads" : "", config->faultless ? " --faultless" : "");
    fflush(stdout);
}

static bool has_failed(const struct boss *boss)
{
    for (int r = 0; r < boss->episode.size; r++)
        if (__atomic_load_n(&boss->soak->ranks->results[r].line, __ATOMIC_ACQUIRE))
            return true;
    return false;
}

/* ---- an episode ------------------------------------------------------------------------------ */

static void episode_begin(struct boss *boss)
{
    struct soak_shared *shared = boss->soak->shared;
    struct ranks *ranks = boss->soak->ranks;
    for (int s = 0; s < SOAK_SLOTS; s++)
        boss->slots[s].is_in = false;
    for (int r = 0; r < boss->episode.size; r++)
        boss->slots[boss->episode.slot_of[r]].is_in = true;
    for (int s = 0; s < SOAK_SLOTS; s++)
        if (boss->slots[s].is_in && !boss->slots[s].pid)
            slot_start(boss, s);
    memset(ranks->flags, 0, sizeof ranks->flags);
    memset(ranks->results, 0, sizeof ranks->results);
    memset(shared->progress, 0, sizeof shared->progress);
    ranks->size = boss->episode.size;
    shared->number = boss->episode.number;
    __atomic_add_fetch(&shared->turn, 1, __ATOMIC_ACQ_REL);
    futex_wake_all(&shared->turn);
}

static bool all_have_ended(const struct boss *boss)
{
    const struct soak_shared *shared = boss->soak->shared;
    for (int s = 0; s < SOAK_SLOTS; s++)
        if (boss->slots[s].is_in && boss->slots[s].pid &&
            __atomic_load_n(&shared->meters[s].turn, __ATOMIC_ACQUIRE) != shared->turn)
            return false;
    return true;
}

static uint64_t steps_of(const struct boss *boss)
{
    uint64_t steps = 0;
    for (int r = 0; r < boss->episode.size; r++)
        steps += __atomic_load_n(&boss->soak->shared->progress[r].steps, __ATOMIC_RELAXED);
    return steps;
}

/* Until all processes have ended their part, or something is wrong. */
static void episode_watch(struct boss *boss)
{
    struct soak_shared *shared = boss->soak->shared;
    int64_t hang = deadline_after((int64_t)HANG_S * 1000), grace = DEADLINE_NEVER;
    for (uint64_t steps = 0; !all_have_ended(boss);) {
        uint32_t ended = __atomic_load_n(&shared->ended, __ATOMIC_ACQUIRE);
        children_look(boss);
        stopped_wake(boss);
        if (all_have_ended(boss))
            break;
        if (steps_of(boss) != steps) {
            steps = steps_of(boss);
            hang = deadline_after((int64_t)HANG_S * 1000);
        }
        if (grace == DEADLINE_NEVER && (has_failed(boss) || boss->failed))
            grace = deadline_after(GRACE_MS);
        if (deadline_passed(grace))
            break;
        if (deadline_passed(hang)) {
            hang_tell(boss);
            break;
        }
        futex_sleep_ns(&shared->ended, ended, NAP_NS);
    }
    if (has_failed(boss))
        complain(boss, "a check failed");
}

static void meters_check(struct boss *boss)
{
    char text[160];
    for (int s = 0; s < SOAK_SLOTS; s++) {
        const struct soak_meters *meters = &boss->soak->shared->meters[s];
        if (!boss->slots[s].is_in || !boss->slots[s].pid)
            continue;
        bool grew = meters->warm_descriptors && meters->descriptors != meters->warm_descriptors;
        if (!meters->leftovers && !grew)
            continue;
        snprintf(text, sizeof text,
                 "process %d: %d descriptors and mappings of the library are left, %d descriptors "
                 "in all, %d before",
                 s, meters->leftovers, meters->descriptors, meters->warm_descriptors);
        complain(boss, text);
    }
}

/* How long those who live took to learn of a death, the checks of results before it included. */
static void notices_add(struct boss *boss)
{
    struct soak_totals *totals = boss->totals;
    const struct soak_progress *progress = boss->soak->shared->progress;
    uint64_t first = UINT64_MAX;
    if (boss->episode.fault != SOAK_KILL && boss->episode.fault != SOAK_EXIT)
        return;
    for (int r = 0; r < boss->episode.size; r++)
        if (progress[r].strikes_ns && progress[r].strikes_ns < first)
            first = progress[r].strikes_ns;
    for (int r = 0; r < boss->episode.size; r++) {
        if (boss->episode.victims >> r & 1 || progress[r].noticed_ns <= first)
            continue;
        double ms = (double)(progress[r].noticed_ns - first) / 1e6;
        totals->noticed++;
        totals->noticed_ms += ms;
        if (ms > totals->noticed_most_ms)
            totals->noticed_most_ms = ms;
    }
}

static void totals_add(struct boss *boss)
{
    struct soak_totals *totals = boss->totals;
    const struct soak_episode *episode = &boss->episode;
    totals->episodes++;
    totals->faults[episode->fault] += episode->fault != SOAK_PAUSE; /* it may come too late */
    for (int r = 0; r < episode->size; r++) {
        const struct soak_progress *progress = &boss->soak->shared->progress[r];
        totals->operations += progress->operations;
        totals->barriers += progress->barriers;
        totals->bytes += progress->bytes;
        totals->communicators += progress->comms;
        totals->starved += progress->starved;
    }
    notices_add(boss);
}

static void episode_run(struct boss *boss, uint64_t number)
{
    char path[96];
    struct soak *soak = boss->soak;
    if (boss->totals->episodes % SERVER_EPISODES == 0)
        server_start(boss);
    episode_make(&soak->config, number, &boss->episode);
    if (soak->shared->calm)
        episode_calm(&boss->episode);
    int64_t begin_ns = deadline_now();
    episode_begin(boss);
    episode_watch(boss);
    children_look(boss);
    if (!boss->failed)
        meters_check(boss);
    totals_add(boss);
    if (soak->config.verbose)
        report_episode(soak, &boss->episode, deadline_now() - begin_ns);
    snprintf(path, sizeof path, "%s-store", soak->directory);
    unlink(path);
    if (boss->failed)
        results_tell(boss);
}

/* ---- all of it ------------------------------------------------------------------------------- */

static bool is_enough(const struct boss *boss)
{
    const struct soak_config *config = &boss->soak->config;
    const struct soak_totals *totals = boss->totals;
    uint64_t seconds = (uint64_t)(deadline_now() - totals->begin_ns) / 1000000000;
    return (config->seconds && seconds >= config->seconds) ||
           (config->episodes && totals->episodes >= config->episodes) ||
           (config->operations && totals->operations >= config->operations) ||
           (config->communicators && totals->communicators >= config->communicators);
}

/* Waits for a process to end well; one that a late signal has stopped goes on. */
static bool process_end(pid_t pid, int64_t end)
{
    int how;
    for (; !deadline_passed(end); usleep(2000)) {
        if (waitpid(pid, &how, WNOHANG | WUNTRACED) != pid)
            continue;
        if (!WIFSTOPPED(how))
            return WIFEXITED(how) && WEXITSTATUS(how) == 0;
        kill(pid, SIGCONT);
    }
    return false;
}

/* All processes end by themselves, if all went well. */
static void processes_end(struct boss *boss)
{
    struct soak_shared *shared = boss->soak->shared;
    int64_t end = deadline_after(END_MS);
    __atomic_store_n(&shared->stop, 1, __ATOMIC_RELEASE);
    __atomic_add_fetch(&shared->turn, 1, __ATOMIC_ACQ_REL);
    futex_wake_all(&shared->turn);
    for (int s = 0; s < SOAK_SLOTS; s++) {
        pid_t pid = boss->slots[s].pid;
        if (!pid || (!boss->failed && process_end(pid, end)))
            continue;
        if (!boss->failed)
            complain(boss, "a process did not end well");
        kill(pid, SIGKILL);
        waitpid(pid, NULL, 0);
    }
    ranks_destroy(boss->server);
    if (!boss->failed && (waitpid(-1, NULL, WNOHANG) != -1 || errno != ECHILD))
        complain(boss, "a process is left");
}

static void leftovers_check(struct boss *boss)
{
    char text[160];
    const char *growth = report_growth(boss->soak);
    if (*growth)
        complain(boss, growth);
    if (rmdir(boss->soak->directory) == 0)
        return;
    snprintf(text, sizeof text, "%s: %s", boss->soak->directory, strerror(errno));
    complain(boss, text);
}

int boss_run(struct soak *soak, struct soak_totals *totals)
{
    struct boss boss = {.soak = soak, .totals = totals};
    uint64_t number = soak->config.from;
    int64_t line = LINE_S;
    totals->begin_ns = deadline_now();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    while (!boss.failed && !is_enough(&boss)) {
        episode_run(&boss, number++);
        if ((deadline_now() - totals->begin_ns) / 1000000000 < line)
            continue;
        report_line(soak, totals);
        line += LINE_S;
    }
    /* What is killed in a set-up leaves a socket, which the next set-up sweeps. */
    soak->shared->calm = 1;
    if (!boss.failed)
        episode_run(&boss, number);
    processes_end(&boss);
    leftovers_check(&boss);
    report_line(soak, totals);
    return boss.failed ? 1 : 0;
}
