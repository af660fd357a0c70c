/* SPDX-License-Identifier: MIT */
/* Watches the run of a cell from outside and writes its result as one line of JSON. */
#include "matrix.h"

#include "base/deadline.h"
#include "device.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { HANG_S = 120, REASON_BYTES = 400 };

const char *const matrix_places[PLACES] = {"processes", "threads", "cuda"};
const char *const matrix_stages[STAGES] = {"set-up", "between", "one-shot", "two-shot",
                                           "pair",   "counts",  "norm",     "mesh",
                                           "ring",   "barrier", "group",    "destroy"};

static const char *const verdicts[] = {"ok", "wrong", "hang", "crash", "leak", "missed"};

const struct outcome *matrix_outcome(const struct fault *fault, enum stage stage)
{
    return stage == SETUP     ? &fault->setup
           : stage == GROUP   ? &fault->group
           : stage == DESTROY ? &fault->destroy
                              : &fault->operation;
}

/* What the run's process leaves for us. */
struct page {
    struct matrix_shared shared;
    struct ranks_result results[MATRIX_RANKS];
    char left[160]; /* in the process of thread ranks */
    bool whole;
};

/* ---- the run --------------------------------------------------------------------------------- */

static void run(const struct cell *cell, struct page *page)
{
    const bool processes = cell->place == PROCESSES || cell->place == CUDA;
    struct ranks *ranks =
        ranks_create(cell->size, processes ? cell->size : 0, sizeof(struct matrix_shared));
    struct holdings before = matrix_holdings();
    ranks->context = cell;
    if (matrix_outcome(cell->fault, cell->stage)->victim & VICTIM_ENDS)
        ranks->expendable = UINT64_C(1) << cell->scenario.victim;
    ranks_run(ranks, matrix_live);
    if (!processes)
        matrix_left(&before, page->left, sizeof page->left);
    memcpy(&page->shared, ranks->shared, sizeof page->shared);
    memcpy(page->results, ranks->results, sizeof page->results);
    page->whole = true;
    ranks_destroy(ranks);
}

/* How the process ended; -1 if it did not. */
static int await(pid_t child)
{
    int how = 0;
    for (int waited = 0; waited < HANG_S * 1000; waited++) {
        if (waitpid(child, &how, WNOHANG) == child)
            return how;
        usleep(1000);
    }
    kill(child, SIGKILL); /* the ranks die with it */
    waitpid(child, &how, 0);
    return -1;
}

/* What the run's processes have left is ours now (PR_SET_CHILD_SUBREAPER). */
static bool orphans(void)
{
    for (int i = 0; i < 2000; i++) {
        if (waitpid(-1, NULL, WNOHANG) < 0 && errno == ECHILD)
            return false;
        usleep(1000);
    }
    return true;
}

/* ---- the verdict ----------------------------------------------------------------------------- */

static enum verdict because(enum verdict verdict, char *reason, const char *format, ...)
    TUTTI_PRINTF(3, 4);

static enum verdict because(enum verdict verdict, char *reason, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(reason, REASON_BYTES, format, arguments);
    va_end(arguments);
    return verdict;
}

/* What to do is said in one of these ways. */
static bool has_remedy(const char *text)
{
    static const char *const remedies[] = {
        "look at ",        "make the same calls", "set the same",   "run one vers",
        "submit the same", "ask for less",        "ulimit",         "set TUTTI_DIR",
        "is its server",   "create a new",        "see whether",    "check whether",
        "check that",      "restart the group",   "give each rank", "find out what",
    };
    for (size_t i = 0; i < sizeof remedies / sizeof *remedies; i++)
        if (strstr(text, remedies[i]))
            return true;
    return false;
}

static bool is_operation(const struct cell *cell)
{
    return cell->stage != SETUP;
}

