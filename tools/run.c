/* SPDX-License-Identifier: MIT */
/*
 * tutti run: starts a program as several ranks and stays until the last one has ended.
 *
 * The launcher serves the ranks' store itself, on a port that the kernel chooses, and passes it on
 * in torchrun's variables. So the user need not find a free port, and the end of a rank does not
 * end the store. The ranks stay in the launcher's process group, so that the terminal's job control
 * reaches them. The launcher adopts processes that the ranks leave behind (PR_SET_CHILD_SUBREAPER)
 * and ends them, too.
 */
#include "base/ended_key.h"
#include "placement.h"
#include "ranks.h"
#include "run_output.h"
#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

enum { EXIT_CANNOT_EXECUTE = 126, EXIT_NOT_FOUND = 127 }; /* as in shells */
enum { BEFORE_MOST = 256 };

enum bind { BIND_SHARE, BIND_CORE, BIND_NONE };

struct run {
    int ranks;
    enum bind bind;
    bool tag;
    int wait_seconds;
    int grace_seconds;
    char **program;

    struct placement placement;
    struct ranks children;
    struct output output;
    tutti_store_t *store;
    sigset_t inherited;          /* the original mask, which the ranks get back */
    int signals;                 /* signalfd */
    int exec_error[2];           /* a rank that cannot start its program writes errno here */
    bool ended[TUTTI_MAX_RANKS]; /* with status 0 */
    int status;                  /* exit status of the first rank that failed; 0: none */
    double term_at;              /* when the survivors get SIGTERM; 0: not set, or past */
    double kill_at;              /* when SIGKILL follows SIGTERM; 0: not set */
    int before[BEFORE_MOST];     /* children that were there before the ranks */
    int before_count;
};

/* ---- the command line ------------------------------------------------------------------------ */

enum { OPTION_BIND = 256, OPTION_NO_BIND, OPTION_TAG, OPTION_WAIT, OPTION_GRACE };

static const struct argp_option options[] = {
    {"ranks", 'n', "N", 0, "Ranks, 1 to 64 (default: one for each core)", 0},
    {"bind", OPTION_BIND, "HOW", 0,
     "share (default): each rank gets an equal share of the cores; core: one core for each rank; "
     "none. If there are more ranks than cores, they are not bound",
     0},
    {"no-bind", OPTION_NO_BIND, 0, 0, "The same as --bind none", 0},
    {"tag", OPTION_TAG, 0, 0, "Write [RANK] before each line of a rank's output", 0},
    {"wait", OPTION_WAIT, "SECONDS", 0,
     "When a rank has failed: time in which the other ranks may end by themselves, or go on "
     "without it (default 120)",
     0},
    {"grace", OPTION_GRACE, "SECONDS", 0,
     "Time between SIGTERM and SIGKILL for the ranks that are left (default 5)", 0},
    {0},
};

static const char doc[] =
    "Starts PROGRAM as N ranks with torchrun's variables (RANK, WORLD_SIZE, LOCAL_RANK, "
    "LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), and serves the store at which they meet. "
    "\"env:\" "
    "and PyTorch's env:// find it.\v"
    "When a rank fails, the others get SIGTERM after the time of --wait, and SIGKILL after that of "
    "--grace. "
    "The "
    "exit status is that of the rank that failed first, 128 + N if signal N ended it; 126 or 127 "
    "if PROGRAM cannot be executed or found; else 0. SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1 and "
    "SIGUSR2 are passed "
    "on "
    "to the ranks. Processes that the ranks leave behind are ended too. If the launcher is killed, "
    "the kernel kills the ranks.";

static enum bind bind_argument(struct argp_state *state, const char *text)
{
    static const char *const names[] = {
        [BIND_SHARE] = "share", [BIND_CORE] = "core", [BIND_NONE] = "none"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(text, names[i]) == 0)
            return (enum bind)i;
    argp_error(state, "--bind: '%s' is no placement: give share, core or none", text);
    return BIND_SHARE;
}

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct run *run = state->input;
    switch (key) {
    case 'n':
        run->ranks = integer_argument(state, "-n", text, 1, TUTTI_MAX_RANKS);
        return 0;
    case OPTION_BIND:
        run->bind = bind_argument(state, text);
        return 0;
    case OPTION_NO_BIND:
        run->bind = BIND_NONE;
        return 0;
    case OPTION_TAG:
        run->tag = true;
        return 0;
    case OPTION_WAIT:
        run->wait_seconds = integer_argument(state, "--wait", text, 0, 86400);
        return 0;
    case OPTION_GRACE:
        run->grace_seconds = integer_argument(state, "--grace", text, 0, 86400);
        return 0;
    case ARGP_KEY_ARG:
        run->program = &state->argv[state->next - 1];
        state->next = state->argc; /* the rest belongs to the program */
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "a program to run is missing");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* ---- in the ranks ---------------------------------------------------------------------------- */

