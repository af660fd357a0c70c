/* SPDX-License-Identifier: MIT */
/* The calls that create a communicator. */
#include "base/deadline.h"
#include "base/error.h"
#include "base/log.h"
#include "base/options.h"
#include "comm/comm.h"
#include "comm/comm_setup.h"
#include "comm/hierarchy.h"
#include "comm/options.h"
#include "fabric/fabric.h"
#include "store/store.h"

#include <stdio.h>

/* Creates a communicator from checked arguments, if the environment and the machine allow it. */
static enum tutti_status create(tutti_store_t *store, int rank, int world_size,
                                const struct tutti_comm_options *options, struct tutti_comm **comm)
{
    struct tutti_comm *created;
    enum tutti_status status = comm_alloc(options->name ? options->name : "default", rank,
                                          world_size, (int32_t)options->device, &created);
    if (status != TUTTI_OK)
        return status;
    created->store = store;
    created->fabric = options->fabric;
    if (options->fabric)
        snprintf(created->config.fabric, sizeof created->config.fabric, "%s",
                 options->fabric->ops->name);
    status = comm_config_read(options, created);
    if (status != TUTTI_OK) {
        tutti_comm_destroy(created);
        return status;
    }
    *comm = created;
    return TUTTI_OK;
}

enum tutti_status tutti_comm_create(tutti_store_t *store, int rank, int world_size,
                                    const struct tutti_comm_options *given, tutti_comm_t **comm)
{
    static const char call[] = "tutti_comm_create";
    struct tutti_comm_options options = {.struct_size = sizeof options};
    struct tutti_comm *created;
    if (!comm)
        return error_set(TUTTI_ERR_INVALID, "%s: comm is NULL", call);
    *comm = NULL;
    if (!store)
        return error_set(TUTTI_ERR_INVALID, "%s: store is NULL: open one with tutti_store_open()",
                         call);
    enum tutti_status status = store_check(store, call);
    if (status == TUTTI_OK && given)
        status = options_copy(call, "tutti_comm_options", given, &options, sizeof options);
    if (status != TUTTI_OK)
        return status;

    status = comm_arguments_check(rank, world_size, &options);
    if (status == TUTTI_OK && options.fabric)
        status = fabric_check(options.fabric, "options->fabric");
    if (status == TUTTI_OK && options.fabric && options.fabric->ops->device_memory &&
        options.device != TUTTI_DEVICE_CUDA)
        status =
            error_set(TUTTI_ERR_DECLINED,
                      "options->fabric: %s moves memory of devices, and a CPU communicator has "
                      "tensors in the host's memory: open mpi:",
                      options.fabric->ops->name);
    if (status == TUTTI_OK)
        status = comm_host_check(options.device, world_size, options.fabric != NULL);
    if (status == TUTTI_OK)
        status = create(store, rank, world_size, &options, &created);
    if (status != TUTTI_OK)
        return error_context(status, "%s", call);
    if (!options.defer)
        status = tutti_comm_rendezvous(created);
    if (status != TUTTI_OK) {
        tutti_comm_destroy(created);
        return status;
    }
    *comm = created;
    return TUTTI_OK;
}

static enum tutti_status rendezvous(struct tutti_comm *comm)
{
    const int64_t deadline = deadline_after(comm->timeout_ms);
    struct comm_setup setup;
    comm_setup_begin(&setup, comm);
    struct tutti_store store = store_bounded(comm->store, deadline, &setup.interrupt);
    const struct comm_assembly how = {
        .store = &store,
        .interrupt = &setup.interrupt,
        .deadline = deadline,
        .join_hosts = hierarchy_open,
    };
    return comm_setup_end(&setup, comm_assemble(comm, &how));
}

enum tutti_status tutti_comm_rendezvous(tutti_comm_t *comm)
{
    static const char call[] = "tutti_comm_rendezvous";
    enum tutti_status status = comm_check_own(comm, call);
    if (status != TUTTI_OK || comm->ready)
        return status;
    if (comm->declined != TUTTI_OK)
        return error_set(comm->declined, "%s", comm->reason);

    status = rendezvous(comm);
    comm->store = NULL; /* a hierarchy keeps it */
    if (status == TUTTI_OK)
        return TUTTI_OK;
    snprintf(comm->reason, sizeof comm->reason, "communicator \"%s\", rank %d: %s", comm->name,
             comm->rank, tutti_last_error());
    comm->declined = status;
    comm_record_meeting(comm);
    comm_dump_failure(comm);
    log_write(TUTTI_LOG_WARN, comm->rank, "%s", comm->reason);
    return error_set(status, "%s", comm->reason);
}
