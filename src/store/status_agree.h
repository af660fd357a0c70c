/* SPDX-License-Identifier: MIT */
/* How the ranks of a set-up exchange values, and tell each other how a step came out on a rank. */
#ifndef TUTTI_STATUS_AGREE_H
#define TUTTI_STATUS_AGREE_H

#include "tutti/tutti.h"

/* A rank's status with its error message. It comes from other processes: read it with
 * status_report_error(). */
struct status_report {
    int32_t status; /* enum tutti_status */
    int32_t rank;   /* the rank that writes it */
    char text[632];
};

/* The text is this thread's last error; empty if the status is OK. */
struct status_report status_report_make(enum tutti_status status, int rank);
/* Sets this thread's last error to the report's, "rank R: its text" unless R is own_rank; returns
 * its status. */
enum tutti_status status_report_error(const struct status_report *report, int own_rank);

/* An all-gather, and the state of the agreements that are made by it. */
struct gather {
    /* As tutti_exchanger_all_gather(). `own` lies in `all`, in this rank's row. */
    enum tutti_status (*run)(void *context, const void *own, size_t bytes, void *all,
                             int64_t timeout_ms);
    void *context;
    int rank, size;
    const int *members; /* gather_value()'s rank r is rank members[r] of run(); NULL: rank r */
    void *rows;         /* room for a status_report and the longest value of each rank */
    size_t least_bytes; /* of a value in a row; shorter ones are padded */
    bool blind;         /* run() does not notice that a rank has exited */
    bool terse; /* ranks send statuses without texts: the first 8 bytes of a status_report */
    struct tutti_exchanger *texts; /* by which a rank that failed tells its text; NULL: none */
    /* Of the last agreement: */
    size_t row_bytes;
    bool failed; /* it has returned a failure */
    bool alike;  /* run() has succeeded, and all ranks that failed have the same status */
    int blamed;  /* the rank whose failure it has returned; -1: none */
};

/* Over the store; the exchanger is borrowed. */
struct gather gather_by_store(struct tutti_exchanger *exchanger, void *rows);

/*
 * Collective. Each rank tells the others its status, with this thread's last error unless it is
 * OK, and gives them a value of `bytes` bytes. OK means that all ranks have succeeded. Else returns
 * this rank's failure, or the failure of the first rank that failed, or what run() returned.
 * PEER_DEAD is a consequence: any failure of another rank replaces it. DECLINED may be one, of a
 * link to a dead rank: a failure of run() that is no time-out replaces both.
 */
enum tutti_status gather_agree(struct gather *gather, enum tutti_status mine, const void *value,
                               size_t bytes, int64_t timeout_ms);
/* Copies a rank's value of the last agreement, if its run() has succeeded. */
void gather_value(const struct gather *gather, int rank, void *value, size_t bytes);

/* The same without values. */
static inline enum tutti_status status_agree(struct gather *gather, enum tutti_status mine,
                                             int64_t timeout_ms)
{
    return gather_agree(gather, mine, NULL, 0, timeout_ms);
}

#endif
