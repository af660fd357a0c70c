/* SPDX-License-Identifier: MIT */
/* tutti nccl: starts a program of NCCL with Tutti's libnccl.so.2 in place of NVIDIA's. */
#include "tool.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_NOT_FOUND = 127, EXIT_NOT_STARTED = 126 };

struct preload {
    bool report, path;
    int first; /* of the command in argv; 0: none */
};

static const struct argp_option options[] = {
    {"report", 'r', NULL, 0,
     "At its end each process writes which calls it made, and whether Tutti or NVIDIA's library "
     "served them",
     0},
    {"path", 'p', NULL, 0, "Print the path of Tutti's libnccl.so.2 and start nothing", 0},
    {0},
};

static const char doc[] =
    "Start a program that calls NCCL with Tutti's libnccl.so.2 in place of NVIDIA's.\v"
    "The program is not changed. LD_PRELOAD gets the library, and the processes that the program "
    "starts inherit it. What Tutti does not have is served by NVIDIA's library, which "
    "TUTTI_NCCL_LIBRARY names; without it, it is searched for. Exit status: that of the program, "
    "127 if it was not found, 126 if it could not be started, 1 if the library was not found, 64 "
    "if "
    "the command line is wrong.";

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct preload *preload = state->input;
    (void)text;
    switch (key) {
    case 'r':
        preload->report = true;
        return 0;
    case 'p':
        preload->path = true;
        return 0;
    case ARGP_KEY_ARG:
        preload->first = state->next - 1;
        state->next = state->argc; /* the rest belongs to the program */
        return 0;
    case ARGP_KEY_END:
        if (!preload->first && !preload->path)
            argp_error(state, "a program is missing: tutti nccl -- PROGRAM [ARGUMENT...]");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Where the library is beside this program: installed, in a wheel, in a build. */
static bool library_find(char path[PATH_MAX])
{
    static const char *const places[] = {TOOL_NCCL_INSTALLED, "nccl", "../shim/nccl"};
    char program[PATH_MAX], place[2 * PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        return tool_fail_errno("/proc/self/exe");
    program[length] = 0;
    *strrchr(program, '/') = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(place, sizeof place, "%s/%s/libnccl.so.2", program, places[i]);
        if (realpath(place, path))
            return true;
    }
    return tool_fail("Tutti's libnccl.so.2 is not beside %s: this tutti was built without it",
                     program);
}

/* Puts the library before what is preloaded already. */
static bool preload_set(const char *path)
{
    const char *before = getenv("LD_PRELOAD");
    char *value = NULL;
    if (asprintf(&value, "%s%s%s", path, before && *before ? ":" : "", before ? before : "") < 0)
        return tool_fail("no memory");
    const bool set = setenv("LD_PRELOAD", value, 1) == 0;
    if (set)
        fprintf(stderr, "tutti nccl: LD_PRELOAD=%s\n", value);
    free(value);
    return set || tool_fail_errno("LD_PRELOAD");
}

int command_nccl(int argc, char **argv)
{
    static const struct argp argp = {.options = options,
                                     .parser = parse_option,
                                     .args_doc = "[--] PROGRAM [ARGUMENT...]",
                                     .doc = doc,
                                     .children = help_children};
    struct preload preload = {.first = 0};
    char path[PATH_MAX];
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &preload) != 0)
        return TOOL_USAGE;
    if (!library_find(path))
        return TOOL_FAILED;
    if (preload.path) {
        puts(path);
        return TOOL_OK;
    }
    if (!preload_set(path))
        return TOOL_FAILED;
    if (preload.report && setenv("TUTTI_NCCL_REPORT", "1", 1) == 0)
        fputs("tutti nccl: TUTTI_NCCL_REPORT=1\n", stderr);
    execvp(argv[preload.first], &argv[preload.first]);
    const bool found = errno != ENOENT;
    tool_fail_errno("%s", argv[preload.first]);
    return found ? EXIT_NOT_STARTED : EXIT_NOT_FOUND;
}
