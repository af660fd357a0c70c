/* SPDX-License-Identifier: MIT */
/* Tells the other ranks how a step of a set-up came out on a rank. */
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

/* Returns the first failure among the reports of `size` ranks, with its text; OK if there is none.
 */
enum tutti_status status_reports_read(struct status_report *all, int size);

/* How the ranks of a set-up exchange values. run() is as tutti_exchanger_all_gather(). */
struct gather {
    enum tutti_status (*run)(void *context, const void *own, size_t bytes, void *all,
                             int64_t timeout_ms);
    void *context;
    int rank, size;
};

/* Over the store; the exchanger is borrowed. */
struct gather gather_by_store(struct tutti_exchanger *exchanger);

/*
 * Collective. Each rank tells the others its status, with this thread's last error unless it is
 * OK. Returns this rank's status if it is a failure, else that of the first rank that failed, else
 * what the exchange returns. So OK means that all ranks have succeeded. A rank whose status is
 * PEER_DEAD does not wait for the others.
 */
enum tutti_status status_agree(const struct gather *gather, enum tutti_status mine,
                               int64_t timeout_ms);

#endif