static enum verdict judge_text(const struct cell *cell, const struct page *page, int rank,
                               char *reason)
{
    const struct report *report = &page->shared.reports[rank];
    char name[16], number[32];
    if (report->status == TUTTI_OK || rank == cell->scenario.victim)
        return VERDICT_OK;
    snprintf(name, sizeof name, "rank %d", cell->scenario.victim);
    snprintf(number, sizeof number, " %d", (int)report->sequence);
    if (!has_remedy(report->text))
        return because(VERDICT_WRONG, reason, "rank %d: no remedy: %s", rank, report->text);
    if (cell->fault->nameless)
        return VERDICT_OK;
    /* The stand-in's kernels stop with their process, in the middle of an operation. Then a rank of
     * a mesh knows only that a rank of its quad, or its partner, is late. */
    if (cell->stage == MESH && device_is_cuda() && !device_is_gpu() &&
        report->status == TUTTI_ERR_TIMEOUT)
        return VERDICT_OK;
    if (!strstr(report->text, name))
        return because(VERDICT_WRONG, reason, "rank %d: no rank: %s", rank, report->text);
    /* What a group that has ended refuses has no number. */
    bool numbered = is_operation(cell) &&
                    !(cell->stage == GROUP && (cell->fault->sparse || report->sequence == 0));
    if (numbered && !strstr(report->text, number))
        return because(VERDICT_WRONG, reason, "rank %d: no sequence: %s", rank, report->text);
    return VERDICT_OK;
}

/* Of what only some can know, one survivor names the culprit at least. */
static enum verdict judge_names(const struct cell *cell, const struct page *page, char *reason)
{
    char name[16];
    bool failed = false;
    snprintf(name, sizeof name, "rank %d", cell->scenario.victim);
    for (int r = 0; r < cell->size; r++) {
        const struct report *report = &page->shared.reports[r];
        if (strstr(report->text, name))
            return VERDICT_OK;
        failed |= report->status != TUTTI_OK && r != cell->scenario.victim;
    }
    return failed && !cell->fault->nameless
               ? because(VERDICT_WRONG, reason, "nobody names rank %d", cell->scenario.victim)
               : VERDICT_OK;
}

/* Of a machine that is busy with something else; the table has what it took. */
static int64_t limit_ms(const struct cell *cell, int status)
{
    /* A group gives its leader 5 s to answer. */
    int64_t leader = cell->stage == GROUP && cell->scenario.victim == 0 ? 5000 : 0;
    if (cell->stage == SETUP)
        return SLACK_MS + (cell->place == CUDA ? CUDA_PATIENCE_MS : SETUP_PATIENCE_MS);
    return SLACK_MS + (status == TUTTI_ERR_TIMEOUT ? leader + PATIENCE_MS : FAULT_SOON_MS);
}

static enum verdict judge_rank(const struct cell *cell, const struct page *page, int rank,
                               char *reason)
{
    const struct report *report = &page->shared.reports[rank];
    const struct ranks_result *result = &page->results[rank];
    const struct outcome *outcome = matrix_outcome(cell->fault, cell->stage);
    const bool victim = rank == cell->scenario.victim;
    const int expected = victim ? outcome->victim : outcome->survivors;
    if (victim && (expected & VICTIM_ENDS))
        return report->ended ? because(VERDICT_WRONG, reason, "rank %d did not end", rank)
                             : VERDICT_OK;
    if (result->signal)
        return because(VERDICT_CRASH, reason, "rank %d: signal %d", rank, (int)result->signal);
    if (result->line)
        return because(VERDICT_WRONG, reason, "rank %d: %s", rank, result->text);
    if (!report->ended)
        return because(VERDICT_CRASH, reason, "rank %d did not come to its end", rank);
    if (report->status < 0 || !(expected >> report->status & 1))
        return because(VERDICT_WRONG, reason, "rank %d: %s: %s", rank,
                       tutti_status_name((enum tutti_status)report->status), report->text);
    if (!victim && report->took_ns / 1000000 > limit_ms(cell, report->status))
        return because(VERDICT_HANG, reason, "rank %d took %d ms", rank,
                       (int)(report->took_ns / 1000000));
    if (report->left[0])
        return because(VERDICT_LEAK, reason, "rank %d left %s", rank, report->left);
    return judge_text(cell, page, rank, reason);
}

static enum verdict judge(const struct cell *cell, const struct page *page, int how, char *reason)
{
    enum verdict verdict = VERDICT_OK;
    if (how < 0)
        return because(VERDICT_HANG, reason, "did not end within %d s", HANG_S);
    if (!page->whole)
        return because(VERDICT_CRASH, reason, "the run ended with status %#x", (unsigned)how);
    for (int r = 0; r < cell->size && !verdict; r++)
        verdict = judge_rank(cell, page, r, reason);
    if (!verdict && !page->shared.faults.reached)
        verdict = because(VERDICT_MISSED, reason, "the point was not reached");
    if (!verdict)
        verdict = judge_names(cell, page, reason);
    if (!verdict && page->left[0])
        verdict = because(VERDICT_LEAK, reason, "left %s", page->left);
    if (!verdict && how != 0)
        verdict = because(VERDICT_CRASH, reason, "the run ended with status %#x", (unsigned)how);
    return verdict;
}

