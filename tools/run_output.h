/* SPDX-License-Identifier: MIT */
/* `tutti run --tag`: the ranks write into pipes, and whole lines come out with the rank before
 * them. */
#ifndef TUTTI_TOOL_RUN_OUTPUT_H
#define TUTTI_TOOL_RUN_OUTPUT_H

#include "tutti/tutti.h"

#include <poll.h>

enum {
    OUTPUT_STREAMS = 2,
    OUTPUT_MOST = OUTPUT_STREAMS * TUTTI_MAX_RANKS,
    OUTPUT_LINE_BYTES = 8192, /* a longer line is cut here */
};

struct output_stream {
    int ends[2]; /* read, write; -1 when closed */
    size_t used;
    char line[OUTPUT_LINE_BYTES];
};

struct output {
    int count; /* streams: rank r's stdout is 2r, its stderr 2r + 1; 0 without --tag */
    struct output_stream *streams;
};

bool output_open(struct output *output, int ranks);
/* In rank's process: makes the pipes its stdout and stderr. */
bool output_attach(const struct output *output, int rank);
/* In the parent, once all ranks are forked: closes what is theirs. */
void output_forked(struct output *output);
/* Fills `polls` with what can be read; returns how many. */
int output_polls(const struct output *output, struct pollfd *polls);
/* Copies what has come, without waiting, and not for long: of more a stream's rest is left. */
void output_pump(struct output *output);
/* Copies the rest, a last unfinished line too, and closes. Takes an all-zero struct. */
void output_close(struct output *output);

#endif
