/* SPDX-License-Identifier: MIT */
/*
 * The fault matrix: every fault of matrix_faults.c at every stage of a communicator's life,
 * wherever ranks may live. Each run writes a line of JSON; scripts/faults-page makes faults.md from
 * these lines.
 *
 * usage: matrix [-b] [-l] [-o] [-q] [-p PLACE] [-f FAULT] [-s STAGE]
 *   -o   one run a cell: stages' points, and the first and the last rank, take turns
 *   -q   the same, and one stage of each fault
 *   -b   short lines instead of JSON, without the messages
 *   -l   runs nothing: lists the cells, and why others do not exist
 */
#include "matrix.h"

#include "device.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

enum { MOST_POINTS = 20 };

struct choice {
    bool once, quick, list, brief;
    const char *place, *fault, *stage;
    int runs, failures, skipped;
};

/* Why a cell does not exist; NULL: it does. */
static const char *why_not(const struct fault *fault, enum stage stage, enum place place)
{
    const struct outcome *outcome = matrix_outcome(fault, stage);
    if (!outcome->survivors)
        return outcome->why ? outcome->why : fault->only;
    if (!(fault->places >> place & 1))
        return "it strikes a process, which all thread ranks share";
    if (stage == RING && place != CUDA)
        return "it is an algorithm of GPUs";
    if (stage == PAIR && place == CUDA)
        return "it is a lane of CPU ranks";
    if (stage == BARRIER && fault->wrong && fault->wrong != WRONG_ORDER)
        return "a barrier has no count, dtype or op";
    if (stage == BETWEEN && fault->wrong)
        return "it is an operation that is wrong";
    if (stage == BETWEEN && fault->absent)
        return "it is an operation that it does not come to";
    return NULL;
}

/* A cell that `make test` runs: stages take turns from row to row. */
static bool is_quick(int row, enum stage stage, enum place place)
{
    int turn = row + 2 * (int)place, tried = 0;
    while (tried++ < STAGES && why_not(&matrix_faults[row], (enum stage)(turn % STAGES), place))
        turn++;
    return turn % STAGES == (int)stage;
}

static int size_of(enum stage stage)
{
    int size = stage == MESH ? 8 : 3;
    while (stage != MESH && size > 2 && !ranks_fit(size))
        size--;
    return size;
}

/* Each point with the first and with the last rank as the victim. */
static int scenarios_make(const struct faults_point *points, int count, int size,
                          struct faults_scenario *scenarios)
{
    int made = 0;
    for (int p = 0; p < count; p++)
        for (int victim = 0; victim < size; victim += size - 1)
            /* Rank 0 leads the meeting, and does not pass the others' point. */
            if (victim > 0 || strcmp(points[p].name, "meet.joined") != 0)
                scenarios[made++] = (struct faults_scenario){.point = &points[p], .victim = victim};
    return made;
}

static void run_cell(struct choice *choice, int row, enum stage stage, enum place place)
{
    struct faults_point points[MOST_POINTS];
    struct faults_scenario scenarios[2 * MOST_POINTS];
    struct cell cell = {
        .place = place, .stage = stage, .fault = &matrix_faults[row], .size = size_of(stage)};
    int count =
        scenarios_make(points, matrix_points(&cell, points, MOST_POINTS), cell.size, scenarios);
    for (int i = 0; i < count; i++) {
        if (choice->once && i != (row + (int)stage) % count)
            continue;
        cell.scenario = scenarios[i];
        cell.scenario.anywhere = stage == SETUP || stage == GROUP || stage == DESTROY;
        choice->runs++;
        choice->failures += matrix_run(&cell, choice->brief) != VERDICT_OK;
    }
}

static void visit(struct choice *choice, int row, enum stage stage, enum place place)
{
    const struct fault *fault = &matrix_faults[row];
    const char *why = why_not(fault, stage, place);
    if ((choice->fault && strcmp(choice->fault, fault->id) != 0) ||
        (choice->stage && strcmp(choice->stage, matrix_stages[stage]) != 0) ||
        (choice->place && strcmp(choice->place, matrix_places[place]) != 0) ||
        device_is_cuda() != (place == CUDA))
        return;
    const char *verdict = "n/a";
    if (!why && fault->needs_root && !matrix_is_root()) {
        why = "needs root, for mounts of its own";
        verdict = "skipped";
    } else if (!why && !ranks_fit(size_of(stage))) {
        why = "needs 8 GPUs";
        verdict = "skipped";
    }
    if (why || choice->list) {
        choice->skipped += why && *verdict == 's';
        printf(
            "{\"fault\":\"%s\",\"stage\":\"%s\",\"place\":\"%s\",\"verdict\":\"%s\",\"why\":\"%s\"}"
            "\n",
            fault->id, matrix_stages[stage], matrix_places[place], why ? verdict : "run",
            why ? why : "");
    } else if (!choice->quick || is_quick(row, stage, place)) {
        run_cell(choice, row, stage, place);
    }
}

int main(int argc, char **argv)
{
    struct choice choice = {.quick = false};
    int option;
    while ((option = getopt(argc, argv, "oqlbp:f:s:")) != -1) {
        if (option == 'q' || option == 'o')
            choice.once = true;
        if (option == 'q')
            choice.quick = true;
        else if (option == 'o')
            continue;
        else if (option == 'b')
            choice.brief = true;
        else if (option == 'l')
            choice.list = true;
        else if (option == 'p')
            choice.place = optarg;
        else if (option == 'f')
            choice.fault = optarg;
        else if (option == 's')
            choice.stage = optarg;
        else
            return 2;
    }
    int skip = ranks_skip(2);
    if (skip)
        return skip;
    faults_arena_limit();
    faults_watch();
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    for (int row = 0; row < matrix_fault_count; row++)
        for (int stage = 0; stage < STAGES; stage++)
            for (int place = 0; place < PLACES; place++)
                visit(&choice, row, (enum stage)stage, (enum place)place);
    fprintf(stderr, "%d runs, %d failed, %d cells skipped\n", choice.runs, choice.failures,
            choice.skipped);
    return choice.failures || !choice.runs ? 1 : 0;
}
