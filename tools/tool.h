/* SPDX-License-Identifier: MIT */
/* Functions that all sub-commands of `tutti` share: messages, and the parsing of values. */
#ifndef TUTTI_TOOL_H
#define TUTTI_TOOL_H

#include "tutti/tutti.h"

#include <argp.h>

/* Exit statuses of the tool. `tutti run` also returns those of the ranks. */
enum {
    TOOL_OK = 0,
    TOOL_FAILED = 1,
    TOOL_USAGE = 64, /* argp's own, EX_USAGE */
};

/* Each takes the command's name as argv[0] and returns the exit status. */
int command_bench(int argc, char **argv);
int command_diagnose(int argc, char **argv);
int command_dump(int argc, char **argv);
int command_run(int argc, char **argv);
int command_info(int argc, char **argv);
int command_mpi(int argc, char **argv);
int command_nccl(int argc, char **argv);
int command_tune(int argc, char **argv);

/* For the children of each command's argp: -h is the same as --help. */
extern const struct argp_child help_children[];

/* Writes "tutti COMMAND: text" and a newline to stderr in one piece. Returns false. */
bool tool_fail(const char *format, ...) TUTTI_PRINTF(1, 2);
/* The same with ": strerror" of errno appended. */
bool tool_fail_errno(const char *format, ...) TUTTI_PRINTF(1, 2);

/* Whether all output was written. If not, only the first such call prints a message. */
bool tool_output_arrived(void);

/* "8", "64K", "1.5M", "1G" (powers of 1024, an optional B or iB): bytes. False for anything else.
 */
bool parse_size(const char *text, size_t *bytes);
/* A whole number from low to high. */
bool parse_integer(const char *text, long low, long high, long *value);
/* The same for an argp option: ends the program with a message if it is not. */
int integer_argument(struct argp_state *state, const char *option, const char *text, long low,
                     long high);
size_t size_argument(struct argp_state *state, const char *option, const char *text);
/* Reads a file of at most 64 MiB. NULL after a message; else to be freed with free(). */
char *tool_read_file(const char *path, size_t *bytes);
/* Whether a file can be written, or created. */
bool access_for_writing(const char *path);
/* Names of tutti.h's maps; also float, half and double for float32, float16 and float64. */
bool parse_dtype(const char *text, enum tutti_dtype *dtype);
bool parse_op(const char *text, tutti_op_t *op);
bool parse_algo(const char *text, enum tutti_algo *algo);
/* A name of collective.h. */
bool parse_collective(const char *text, enum tutti_collective *collective);

/* "64 MiB", "1.5 KiB", "100 B". */
void format_size(size_t bytes, char *text, size_t capacity);
/* Sets a variable of the environment to a number. */
void tool_setenv(const char *name, size_t value);
/* The time now, as 2026-01-31T12:00:00Z. */
void format_date(char *text, size_t capacity);

/* Whether the communicator sums along a ring of three or more ranks. Such sums add in another order
 * than the reference, so float results are equal only for inputs whose sums are exact. */
bool sums_in_ring(tutti_comm_t *comm);

/* Seconds of CLOCK_MONOTONIC. */
double clock_seconds(void);

#endif
