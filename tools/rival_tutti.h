/* SPDX-License-Identifier: MIT */
/* Tutti as one of the libraries that `tutti bench --vs` measures. */
#ifndef TUTTI_TOOL_RIVAL_TUTTI_H
#define TUTTI_TOOL_RIVAL_TUTTI_H

#include "ping.h"
#include "rival.h"

/* Runs a rank, in a process forked from the tool. Ranks 0 and 1 measure their round trip with
 * `ping`. Returns the exit status. */
int rival_tutti_main(struct ping *shared);

#endif
