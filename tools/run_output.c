/* SPDX-License-Identifier: MIT */
#include "run_output.h"

#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void close_end(int *end)
{
    if (*end >= 0)
        close(*end);
    *end = -1;
}

bool output_open(struct output *output, int ranks)
{
    output->streams = calloc((size_t)ranks * OUTPUT_STREAMS, sizeof *output->streams);
    if (!output->streams)
        return tool_fail("no memory for the output of %d ranks", ranks);
    for (; output->count < ranks * OUTPUT_STREAMS; output->count++) {
        if (pipe2(output->streams[output->count].ends, O_CLOEXEC) < 0)
            return tool_fail_errno("cannot make a pipe for the output of rank %d",
                                   output->count / OUTPUT_STREAMS);
        fcntl(output->streams[output->count].ends[0], F_SETFL, O_NONBLOCK);
    }
    return true;
}

bool output_attach(const struct output *output, int rank)
{
    static const int targets[OUTPUT_STREAMS] = {STDOUT_FILENO, STDERR_FILENO};
    for (int i = 0; output->count && i < OUTPUT_STREAMS; i++)
        if (dup2(output->streams[rank * OUTPUT_STREAMS + i].ends[1], targets[i]) < 0)
            return tool_fail_errno("cannot redirect the output of rank %d", rank);
    return true;
}

void output_forked(struct output *output)
{
    for (int i = 0; i < output->count; i++)
        close_end(&output->streams[i].ends[1]);
}

int output_polls(const struct output *output, struct pollfd *polls)
{
    int count = 0;
    for (int i = 0; i < output->count; i++)
        if (output->streams[i].ends[0] >= 0)
            polls[count++] = (struct pollfd){.fd = output->streams[i].ends[0], .events = POLLIN};
    return count;
}

static void write_line(int index, const char *line, size_t length)
{
    char text[16 + OUTPUT_LINE_BYTES];
    FILE *stream = index % OUTPUT_STREAMS ? stderr : stdout;
    size_t size = (size_t)snprintf(text, sizeof text, "[%d] ", index / OUTPUT_STREAMS);
    memcpy(text + size, line, length); /* lines may contain zeros */
    size += length;
    text[size++] = '\n';
    fwrite(text, 1, size, stream);
    fflush(stream);
}

/* Writes the whole lines of a stream's buffer and keeps the rest. */
static void write_lines(struct output_stream *stream, int index)
{
    char *begin = stream->line, *end = begin + stream->used, *newline;
    while ((newline = memchr(begin, '\n', (size_t)(end - begin)))) {
        write_line(index, begin, (size_t)(newline - begin));
        begin = newline + 1;
    }
    stream->used = (size_t)(end - begin);
    if (stream->used == sizeof stream->line) {
        write_line(index, begin, stream->used);
        stream->used = 0;
    }
    memmove(stream->line, begin, stream->used);
}

/* Copies about as much as a pipe holds. A rank that writes as fast as the launcher reads must not
 * keep it from the other ranks, signals and deadlines. Returns whether there may be more. */
static bool pump_stream(struct output_stream *stream, int index)
{
    size_t taken = 0;
    while (stream->ends[0] >= 0 && taken < 65536) {
        ssize_t got =
            read(stream->ends[0], stream->line + stream->used, sizeof stream->line - stream->used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return false;
        if (got == 0)
            close_end(&stream->ends[0]);
        stream->used += (size_t)got;
        taken += (size_t)got;
        write_lines(stream, index);
    }
    return stream->ends[0] >= 0;
}

void output_pump(struct output *output)
{
    for (int i = 0; i < output->count; i++)
        pump_stream(&output->streams[i], i);
}

void output_close(struct output *output)
{
    for (int i = 0; i < output->count; i++) {
        struct output_stream *stream = &output->streams[i];
        while (pump_stream(stream, i))
            ;
        if (stream->used)
            write_line(i, stream->line, stream->used);
        close_end(&stream->ends[0]);
        close_end(&stream->ends[1]);
    }
    free(output->streams);
    *output = (struct output){0};
}