/* ---- telling --------------------------------------------------------------------------------- */

static void print_text(const char *text)
{
    putchar('"');
    for (; *text; text++) {
        if (*text == '"' || *text == '\\')
            putchar('\\');
        if ((unsigned char)*text < ' ')
            putchar(' ');
        else
            putchar(*text);
    }
    putchar('"');
}

static const char *status_text(int status)
{
    return status == NO_STATUS ? "ended" : tutti_status_name((enum tutti_status)status) + 6;
}

static void print_rank(const struct cell *cell, const struct page *page, int rank)
{
    const struct report *report = &page->shared.reports[rank];
    printf("%s{\"rank\":%d,\"status\":\"%s\",\"ms\":%.2f,\"text\":", rank ? "," : "", rank,
           status_text(report->status), (double)report->took_ns / 1e6);
    print_text(report->text);
    printf(",\"victim\":%s}", rank == cell->scenario.victim ? "true" : "false");
}

/* Of the survivors. */
static int64_t slowest_ns(const struct cell *cell, const struct page *page)
{
    int64_t slowest = 0;
    for (int r = 0; r < cell->size; r++)
        if (r != cell->scenario.victim && page->shared.reports[r].took_ns > slowest)
            slowest = page->shared.reports[r].took_ns;
    return slowest;
}

/* The statuses are the ranks', in order. */
static void tell_briefly(const struct cell *cell, const struct page *page, enum verdict verdict,
                         const char *reason)
{
    printf("%s\t%s\t%s\t%s\t%d\t%s\t%.2f", cell->fault->id, matrix_stages[cell->stage],
           matrix_places[cell->place], cell->scenario.point->name, cell->scenario.victim,
           verdicts[verdict], (double)slowest_ns(cell, page) / 1e6);
    for (int r = 0; r < cell->size; r++)
        printf("%c%s", r ? ',' : '\t', status_text(page->shared.reports[r].status));
    printf("\t%.120s\n", reason);
    fflush(stdout);
}

static void tell(const struct cell *cell, const struct page *page, enum verdict verdict,
                 const char *reason)
{
    printf("{\"fault\":\"%s\",\"stage\":\"%s\",\"place\":\"%s\",\"point\":\"%s\",\"passage\":%d,"
           "\"size\":%d,\"victim\":%d,\"verdict\":\"%s\",\"slowest_ms\":%.2f,\"why\":",
           cell->fault->id, matrix_stages[cell->stage], matrix_places[cell->place],
           cell->scenario.point->name, cell->scenario.point->passage, cell->size,
           cell->scenario.victim, verdicts[verdict], (double)slowest_ns(cell, page) / 1e6);
    print_text(reason);
    printf(",\"ranks\":[");
    for (int r = 0; r < cell->size; r++)
        print_rank(cell, page, r);
    printf("]}\n");
    fflush(stdout);
}

enum verdict matrix_run(const struct cell *cell, bool brief)
{
    char reason[REASON_BYTES] = "", path[160];
    struct page *page =
        mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (page == MAP_FAILED)
        abort();
    faults_directory_create();
    snprintf(path, sizeof path, "%s-anew", getenv("TUTTI_DIR"));
    fflush(NULL);
    pid_t child = fork();
    if (child == 0) {
        run(cell, page);
        fflush(NULL);
        exit(0); /* where a sanitizer looks for lost memory */
    }
    int how = child < 0 ? -1 : await(child);
    enum verdict verdict = judge(cell, page, how, reason);
    if (orphans() && !verdict)
        verdict = because(VERDICT_LEAK, reason, "a process was left behind");
    unlink(path);
    if (faults_directory_check() != 0 && !verdict)
        verdict = because(VERDICT_LEAK, reason, "files were left behind");
    (brief ? tell_briefly : tell)(cell, page, verdict, reason);
    munmap(page, sizeof *page);
    return verdict;
}
