/* SPDX-License-Identifier: MIT */
/*
 * What recording an operation costs: the start and the end of a quick operation, and of an
 * operation whose end reads the clock, in a loop on one core. In a real operation the wait for the
 * peers hides a part of this cost: `tutti bench -n 2 -b 8 -e 64` shows how much.
 */
#include "record/recorder.h"
#include "now.h"
#include "stats.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BATCH = 1000, BATCHES = 4001 }; /* a batch is shorter than a quantum */

static void record(struct recorder *recorder, uint64_t sequence, bool stamped)
{
    const struct recorder_operation operation = {.sequence = sequence, .signature = sequence};
    struct record_entry *entry = recorder_start(recorder, &operation, RECORD_RUNNING, ticks_now());
    order_compiler(); /* the operation */
    recorder_end(entry, RECORD_DONE, TUTTI_OK, RECORD_CALL, stamped ? ticks_now() : 0);
}

int main(void)
{
    struct recorder recorder = {.page = aligned_alloc(64, sizeof *recorder.page)};

    if (!recorder.page)
        return EXIT_FAILURE;
    memset(recorder.page, 0, sizeof *recorder.page);
    for (int stamped = 0; stamped < 2; stamped++) {
        struct samples samples = {0};
        for (int b = 0; b < BATCHES; b++) {
            const int64_t begin = now_ns();
            for (uint64_t i = 0; i < BATCH; i++)
                record(&recorder, i, stamped);
            samples_add(&samples, (double)(now_ns() - begin) / BATCH);
        }
        printf("%-28s %5.1f ns\n", stamped ? "with a time of its end" : "quick",
               samples_median(&samples));
        samples_fini(&samples);
    }
    free(recorder.page);
    return EXIT_SUCCESS;
}
