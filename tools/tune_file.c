/* SPDX-License-Identifier: MIT */
/* A plan's rows: read from a communicator's description, written as a tuning file. */
#include "tool.h"
#include "tune.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static const char head[] = "tutti-tuning 1";

/* ---- plans ----------------------------------------------------------------------------------- */

bool tune_choice_equal(const struct tune_choice *a, const struct tune_choice *b)
{
    return strcmp(a->kernel, b->kernel) == 0 && a->threads == b->threads &&
           a->blocks == b->blocks && a->units == b->units;
}

bool tune_plan_append(struct tune_plan *plan, size_t bytes, const struct tune_choice *choice)
{
    int last = plan->count - 1;
    if (last >= 0 && tune_choice_equal(&plan->choices[last], choice)) {
        plan->bytes[last] = bytes;
        return true;
    }
    if (plan->count == TUNE_ROWS)
        return tool_fail("more than %d rows: give fewer sizes (-b, -e)", TUNE_ROWS);
    plan->choices[plan->count] = *choice;
    plan->bytes[plan->count++] = bytes;
    return true;
}

bool tune_plan_append_part(struct tune_plan *plan, const struct tune_plan *from, size_t low,
                           size_t high)
{
    bool ok = true;
    for (int i = 0; i < from->count && ok; i++) {
        if (from->bytes[i] <= low || (i && from->bytes[i - 1] >= high))
            continue;
        ok = tune_plan_append(plan, from->bytes[i] < high ? from->bytes[i] : high,
                              &from->choices[i]);
    }
    return ok;
}

static size_t limit_of(const char *text)
{
    return strncmp(text, "any", 3) == 0 ? TUNE_REST : (size_t)strtoull(text, NULL, 10);
}

bool tune_plan_read(struct tune_plan *plan, const char *description)
{
    const char *line = description;
    int major = 0, minor = 0;
    plan->count = plan->kernel_count = 0;
    for (; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        char size[32];
        struct tune_choice choice;
        struct tune_kernel kernel;
        sscanf(line, "compute_capability: %d.%d", &major, &minor);
        if (plan->kernel_count < TUNE_KERNELS &&
            sscanf(line, "kernel: %23s up to %31[^,], units of %zu bytes in %zu parts, %d blocks",
                   kernel.name, size, &kernel.unit_bytes, &kernel.parts, &kernel.blocks) == 5) {
            kernel.bytes = limit_of(size);
            plan->kernels[plan->kernel_count++] = kernel;
        }
        if (sscanf(line, "plan: %23s up to %31[^,], %d threads, %d blocks, %d units", choice.kernel,
                   size, &choice.threads, &choice.blocks, &choice.units) == 5 &&
            !tune_plan_append(plan, limit_of(size), &choice))
            return false;
    }
    plan->capability = 10 * major + minor;
    return (plan->kernel_count > 0 && plan->count > 0 &&
            plan->bytes[plan->count - 1] == TUNE_REST) ||
           tool_fail("the communicator does not describe its plan");
}

/* ---- text ------------------------------------------------------------------------------------ */

static void write_rows(FILE *file, const struct tune_plan *plan)
{
    for (int i = 0; i < plan->count; i++) {
        const struct tune_choice *choice = &plan->choices[i];
        char bytes[32] = "rest";
        if (plan->bytes[i] != TUNE_REST)
            snprintf(bytes, sizeof bytes, "%zu", plan->bytes[i]);
        fprintf(file, "sm_%d ranks %d bytes %s kernel %s threads %d blocks %d units %d\n",
                plan->capability, plan->ranks, bytes, choice->kernel, choice->threads,
                choice->blocks, choice->units);
    }
}

int tune_scratch_open(char *path, size_t capacity)
{
    int fd = memfd_create("tutti-tuning", MFD_CLOEXEC);
    if (fd < 0)
        tool_fail_errno("cannot make a file in memory");
    snprintf(path, capacity, "/proc/self/fd/%d", fd);
    return fd;
}