static void set_environment(const struct run *run, int rank, const char *port)
{
    static const char *const ranks[] = {"RANK", "LOCAL_RANK", "ROLE_RANK"};
    static const char *const sizes[] = {"WORLD_SIZE", "LOCAL_WORLD_SIZE", "ROLE_WORLD_SIZE"};
    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        tool_setenv(ranks[i], (size_t)rank);
        tool_setenv(sizes[i], (size_t)run->ranks);
    }
    tool_setenv("GROUP_RANK", 0);
    tool_setenv("GROUP_WORLD_SIZE", 1);
    setenv("MASTER_ADDR", "127.0.0.1", 1);
    setenv("MASTER_PORT", port, 1);
    /* The launcher serves the store, and all ranks are its clients. For this PyTorch also needs a
     * restart count. */
    setenv("TORCHELASTIC_USE_AGENT_STORE", "True", 1);
    tool_setenv("TORCHELASTIC_RESTART_COUNT", 0);
    tool_setenv("TORCHELASTIC_MAX_RESTARTS", 0);
    setenv("TORCHELASTIC_RUN_ID", "tutti", 1);
}

static int rank_main(int rank, const char *port, void *context)
{
    const struct run *run = context;
    if (!placement_bind(&run->placement, rank) || !output_attach(&run->output, rank))
        return TOOL_FAILED;
    set_environment(run, rank, port);
    sigprocmask(SIG_SETMASK, &run->inherited, NULL);
    execvp(run->program[0], run->program);
    int code = errno;
    if (write(run->exec_error[1], &code, sizeof code) != (ssize_t)sizeof code)
        code = 0; /* the exit status also tells it */
    return code == ENOENT ? EXIT_NOT_FOUND : EXIT_CANNOT_EXECUTE;
}

/* ---- signals and deaths ---------------------------------------------------------------------- */

static bool catch_signals(struct run *run)
{
    static const int caught[] = {SIGCHLD, SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof caught / sizeof *caught; i++)
        sigaddset(&set, caught[i]);
    sigprocmask(SIG_BLOCK, &set, &run->inherited);
    run->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    return run->signals >= 0 || tool_fail_errno("cannot make a signalfd");
}

/* A signal of the terminal goes to the whole process group, so that the ranks have received it. */
static void forward_signals(struct run *run)
{
    struct signalfd_siginfo info;
    while (read(run->signals, &info, sizeof info) == (ssize_t)sizeof info)
        if (info.ssi_signo != SIGCHLD && info.ssi_code != SI_KERNEL)
            ranks_signal(&run->children, (int)info.ssi_signo);
}

static void rank_failed(struct run *run, int rank, pid_t pid, int status)
{
    int code = 0;
    if (run->status)
        return;
    run->status = WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
    if (read(run->exec_error[0], &code, sizeof code) == (ssize_t)sizeof code) {
        errno = code;
        tool_fail_errno("cannot run '%s'", run->program[0]);
        run->wait_seconds = 0; /* the other ranks know nothing more to report */
    } else {
        char how[96], left[256] = "";
        int length = 0;
        ranks_describe_exit(status, how, sizeof how);
        if (run->children.running)
            length = snprintf(left, sizeof left, "; the others may go on for %d s (--wait)",
                              run->wait_seconds);
        for (int r = 0; r < run->ranks && length < (int)sizeof left; r++)
            if (run->ended[r])
                length += snprintf(left + length, sizeof left - (size_t)length,
                                   "; rank %d had ended with status 0", r);
        tool_fail("rank %d (pid %d) %s%s", rank, (int)pid, how, left);
    }
    run->term_at = clock_seconds() + run->wait_seconds;
}

/* Names the ranks that have to be ended. */
static void tell_left(const struct run *run)
{
    char left[4 * TUTTI_MAX_RANKS] = "";
    size_t used = 0;
    for (int i = 0; i < run->children.count; i++)
        if (run->children.pids[i])
            used += (size_t)snprintf(left + used, sizeof left - used, " %d", i);
    tool_fail("ranks that have not ended %d s after the failed one get SIGTERM:%s",
              run->wait_seconds, left);
}

/* The library tells the survivors of a failed rank within a second. They get time to print their
 * errors and write their dumps, or to finish without the rank, before they are ended. Returns how
 * long to wait. */
static int end_others(struct run *run)
{
    double now = clock_seconds();
    if (run->term_at > 0 && now >= run->term_at) {
        if (run->wait_seconds > 0)
            tell_left(run);
        ranks_signal(&run->children, SIGTERM);
        run->term_at = 0;
        run->kill_at = now + run->grace_seconds;
    }
    if (run->kill_at > 0 && now >= run->kill_at) {
        ranks_signal(&run->children, SIGKILL);
        return 100;
    }
    double next = run->term_at > 0 ? run->term_at : run->kill_at;
    return next > 0 ? (int)((next - now) * 1000) + 1 : -1;
}

/* The others find it if they wait for this rank. The caller is the server, so the store answers. */
static void note_end(struct run *run, int rank)
{
    char key[sizeof ENDED_KEY + 16];
    snprintf(key, sizeof key, ENDED_KEY, rank);
    run->ended[rank] = true;
    if (run->children.running && tutti_store_set(run->store, key, "", 0) != TUTTI_OK)
        tool_fail("rank %d ended, and the others cannot be told: %s", rank, tutti_last_error());
}

