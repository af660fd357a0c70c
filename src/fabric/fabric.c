/* SPDX-License-Identifier: MIT */
/* How a fabric is opened, and how long it lives. */
#include "fabric/fabric.h"

#include "base/error.h"
#include "base/fork_mutex.h"
#include "ipc/fork.h"

#include <stdlib.h>
#include <string.h>

static const struct fabric_ops *const rows[] = {&mpi_fabric, &nccl_fabric};
static struct fork_mutex lock = FORK_MUTEX(NULL); /* of `uses` of all fabrics */

enum tutti_status fabric_create(const struct fabric_ops *ops, const char *rest,
                                tutti_fabric_t **fabric)
{
    *fabric = NULL;
    struct tutti_fabric *made = calloc(1, sizeof *made);
    if (!made)
        return error_errno("fabric %s", ops->name);
    made->ops = ops;
    made->uses = 1;
    enum tutti_status status = fork_epoch(&made->epoch);
    if (status == TUTTI_OK)
        status = ops->open(rest, made);
    if (status == TUTTI_OK)
        *fabric = made;
    else
        free(made);
    return status;
}

static enum tutti_status open_row(const char *url, tutti_fabric_t **fabric)
{
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const size_t length = strlen(rows[i]->name);
        if (strncmp(url, rows[i]->name, length) == 0 && url[length] == ':')
            return fabric_create(rows[i], url + length + 1, fabric);
    }
    return error_set(TUTTI_ERR_INVALID, "unknown fabric: expected mpi: or nccl:");
}

enum tutti_status tutti_fabric_open(const char *url, tutti_fabric_t **fabric)
{
    if (fabric)
        *fabric = NULL;
    if (!url || !fabric)
        return error_set(TUTTI_ERR_INVALID, "tutti_fabric_open: %s is NULL",
                         url ? "fabric" : "url");
    const enum tutti_status status = open_row(url, fabric);
    return status == TUTTI_OK ? status : error_context(status, "tutti_fabric_open(%.200s)", url);
}

enum tutti_status fabric_check(const tutti_fabric_t *fabric, const char *call)
{
    if (!fabric)
        return error_set(TUTTI_ERR_INVALID, "%s: fabric is NULL", call);
    if (fork_detected(fabric->epoch))
        return error_set(TUTTI_ERR_INVALID,
                         "%s: the fabric belongs to the parent process: open one after fork()",
                         call);
    return TUTTI_OK;
}

static uint32_t add_use(struct tutti_fabric *fabric, int more)
{
    fork_mutex_lock(&lock);
    const uint32_t uses = fabric->uses += (uint32_t)more;
    fork_mutex_unlock(&lock);
    return uses;
}

/* A child of fork() leaves the engine, which is its parent's, alone. */
static void release(struct tutti_fabric *fabric)
{
    if (add_use(fabric, -1))
        return;
    if (fabric->ops->close && !fork_detected(fabric->epoch))
        fabric->ops->close(fabric);
    free(fabric);
}

void tutti_fabric_close(tutti_fabric_t *fabric)
{
    if (fabric)
        release(fabric);
}

enum tutti_status fabric_connect(tutti_fabric_t *fabric, int rank, int size, const void *addresses,
                                 int64_t deadline, const struct interrupt *interrupt,
                                 struct fabric_link **link)
{
    *link = NULL;
    add_use(fabric, 1);
    const enum tutti_status status =
        fabric->ops->connect(fabric, rank, size, addresses, deadline, interrupt, link);
    if (status != TUTTI_OK)
        release(fabric);
    return status;
}

bool fabric_disconnect(struct fabric_link *link, int64_t deadline)
{
    struct tutti_fabric *fabric = link->fabric;
    const bool quiet = !fork_detected(fabric->epoch) && fabric->ops->disconnect(link, deadline);
    release(fabric);
    return quiet;
}
