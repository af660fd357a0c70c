/* SPDX-License-Identifier: MIT */
/* tutti dump: writes the recorders of other processes, and raw dumps, as JSON. */
#include "dump.h"

#include "base/record_path.h"
#include "results.h"
#include "tool.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdlib.h>
#include <unistd.h>

enum { SOURCES_MOST = 1024 };

/* A file that this run has written. */
struct written {
    char *path;
    int pid, rank;
};

struct dump {
    const char *pattern;
    char *made; /* the pattern, if it was completed here */
    char *sources[SOURCES_MOST];
    int source_count;
    struct written *written;
    size_t count;
};

static const struct argp_option options[] = {
    {"output", 'o', "PATTERN", 0,
     "A directory, or a path with %r (rank), %p (process), %n (name), %g (generation), %h (host); "
     "without any of these, .%h.%p is added; the current directory unless given",
     0},
    {0},
};

static const char doc[] =
    "Write a file of JSON for each communicator of the processes (PID), and for each raw dump "
    "(FILE) of TUTTI_DUMP or tutti_comm_dump(). Print the files' names.\v"
    "The processes may be running, stopped or stuck; they take no part. A number is a process: "
    "for a file of such a name give ./NUMBER. Exit status: 0 if each process had a communicator "
    "and everything was written, 1 if not, 64 if the command line is wrong.";

static error_t parse_option(int key, char *text, struct argp_state *state)
{
    struct dump *dump = state->input;
    switch (key) {
    case 'o':
        dump->pattern = text;
        return 0;
    case ARGP_KEY_ARG:
        if (dump->source_count == SOURCES_MOST)
            argp_error(state, "more than %d processes and files", SOURCES_MOST);
        dump->sources[dump->source_count++] = text;
        return 0;
    case ARGP_KEY_NO_ARGS:
        argp_error(state, "a process or a raw dump is missing");
        return 0;
    default:
        return ARGP_ERR_UNKNOWN;
    }
}

/* Completes "dd" to "dd.%h.%p", so that each process has its own file. save() refuses a path
 * that exists and is not an ordinary file. */
static bool pattern_choose(struct dump *dump)
{
    struct stat info;
    if (stat(dump->pattern, &info) == 0 && !S_ISREG(info.st_mode))
        return true;
    if (strchr(dump->pattern, '%'))
        return true;
    if (asprintf(&dump->made, "%s.%%h.%%p", dump->pattern) < 0) {
        dump->made = NULL;
        return tool_fail_errno("%s", dump->pattern);
    }
    dump->pattern = dump->made;
    return true;
}

/* Refuses the second dump of one path. */
static bool written_add(struct dump *dump, const char *path, const struct record_page *page)
{
    for (size_t i = 0; i < dump->count; i++)
        if (strcmp(dump->written[i].path, path) == 0)
            return tool_fail("%s holds the dump of process %d, rank %d: the dump of process %d, "
                             "rank %d, of communicator \"%s\" needs another path: name a directory "
                             "for each host, or a path with %%n (name), %%g (generation), %%r "
                             "(rank) and %%p (process) in it",
                             path, dump->written[i].pid, dump->written[i].rank, (int)page->pid,
                             (int)page->rank, page->name);
    struct written *more = realloc(dump->written, (dump->count + 1) * sizeof *more);
    if (!more)
        return tool_fail_errno("%s", path);
    dump->written = more;
    more[dump->count] = (struct written){strdup(path), page->pid, page->rank};
    if (!more[dump->count].path)
        return tool_fail_errno("%s", path);
    dump->count++;
    return true;
}

/* Writes a private file, whole or not at all. It replaces a symbolic link of that name. */
static bool save(const char *path, json_t *root)
{
    char draft[RECORD_PATH_BYTES + 8];
    struct stat there;
    if (lstat(path, &there) == 0 && !S_ISREG(there.st_mode) && !S_ISLNK(there.st_mode))
        return tool_fail("%s is there and no ordinary file: name a directory or a file", path);
    snprintf(draft, sizeof draft, "%s.XXXXXX", path);
    int fd = mkostemp(draft, O_CLOEXEC);
    FILE *out = fd < 0 ? NULL : fdopen(fd, "w");
    if (!out)
        return tool_fail_errno("cannot create a file beside %s", path);
    results_print_json(root, out);
    bool saved = !ferror(out);
    saved = fclose(out) == 0 && saved && rename(draft, path) == 0;
    if (saved)
        return true;
    tool_fail_errno("cannot write %s", path);
    unlink(draft);
    return false;
}

static bool write_page(void *context, const struct record_page *page)
{
    struct dump *dump = context;
    char path[RECORD_PATH_BYTES];
    if (!record_path(dump->pattern, ".json", page, path, sizeof path))
        return tool_fail(RECORD_PATH_WRONG, dump->pattern);
    if (!written_add(dump, path, page))
        return false;
    json_t *root = dump_page_to_json(page);
    bool saved = root ? save(path, root) : tool_fail("%s: no memory", path);
    json_decref(root);
    if (saved)
        puts(path);
    return saved;
}

static bool convert_file(struct dump *dump, const char *path)
{
    char problem[256];
    size_t size;
    char *bytes = tool_read_file(path, &size);
    if (!bytes)
        return false;
    struct record_page *page = dump_page_parse(bytes, size, problem, sizeof problem);
    bool converted =
        page ? write_page(dump, page) : tool_fail("%s is no raw dump of Tutti: %s", path, problem);
    free(page);
    free(bytes);
    return converted;
}

int command_dump(int argc, char **argv)
{
    static const struct argp argp = {.options = options,
                                     .parser = parse_option,
                                     .args_doc = "PID|FILE...",
                                     .doc = doc,
                                     .children = help_children};
    static struct dump dump = {.pattern = "."};
    bool done = true;
    if (argp_parse(&argp, argc, argv, 0, NULL, &dump) || !pattern_choose(&dump))
        return TOOL_FAILED;
    signal(SIGXFSZ, SIG_IGN); /* the size limit of files is an error of write() then */
    for (int i = 0; i < dump.source_count; i++) {
        long pid;
        if (parse_integer(dump.sources[i], 1, INT_MAX, &pid))
            done &= dump_read_process((int)pid, write_page, &dump);
        else
            done &= convert_file(&dump, dump.sources[i]);
    }
    for (size_t i = 0; i < dump.count; i++)
        free(dump.written[i].path);
    free(dump.written);
    free(dump.made);
    return done ? TOOL_OK : TOOL_FAILED;
}
