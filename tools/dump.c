/* SPDX-License-Identifier: MIT */
/* tutti dump: what the communicators of other processes have done, whatever those do now. */
#include "tool.h"
#include "tutti/recorder.h"

#include <limits.h>
#include <stdio.h>

enum { PROCESSES_MOST = 1024 };

struct dump {
    const char *pattern;
    int pids[PROCESSES_MOST];
    int processes;
};

static const struct argp_option options[] = {
    {"output", 'o', "PATTERN", 0,
     "A directory, or a path with %r (rank), %p (process), %n (name), %g (generation), %h (host); "
     "the current directory unless given",
     0},
    {0},
};

static const char doc[] =
    "Write a file of JSON for each communicator of the processes, and print their names.\v"
    "The processes may be running, stopped or stuck; they take no part. Exit status: 0 if each had "
    "a communicator and was dumped, 1 if not, 64 if the command line is wrong.";

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct dump *dump = state->input;
    switch (key) {
    case 'o':
        dump->pattern = text;
        return 0;
    case ARGP_KEY_ARG:
        if (dump->processes == PROCESSES_MOST)
            argp_error(state, "more than %d processes", PROCESSES_MOST);
        dump->pids[dump->processes++] = integer_argument(state, "PID", text, 1, INT_MAX);
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "the number of a process is missing");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

static void print_path(void *context, const char *path)
{
    (void)context;
    puts(path);
}

int command_dump(int argc, char **argv)
{
    static const struct argp argp = {.options = options,
                                     .parser = parse_option,
                                     .args_doc = "PID...",
                                     .doc = doc,
                                     .children = help_children};
    static struct dump dump = {.pattern = "."};
    int result = TOOL_OK;
    if (argp_parse(&argp, argc, argv, 0, NULL, &dump))
        return TOOL_FAILED;
    for (int i = 0; i < dump.processes; i++) {
        int count;
        if (tutti_dump_process(dump.pids[i], dump.pattern, print_path, NULL, &count)) {
            tool_fail("%s", tutti_last_error());
            result = TOOL_FAILED;
        } else if (count == 0) {
            tool_fail("process %d has no communicator", dump.pids[i]);
            result = TOOL_FAILED;
        }
    }
    return result;
}
