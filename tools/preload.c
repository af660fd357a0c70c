/* SPDX-License-Identifier: MIT */
/* tutti nccl: starts a program of NCCL with Tutti's libnccl.so.2 in place of NVIDIA's. tutti mpi:
 * starts one of MPI with libtutti-mpi.so before the MPI. */
#include "tool.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_NOT_FOUND = 127, EXIT_NOT_STARTED = 126 };

struct door {
    const char *command, *library, *folder, *report, *example, *doc;
};

struct preload {
    const struct door *door;
    bool report, path;
    int first; /* of the command in argv; 0: none */
};

static const struct argp_option options[] = {
    {"report", 'r', NULL, 0,
     "At its end each process writes which calls it made, and whether Tutti or the other library "
     "served them",
     0},
    {"path", 'p', NULL, 0, "Print the path of Tutti's library and start nothing", 0},
    {0},
};

static const char nccl_doc[] =
    "Start a program that calls NCCL with Tutti's libnccl.so.2 in place of NVIDIA's.\v"
    "The program is not changed. LD_PRELOAD gets the library, and the processes that the program "
    "starts inherit it. What Tutti does not have is served by NVIDIA's library, which "
    "TUTTI_NCCL_LIBRARY names; without it, it is searched for. Exit status: that of the program, "
    "127 if it was not found, 126 if it could not be started, 1 if the library was not found, 64 "
    "if the command line is wrong.";

static const char mpi_doc[] =
    "Start a program that calls MPI, by its launcher, with Tutti's libtutti-mpi.so before the "
    "MPI.\v"
    "The program is not changed. LD_PRELOAD gets the library, and the processes that the launcher "
    "starts on this host inherit it. Tutti serves collectives among ranks of one host; the MPI "
    "serves everything else. Exit status: that of the program, 127 if it was not found, 126 if it "
    "could not be started, 1 if the library was not found, 64 if the command line is wrong.";

static const struct door nccl_door = {
    .command = "nccl",
    .library = "libnccl.so.2",
    .folder = "nccl",
    .report = "TUTTI_NCCL_REPORT",
    .example = "tutti nccl -- PROGRAM [ARGUMENT...]",
    .doc = nccl_doc,
};

static const struct door mpi_door = {
    .command = "mpi",
    .library = "libtutti-mpi.so",
    .folder = "mpi",
    .report = "TUTTI_MPI_REPORT",
    .example = "tutti mpi -- mpirun -n 4 PROGRAM [ARGUMENT...]",
    .doc = mpi_doc,
};

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
            argp_error(state, "a program is missing: %s", preload->door->example);
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Where the library is beside this program: installed, in a wheel, in a build. */
static bool library_find(const struct door *door, char path[PATH_MAX])
{
    const char *const places[] = {TOOL_LIBRARIES_INSTALLED, "", "../shim/"};
    char program[PATH_MAX], place[2 * PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    if (length < 0)
        return tool_fail_errno("/proc/self/exe");
    program[length] = 0;
    *strrchr(program, '/') = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        snprintf(place, sizeof place, "%s/%s%s/%s", program, places[i], i ? door->folder : "",
                 door->library);
        if (realpath(place, path))
            return true;
    }
    return tool_fail("Tutti's %s is not beside %s: this tutti was built without it", door->library,
                     program);
}

/* Puts the library before what is preloaded already. */
static bool preload_set(const struct door *door, const char *path)
{
    const char *before = getenv("LD_PRELOAD");
    char *value = NULL;
    if (asprintf(&value, "%s%s%s", path, before && *before ? ":" : "", before ? before : "") < 0)
        return tool_fail("no memory");
    const bool set = setenv("LD_PRELOAD", value, 1) == 0;
    if (set)
        fprintf(stderr, "tutti %s: LD_PRELOAD=%s\n", door->command, value);
    free(value);
    return set || tool_fail_errno("LD_PRELOAD");
}

static int run(const struct door *door, int argc, char **argv)
{
    const struct argp argp = {.options = options,
                              .parser = parse_option,
                              .args_doc = "[--] PROGRAM [ARGUMENT...]",
                              .doc = door->doc,
                              .children = help_children};
    struct preload preload = {.door = door};
    char path[PATH_MAX];
    if (argp_parse(&argp, argc, argv, ARGP_IN_ORDER, NULL, &preload) != 0)
        return TOOL_USAGE;
    if (!library_find(door, path))
        return TOOL_FAILED;
    if (preload.path) {
        puts(path);
        return TOOL_OK;
    }
    if (!preload_set(door, path))
        return TOOL_FAILED;
    if (preload.report && setenv(door->report, "1", 1) == 0)
        fprintf(stderr, "tutti %s: %s=1\n", door->command, door->report);
    execvp(argv[preload.first], &argv[preload.first]);
    const bool found = errno != ENOENT;
    tool_fail_errno("%s", argv[preload.first]);
    return found ? EXIT_NOT_STARTED : EXIT_NOT_FOUND;
}

int command_nccl(int argc, char **argv)
{
    return run(&nccl_door, argc, argv);
}

int command_mpi(int argc, char **argv)
{
    return run(&mpi_door, argc, argv);
}
