/* SPDX-License-Identifier: MIT */
/* `tutti run --tag`: the ranks write to pipes, and the launcher prints whole lines with the rank
 * before them. */
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
    int count; /* number of streams: rank r's stdout is 2r, its stderr 2r + 1; 0 without --tag */
    struct output_stream *streams;
};

bool output_open(struct output *output, int ranks);
/* In the rank's process: makes the pipes its stdout and stderr. */
bool output_attach(const struct output *output, int rank);
/* In the parent, after all ranks are forked: closes the ranks' ends. */
void output_forked(struct output *output);
/* Fills `polls` with the open streams. Returns their number. */
int output_polls(const struct output *output, struct pollfd *polls);
/* Copies what can be read without waiting, at most a bounded part of each stream. */
void output_pump(struct output *output);
/* Copies the rest, also an unfinished last line, and closes. Takes an all-zero struct. */
void output_close(struct output *output);

#endif
