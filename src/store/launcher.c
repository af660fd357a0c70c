/* SPDX-License-Identifier: MIT */
#include "store/launcher.h"

#include "base/error.h"
#include "base/fd.h"
#include "base/options.h"
#include "base/parse.h"
#include "base/text.h"
#include "ipc/process.h"
#include "store/kind.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct row {
    const char *name;
    const char *rank, *world_size;       /* variables; both set recognise the launcher */
    const char *local_rank, *local_size; /* may be unset, or NULL */
    const char *job[2];                  /* what names the job, up to two variables */
};

/* The first match wins. Slurm's variables are also set for ranks that another launcher starts in a
 * Slurm job, so Slurm comes last. */
static const struct row rows[] = {
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", {NULL, NULL}},
    {"openmpi",
     "OMPI_COMM_WORLD_RANK",
     "OMPI_COMM_WORLD_SIZE",
     "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE",
     {"PMIX_NAMESPACE", NULL}},
    {"hydra", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS", {NULL, NULL}},
    {"slurm",
     "SLURM_PROCID",
     "SLURM_NTASKS",
     "SLURM_LOCALID",
     NULL,
     {"SLURM_JOB_ID", "SLURM_STEP_ID"}},
};
enum { ROWS = sizeof rows / sizeof *rows };

static const char *variable(const char *name)
{
    const char *text = name ? getenv(name) : NULL;
    return text && *text ? text : NULL;
}

/* A number from least to most; *value is left alone when the variable is unset. */
static enum tutti_status read_number(const char *name, int least, int most, int *value)
{
    int64_t number;
    const char *text = variable(name);
    if (!text)
        return TUTTI_OK;
    if (!parse_number(text, least, most, &number))
        return error_set(TUTTI_ERR_INVALID, "%s=%.80s: expected a whole number from %d to %d", name,
                         text, least, most);
    *value = (int)number;
    return TUTTI_OK;
}

static const struct row *recognise(void)
{
    for (int i = 0; i < ROWS; i++)
        if (variable(rows[i].rank) && variable(rows[i].world_size))
            return &rows[i];
    return NULL;
}

static enum tutti_status not_recognised(void)
{
    char looked_for[512] = "";
    int length = 0;
    for (int i = 0; i < ROWS; i++)
        text_append(looked_for, sizeof looked_for, &length, "%s%s and %s (%s)", i ? ", " : "",
                    rows[i].rank, rows[i].world_size, rows[i].name);
    return error_set(TUTTI_ERR_INVALID,
                     "no launcher recognised: looked for %s; start the program with one, or open "
                     "another store",
                     looked_for);
}

static enum tutti_status read_row(const struct row *row, struct tutti_launcher *launcher)
{
    launcher->name = row->name;
    launcher->local_rank = launcher->local_size = -1;
    enum tutti_status status = read_number(row->world_size, 1, INT_MAX, &launcher->world_size);
    if (status == TUTTI_OK)
        status = read_number(row->rank, 0, launcher->world_size - 1, &launcher->rank);
    if (status == TUTTI_OK)
        status = read_number(row->local_size, 1, launcher->world_size, &launcher->local_size);
    int most = launcher->local_size > 0 ? launcher->local_size - 1 : INT_MAX - 1;
    if (status == TUTTI_OK)
        status = read_number(row->local_rank, 0, most, &launcher->local_rank);
    return status;
}

enum tutti_status tutti_info_launcher(struct tutti_launcher *launcher)
{
    if (!launcher)
        return error_set(TUTTI_ERR_INVALID, "tutti_info_launcher: launcher is NULL");
    if (options_check_out("tutti_info_launcher", "tutti_launcher", launcher, sizeof *launcher))
        return TUTTI_ERR_INVALID;
    const struct row *row = recognise();
    if (!row)
        return not_recognised();
    struct tutti_launcher found = {.struct_size = sizeof found};
    enum tutti_status status = read_row(row, &found);
    if (status == TUTTI_OK)
        options_copy_out(launcher, &found, sizeof found);
    return status;
}

/* ---- the job's name -------------------------------------------------------------------------- */

/* Returns true if the process was started with the variable set. */
static bool has_variable(int64_t pid, const char *name)
{
    char path[64], *text = NULL;
    size_t length = strlen(name), room = 0;
    bool found = false;
    snprintf(path, sizeof path, "/proc/%lld/environ", (long long)pid);
    FILE *file = fd_open_stream(path);
    while (file && !found && getdelim(&text, &room, 0, file) > 0)
        found = strncmp(text, name, length) == 0 && text[length] == '=';
    free(text);
    if (file)
        fclose(file);
    return found;
}

/* The launcher's process is the nearest ancestor that has no rank. Between it and this process
 * there may be shells and wrappers, which differ by rank. */
static enum tutti_status name_by_ancestor(const struct row *row, char *job, size_t size)
{
    int64_t pid = getppid(), parent;
    uint64_t start;
    bool known = process_parent(pid, &parent, &start);
    while (known && parent > 1 && has_variable(pid, row->rank)) {
        pid = parent;
        known = process_parent(pid, &parent, &start);
    }
    if (!known)
        return error_set(TUTTI_ERR_SYSTEM,
                         "/proc does not show the launcher's process: set MASTER_ADDR and "
                         "MASTER_PORT for all ranks");
    snprintf(job, size, "%s-%lld-%llu", row->name, (long long)pid, (unsigned long long)start);
    return TUTTI_OK;
}

enum tutti_status launcher_job(const struct tutti_launcher *launcher, char *job, size_t size)
{
    const struct row *row = rows;
    while (strcmp(row->name, launcher->name) != 0)
        row++;
    const char *first = variable(row->job[0]);
    const char *second = row->job[1] ? variable(row->job[1]) : "";
    if (!first || !second)
        return name_by_ancestor(row, job, size);
    snprintf(job, size, "%s-%.80s-%.40s", row->name, first, second);
    for (char *one = job; *one; one++)
        if (!isalnum((unsigned char)*one) && !strchr(".-", *one))
            *one = '_';
    return TUTTI_OK;
}