static void reap(struct run *run)
{
    int status;
    pid_t pid;
    while ((pid = waitpid(-1, &status, WNOHANG)) > 0) {
        int rank = ranks_reaped(&run->children, pid);
        if (rank >= 0 && status != 0)
            rank_failed(run, rank, pid, status);
        else if (rank >= 0)
            note_end(run, rank);
    }
}

/* Waits until the last rank has ended. */
static void watch(struct run *run)
{
    while (run->children.running > 0) {
        struct pollfd polls[1 + OUTPUT_MOST] = {{.fd = run->signals, .events = POLLIN}};
        int count = 1 + output_polls(&run->output, polls + 1);
        poll(polls, (nfds_t)count, end_others(run));
        forward_signals(run);
        reap(run);
        output_pump(&run->output);
    }
}

/* ---- what the ranks leave behind ------------------------------------------------------------- */

/* Counts the children that are neither ranks nor were there before the ranks, and sends them
 * `signal` unless it is 0. */
static int find_orphans(struct run *run, int signal)
{
    char path[64];
    int pid, found = 0;
    snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)gettid());
    FILE *children = fopen(path, "re");
    while (children && fscanf(children, "%d", &pid) == 1) {
        bool before = false;
        for (int i = 0; i < run->before_count; i++)
            before |= run->before[i] == pid;
        if (before)
            continue;
        if (!signal && run->before_count < BEFORE_MOST)
            run->before[run->before_count++] = pid;
        else if (signal)
            kill(pid, signal);
        found++;
    }
    if (children)
        fclose(children);
    return found;
}

/* Called after all ranks have ended. Their children, which the launcher has adopted, get SIGTERM
 * and after the grace time SIGKILL. When these end, the launcher adopts their own children and
 * finds them in the next round. A shell that became the launcher by exec may have left children,
 * such as a tee; the launcher does not end them. */
static void end_orphans(struct run *run)
{
    double kill_at = clock_seconds() + run->grace_seconds;
    for (int pid; (pid = waitpid(-1, NULL, WNOHANG)) >= 0;) {
        if (pid > 0)
            continue;
        bool graceful = clock_seconds() < kill_at;
        int left = find_orphans(run, graceful ? SIGTERM : SIGKILL);
        if (left == 0 && (run->before_count > 0 || !graceful)) /* or /proc has no list of them */
            return;
        poll(NULL, 0, 20);
        output_pump(&run->output);
    }
}

/* ---- start and end --------------------------------------------------------------------------- */

static bool place(struct run *run, int ranks)
{
    if (run->bind == BIND_SHARE)
        return placement_make_shares(&run->placement, ranks);
    return placement_make(&run->placement, ranks, run->bind == BIND_CORE);
}

static bool start(struct run *run)
{
    find_orphans(run, 0); /* before anything can fail, because end_orphans() follows in any case */
    if (!place(run, run->ranks ? run->ranks : 1))
        return false;
    if (run->ranks == 0) {
        int cores = run->placement.cores;
        run->ranks = cores < TUTTI_MAX_RANKS ? cores : TUTTI_MAX_RANKS;
        if (!place(run, run->ranks))
            return false;
    }
    if (run->tag && !output_open(&run->output, run->ranks))
        return false;
    if (pipe2(run->exec_error, O_CLOEXEC | O_NONBLOCK) < 0)
        return tool_fail_errno("cannot make a pipe");
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    /* Signals are blocked before the ranks exist, so that none is missed, and before the store's
     * threads exist, which inherit the mask. */
    if (!catch_signals(run) || !ranks_fork(&run->children, run->ranks, rank_main, run))
        return false;
    output_forked(&run->output);
    if (tutti_store_open("tcp://127.0.0.1:0?server=1", 0, &run->store))
        return tool_fail("the ranks' store: %s", tutti_last_error());
    char port[16] = "";
    const char *colon = strrchr(tutti_store_url(run->store), ':');
    snprintf(port, sizeof port, "%ld", colon ? strtol(colon + 1, NULL, 10) : 0);
    return ranks_start(&run->children, port);
}

int command_run(int argc, char **argv)
{
    static const struct argp argp = {.options = options,
                                     .parser = parse_option,
                                     .args_doc = "PROGRAM [ARGUMENT...]",
                                     .doc = doc,
                                     .children = help_children};
    struct run run = {.bind = BIND_SHARE,
                      .wait_seconds = 120,
                      .grace_seconds = 5,
                      .signals = -1,
                      .exec_error = {-1, -1}};
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &run))
        return TOOL_FAILED;
    if (start(&run))
        watch(&run);
    else
        run.status = TOOL_FAILED;
    ranks_end(&run.children);
    end_orphans(&run);
    output_close(&run.output);
    tutti_store_close(run.store);
    for (int i = 0; i < 2; i++)
        if (run.exec_error[i] >= 0)
            close(run.exec_error[i]);
    if (run.signals >= 0)
        close(run.signals);
    return run.status;
}
