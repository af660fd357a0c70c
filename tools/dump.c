/* SPDX-License-Identifier: MIT */
/* tutti dump: what the communicators of other processes have done, whatever those do now. */
#include "tool.h"
#include "tutti/recorder.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { PROCESSES_MOST = 1024 };

/* A dump that has been written. */
struct written {
    char *path;
    int pid;
};

struct dump {
    const char *pattern; /* as the library gets it */
    char *made;          /* the same, if it was made here */
    bool drafts;         /* each dump is written beside its place first, as PATTERN.pPID */
    int pids[PROCESSES_MOST];
    int processes;
    int pid; /* of them, being dumped */
    struct written *written;
    size_t count;
    bool failed;
};

static const struct argp_option options[] = {
    {"output", 'o', "PATTERN", 0,
     "A directory, or a path with %r (rank), %p (process), %n (name), %g (generation), %h (host); "
     "without any of these, .%h.%p is added; the current directory unless given",
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

/* ---- where dumps go -------------------------------------------------------------------------- */

/* So that no two processes write to one file: "dd" becomes "dd.%h.%p", and of several processes
 * drafts are written. The library refuses what is there and no ordinary file. */
static bool pattern_choose(struct dump *dump)
{
    struct stat info;
    if (stat(dump->pattern, &info) == 0 && !S_ISREG(info.st_mode))
        return true;
    dump->drafts = dump->processes > 1;
    if (strchr(dump->pattern, '%'))
        return true;
    if (asprintf(&dump->made, "%s.%%h.%%p", dump->pattern) < 0) {
        dump->made = NULL;
        return tool_fail_errno("%s", dump->pattern);
    }
    dump->pattern = dump->made;
    return true;
}

/* ---- what was written ------------------------------------------------------------------------ */

/* The process whose dump has that name; 0 if none has. */
static int owner_of(const struct dump *dump, const char *path)
{
    for (size_t i = 0; i < dump->count; i++)
        if (strcmp(dump->written[i].path, path) == 0)
            return dump->written[i].pid;
    return 0;
}

static bool written_add(struct dump *dump, const char *path)
{
    struct written *more = realloc(dump->written, (dump->count + 1) * sizeof *more);
    if (!more)
        return tool_fail_errno("%s", path);
    dump->written = more;
    more[dump->count] = (struct written){.path = strdup(path), .pid = dump->pid};
    if (!more[dump->count].path)
        return tool_fail_errno("%s", path);
    dump->count++;
    return true;
}

/* Gives a draft its name, unless another dump of this run has it. A link of that name is replaced
 * and not followed. */
static bool draft_rename(struct dump *dump, const char *draft, const char *path)
{
    struct stat there;
    int owner = owner_of(dump, path);
    if (owner)
        return tool_fail("%s holds the dump of process %d, and process %d has one of the same "
                         "name: name a directory, or a path with %%p (process) in it",
                         path, owner, dump->pid);
    if (lstat(path, &there) == 0 && !S_ISREG(there.st_mode) && !S_ISLNK(there.st_mode))
        return tool_fail("%s is there and no ordinary file: name a directory or a file", path);
    if (rename(draft, path) != 0)
        return tool_fail_errno("cannot give a dump its name, %s", path);
    return true;
}

static bool take_draft(struct dump *dump, const char *draft)
{
    char *path = strndup(draft, (size_t)(strrchr(draft, '.') - draft));
    bool taken = path && draft_rename(dump, draft, path) && written_add(dump, path);
    if (taken)
        puts(path);
    else
        unlink(draft);
    free(path);
    return taken;
}

/* Numbers of processes are the same where PID namespaces differ: then one file of a directory may
 * have been replaced by another one. */
static bool take_file(struct dump *dump, const char *path)
{
    int owner = owner_of(dump, path);
    puts(path);
    if (owner)
        return tool_fail("%s was the dump of process %d, and is that of process %d now: dump them "
                         "into two directories",
                         path, owner, dump->pid);
    return written_add(dump, path);
}

static void take_dump(void *context, const char *path)
{
    struct dump *dump = context;
    if (!(dump->drafts ? take_draft(dump, path) : take_file(dump, path)))
        dump->failed = true;
}

static bool dump_process(struct dump *dump)
{
    char *draft = NULL;
    int count;
    if (dump->drafts && asprintf(&draft, "%s.p%d", dump->pattern, dump->pid) < 0)
        return tool_fail_errno("%s", dump->pattern);
    bool dumped =
        !tutti_dump_process(dump->pid, draft ? draft : dump->pattern, take_dump, dump, &count);
    free(draft);
    if (!dumped)
        return tool_fail("%s", tutti_last_error());
    return count ? true : tool_fail("process %d has no communicator", dump->pid);
}

int command_dump(int argc, char **argv)
{
    static const struct argp argp = {.options = options,
                                     .parser = parse_option,
                                     .args_doc = "PID...",
                                     .doc = doc,
                                     .children = help_children};
    static struct dump dump = {.pattern = "."};
    if (argp_parse(&argp, argc, argv, 0, NULL, &dump) || !pattern_choose(&dump))
        return TOOL_FAILED;
    for (int i = 0; i < dump.processes; i++) {
        dump.pid = dump.pids[i];
        dump.failed |= !dump_process(&dump);
    }
    for (size_t i = 0; i < dump.count; i++)
        free(dump.written[i].path);
    free(dump.written);
    free(dump.made);
    return dump.failed ? TOOL_FAILED : TOOL_OK;
}