bool tune_scratch_write(int fd, const struct tune_plan *plan)
{
    char *text = NULL;
    size_t length = 0;
    FILE *file = open_memstream(&text, &length);
    if (!file)
        return tool_fail("no memory for a tuning file");
    fprintf(file, "%s\n", head);
    if (plan)
        write_rows(file, plan);
    bool ok = fclose(file) == 0 && ftruncate(fd, 0) == 0 &&
              pwrite(fd, text, length, 0) == (ssize_t)length;
    free(text);
    return ok || tool_fail_errno("cannot write a file in memory");
}

/* ---- the file -------------------------------------------------------------------------------- */

void tune_cache_path(char *path, size_t capacity)
{
    const char *folder = getenv("XDG_CACHE_HOME"), *below = "";
    if (!folder || *folder != '/') {
        folder = getenv("HOME");
        below = "/.cache";
    }
    *path = 0;
    if (folder && *folder == '/' &&
        snprintf(path, capacity, "%s%s/tutti/tuning", folder, below) >= (int)capacity)
        *path = 0;
}

static bool make_folders(const char *path)
{
    char *part = strdup(path);
    bool ok = part != NULL;
    for (char *slash = part ? strchr(part + 1, '/') : NULL; slash && ok;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        ok = mkdir(part, 0777) == 0 || errno == EEXIST;
        if (!ok)
            tool_fail_errno("cannot make the folder %s", part);
        *slash = '/';
    }
    free(part);
    return ok;
}

/* Whether a line is kept: rows and comments for other capabilities or numbers of ranks. The head is
 * not kept, nor are the plan's own rows and comments, which begin with the same words. */
static bool is_kept(const char *line, const struct tune_plan *plan)
{
    char capability[16] = "", expected[16];
    int ranks = 0;
    snprintf(expected, sizeof expected, "sm_%d", plan->capability);
    line += strspn(line, " \t");
    bool is_head = strncmp(line, head, strlen("tutti-tuning")) == 0;
    line += strspn(line, "# \t");
    bool own = sscanf(line, "%15s ranks %d", capability, &ranks) == 2 &&
               strcmp(capability, expected) == 0 && ranks == plan->ranks;
    return !is_head && !own;
}

/* False with errno if the file exists and cannot be read. */
static bool copy_others(const char *path, const struct tune_plan *plan, FILE *to)
{
    FILE *from = fopen(path, "re");
    char *line = NULL;
    size_t capacity = 0;
    if (!from)
        return errno == ENOENT;
    while (getline(&line, &capacity, from) > 0)
        if (is_kept(line, plan))
            fprintf(to, "%s%s", line, strchr(line, '\n') ? "" : "\n");
    bool ok = feof(from);
    free(line);
    fclose(from);
    return ok;
}

static void write_comment(FILE *file, const struct tune_plan *plan, const char *comment)
{
    for (const char *line = comment; *line;) {
        size_t length = strcspn(line, "\n");
        fprintf(file, "# sm_%d ranks %d: %.*s\n", plan->capability, plan->ranks, (int)length, line);
        line += length + (line[length] == '\n');
    }
}

bool tune_file_write(const char *path, const struct tune_plan *plan, const char *comment)
{
    char fresh[4096];
    if (snprintf(fresh, sizeof fresh, "%s.%d", path, (int)getpid()) >= (int)sizeof fresh)
        return tool_fail("%s: the path is too long", path);
    if (!make_folders(path))
        return false;
    FILE *file = fopen(fresh, "wxe");
    if (!file)
        return tool_fail_errno("cannot write %s", fresh);
    fprintf(file, "%s\n", head);
    bool ok = copy_others(path, plan, file) ||
              tool_fail_errno("cannot read what %s has for others", path);
    write_comment(file, plan, comment);
    write_rows(file, plan);
    bool written = !ferror(file);
    written = fclose(file) == 0 && written;
    if (ok && !(written && rename(fresh, path) == 0))
        ok = tool_fail_errno("cannot write %s", path);
    if (!ok)
        unlink(fresh);
    return ok;
}
