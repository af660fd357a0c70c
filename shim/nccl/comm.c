/* SPDX-License-Identifier: MIT */
/* Handles: checks, life and queries. */
#include "shim.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

static const uint64_t MAGIC = 0x74757474696e6363;

enum {
    NAP_NS = 1000000,
    LEAVE_NAPS = 10000, /* how long an end waits for threads inside */
};

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = NAP_NS}, NULL);
}

/* ---- entry ----------------------------------------------------------------------------------- */

static ncclResult_t check_ready(const struct ncclComm *comm, enum symbol symbol)
{
    const ncclResult_t state = comm_state(comm);
    if (state == ncclInProgress)
        return fail(ncclInvalidUsage, symbol,
                    "the communicator is not ready: wait until ncclCommGetAsyncError() no longer "
                    "says ncclInProgress");
    if (state != ncclSuccess)
        return outcome_tell(&comm->outcome);
    if (comm->revoked || comm->finalized || comm->suspended)
        return fail(ncclInvalidUsage, symbol, "the communicator has been %s",
                    comm->revoked     ? "revoked or aborted"
                    : comm->finalized ? "finalized"
                                      : "suspended: call ncclCommResume() first");
    return ncclSuccess;
}

ncclResult_t comm_enter(ncclComm_t comm, enum symbol symbol, bool ready)
{
    if (!comm || comm->magic != MAGIC)
        return fail(ncclInvalidArgument, symbol, "comm is NULL, or no communicator");
    order_fetch_add_relaxed_u32(&comm->inside, 1);
    report_call(symbol, comm_state(comm) == ncclSuccess && !comm->comm);
    const ncclResult_t result = ready ? check_ready(comm, symbol) : ncclSuccess;
    return result == ncclSuccess ? result : comm_leave(comm, result);
}

ncclResult_t comm_leave(ncclComm_t comm, ncclResult_t result)
{
    order_fetch_add_u32(&comm->inside, (uint32_t)-1); /* release N3 */
    return result;
}

/* ---- life ------------------------------------------------------------------------------------ */

/* Sets the context of a handle: the device's primary one, or the current one, or, as the CUDA
 * runtime does, device 0's. */
static ncclResult_t context_find(ncclComm_t comm, int device, enum symbol symbol)
{
    const struct cuda_driver *driver;
    enum tutti_status status = cuda_driver_open(&driver);
    if (status != TUTTI_OK)
        return fail_status(status, symbol);
    comm->driver = driver;
    if (device < 0 && driver->ctx_current(&comm->context) == CUDA_SUCCESS && comm->context) {
        driver->ctx_device(&comm->device);
        return ncclSuccess;
    }
    comm->device = device < 0 ? 0 : device;
    if (driver->primary_retain(&comm->context, comm->device) != CUDA_SUCCESS)
        return fail(ncclUnhandledCudaError, symbol, "cannot use CUDA device %d", comm->device);
    if (device < 0)
        driver->ctx_push(comm->context);
    return ncclSuccess;
}

ncclResult_t max_blocks_read(int most, int *max_blocks, enum symbol symbol)
{
    if (most == NCCL_CONFIG_UNDEF_INT)
        return ncclSuccess;
    if (most < 1)
        return fail(ncclInvalidArgument, symbol, "maxCTAs is %d: expected 1 or more", most);
    *max_blocks = most;
    return ncclSuccess;
}

/* Reads a program's configuration, of its size. */
static ncclResult_t config_read(ncclComm_t comm, const ncclConfig_t *given, enum symbol symbol)
{
    ncclConfig_t config;
    if (!given)
        return ncclSuccess;
    if (given->size < offsetof(ncclConfig_t, blocking) + sizeof config.blocking ||
        given->magic != NCCL_API_MAGIC)
        return fail(ncclInvalidArgument, symbol,
                    "the configuration was not initialized: use NCCL_CONFIG_INITIALIZER");
    config = (ncclConfig_t){.blocking = NCCL_CONFIG_UNDEF_INT, .maxCTAs = NCCL_CONFIG_UNDEF_INT};
    memcpy(&config, given, given->size < sizeof config ? given->size : sizeof config);
    if (config.blocking != NCCL_CONFIG_UNDEF_INT) {
        if (config.blocking != 0 && config.blocking != 1)
            return fail(ncclInvalidArgument, symbol, "blocking is %d: expected 0 or 1",
                        config.blocking);
        comm->blocking = config.blocking;
    }
    return max_blocks_read(config.maxCTAs, &comm->max_blocks, symbol);
}

/* As with NCCL, its variables go before what the program says. NCCL's operations wait for a late
 * rank for ever, and programs rely on it: ranks wait while one of them writes a checkpoint. */
static void variables_read(ncclComm_t comm)
{
    const char *blocking = getenv("NCCL_COMM_BLOCKING"), *most = getenv("NCCL_MAX_CTAS");
    const char *timeout = getenv("TUTTI_TIMEOUT_MS");
    comm->timeout_ms = timeout && *timeout ? 0 : -1;
    if (blocking && (strcmp(blocking, "0") == 0 || strcmp(blocking, "1") == 0))
        comm->blocking = *blocking == '1';
    if (most && atoi(most) > 0)
        comm->max_blocks = atoi(most);
}

ncclResult_t comm_allocate(const ncclConfig_t *config, const struct ncclComm *parent, int device,
                           enum symbol symbol, ncclComm_t *made)
{
    ncclComm_t comm = calloc(1, sizeof *comm);
    log_start();
    if (!comm)
        return fail(ncclSystemError, symbol, "no memory");
    comm->magic = MAGIC;
    ncclResult_t result = ncclSuccess;
    if (parent) {
        comm->driver = parent->driver;
        comm->context = parent->context;
        comm->device = parent->device;
        comm->blocking = parent->blocking;
        comm->max_blocks = parent->max_blocks;
    } else {
        comm->blocking = true;
        result = context_find(comm, device, symbol);
    }
    if (result == ncclSuccess)
        result = config_read(comm, config, symbol);
    variables_read(comm);
    if (result == ncclSuccess)
        *made = comm;
    else
        free(comm);
    return result;
}

/* Destroys Tutti's communicator once the other threads have left it. */
static ncclResult_t tutti_end(ncclComm_t comm, enum symbol symbol)
{
    for (int naps = 0; naps < LEAVE_NAPS; naps++) {
        if (order_load_acquire_u32(&comm->inside) == 0) { /* acquire N3a */
            const enum tutti_status status = tutti_comm_destroy(comm->comm);
            if (status != TUTTI_ERR_CONCURRENT)
                return fail_status(status, symbol);
        }
        nap();
    }
    return fail(ncclInvalidUsage, symbol, "another thread is in a call on the communicator");
}

ncclResult_t comm_free(ncclComm_t comm, enum symbol symbol)
{
    ncclResult_t result = comm->comm ? tutti_end(comm, symbol) : ncclSuccess;
    if (result == ncclSuccess && comm->real)
        result = fail_real(
            (comm->revoked ? REAL(ncclCommAbort) : REAL(ncclCommDestroy))(comm->real), symbol);
    if (result != ncclSuccess)
        return result;
    if (comm->alone && comm->revoked)
        tutti_comm_abort(comm->alone);
    tutti_comm_destroy(comm->alone);
    for (int i = 0; i < comm->op_count; i++)
        tutti_op_destroy(comm->ops[i]);
    windows_free(comm);
    bool pushed;
    if (comm->event && cuda_context_enter(comm->driver, comm->context, &pushed) == TUTTI_OK) {
        comm->driver->event_destroy(comm->event);
        cuda_context_leave(comm->driver, pushed);
    }
    free(comm->ops);
    comm->magic = 0;
    free(comm);
    return ncclSuccess;
}

static ncclResult_t make_finalized(struct create *create)
{
    const struct ncclComm *comm = create->comm;
    if (comm->real && !comm->comm)
        return real_wait(comm->real, REAL(ncclCommFinalize)(comm->real), create->symbol);
    return fail_status(tutti_comm_finalize(comm->comm, -1), create->symbol);
}

NCCL_DEFINE(ncclResult_t, ncclCommFinalize, ncclComm_t comm)
{
    struct create create = {
        .make = make_finalized, .symbol = SYMBOL_ncclCommFinalize, .comm = comm};
    const ncclResult_t result = comm_enter(comm, create.symbol, true);
    if (result != ncclSuccess)
        return group_refuse(result);
    comm_leave(comm, result);
    comm->finalized = true;
    create.waits = comm->blocking;
    return create_start(&create);
}

/* A communicator may end unless the open group has calls on it. */
static ncclResult_t check_end(ncclComm_t comm, enum symbol symbol)
{
    ncclResult_t result = comm_enter(comm, symbol, false);
    if (result != ncclSuccess)
        return result;
    if (group_uses(comm))
        result = fail(ncclInvalidUsage, symbol,
                      "the open group has calls on the communicator: call ncclGroupEnd() first");
    return comm_leave(comm, result);
}

NCCL_DEFINE(ncclResult_t, ncclCommDestroy, ncclComm_t comm)
{
    const ncclResult_t result = comm ? check_end(comm, SYMBOL_ncclCommDestroy) : ncclSuccess;
    if (!comm || result != ncclSuccess)
        return result;
    while (comm_state(comm) == ncclInProgress)
        nap();
    return comm_free(comm, SYMBOL_ncclCommDestroy);
}

NCCL_DEFINE(ncclResult_t, ncclCommAbort, ncclComm_t comm)
{
    const ncclResult_t result = comm ? check_end(comm, SYMBOL_ncclCommAbort) : ncclSuccess;
    if (!comm || result != ncclSuccess)
        return result;
    comm->revoked = true;
    return create_abandon(comm) ? ncclSuccess : comm_free(comm, SYMBOL_ncclCommAbort);
}

NCCL_DEFINE(ncclResult_t, ncclCommRevoke, ncclComm_t comm, int flags)
{
    ncclResult_t result = comm_enter(comm, SYMBOL_ncclCommRevoke, true);
    if (result != ncclSuccess)
        return result;
    if (flags != NCCL_REVOKE_DEFAULT)
        result = fail(ncclInvalidArgument, SYMBOL_ncclCommRevoke, "flags %d: expected 0", flags);
    else if (!comm->comm)
        result = fail(ncclInvalidUsage, SYMBOL_ncclCommRevoke,
                      "NVIDIA's library serves the communicator: call ncclCommAbort()");
    if (result == ncclSuccess) {
        comm->revoked = true;
        tutti_comm_abort(comm->comm);
    }
    return comm_leave(comm, result);
}

/* ---- queries --------------------------------------------------------------------------------- */

NCCL_DEFINE(ncclResult_t, ncclCommGetAsyncError, ncclComm_t comm, ncclResult_t *error)
{
    const ncclResult_t result = comm_enter(comm, SYMBOL_ncclCommGetAsyncError, false);
    if (result != ncclSuccess)
        return result;
    if (!error)
        return comm_leave(comm, fail(ncclInvalidArgument, SYMBOL_ncclCommGetAsyncError, "NULL"));
    *error = comm_state(comm);
    if (*error == ncclSuccess && comm->comm && !comm->revoked) {
        *error = result_of(tutti_comm_status(comm->comm, NULL));
        if (*error != ncclSuccess)
            error_tell(tutti_last_error());
    } else if (*error == ncclSuccess && comm->real && !comm->comm) {
        return comm_leave(comm, REAL(ncclCommGetAsyncError)(comm->real, error));
    } else if (*error != ncclSuccess && *error != ncclInProgress) {
        outcome_tell(&comm->outcome);
    }
    return comm_leave(comm, ncclSuccess);
}

static ncclResult_t tell(ncclComm_t comm, enum symbol symbol, int *value, size_t member)
{
    ncclResult_t result = comm_enter(comm, symbol, false);
    if (result != ncclSuccess)
        return result;
    if (value)
        memcpy(value, (const char *)comm + member, sizeof *value);
    else
        result = fail(ncclInvalidArgument, symbol, "the result is NULL");
    return comm_leave(comm, result);
}

NCCL_DEFINE(ncclResult_t, ncclCommCount, const ncclComm_t comm, int *count)
{
    return tell(comm, SYMBOL_ncclCommCount, count, offsetof(struct ncclComm, ranks));
}

NCCL_DEFINE(ncclResult_t, ncclCommCuDevice, const ncclComm_t comm, int *device)
{
    return tell(comm, SYMBOL_ncclCommCuDevice, device, offsetof(struct ncclComm, device));
}

NCCL_DEFINE(ncclResult_t, ncclCommUserRank, const ncclComm_t comm, int *rank)
{
    return tell(comm, SYMBOL_ncclCommUserRank, rank, offsetof(struct ncclComm, rank));
}

/* The head of what NCCL 2.29 and newer tell. `size` is the program's. */
struct properties {
    size_t size;
    unsigned magic;
    unsigned version;
    int rank, ranks, device, nvml_device;
    char others[8]; /* and more: what only NVIDIA's library has */
};

NCCL_DEFINE(ncclResult_t, ncclCommQueryProperties, ncclComm_t comm, void *properties)
{
    struct properties *own = properties;
    ncclResult_t result = comm_enter(comm, SYMBOL_ncclCommQueryProperties, true);
    if (result != ncclSuccess)
        return result;
    if (!own || own->magic != NCCL_API_MAGIC || own->size < sizeof *own) {
        result = fail(ncclInvalidArgument, SYMBOL_ncclCommQueryProperties,
                      "the struct was not initialized: use NCCL_COMM_PROPERTIES_INITIALIZER");
    } else if (comm->real && REAL(ncclCommQueryProperties)) {
        result = fail_real(REAL(ncclCommQueryProperties)(comm->real, properties),
                           SYMBOL_ncclCommQueryProperties);
    } else {
        own->rank = comm->rank;
        own->ranks = comm->ranks;
        own->device = own->nvml_device = comm->device;
        memset(own->others, 0, own->size - offsetof(struct properties, others));
    }
    return comm_leave(comm, result);
}

NCCL_DEFINE(ncclResult_t, ncclGetVersion, int *version)
{
    if (!version)
        return fail(ncclInvalidArgument, SYMBOL_ncclGetVersion, "NULL");
    *version = SHIM_NCCL_VERSION;
    return real_library() ? REAL(ncclGetVersion)(version) : ncclSuccess;
}

/* Nothing leaves the host, so there is nothing to encrypt. NVIDIA's library gets the setting if it
 * serves communicators across hosts. */
NCCL_DEFINE(ncclResult_t, ncclSetEncryption, const ncclEncryptionConfig_t *config)
{
    if (!config || config->magic != NCCL_API_MAGIC)
        return fail(ncclInvalidArgument, SYMBOL_ncclSetEncryption,
                    "the configuration is NULL or was not initialized: use "
                    "NCCL_ENCRYPTION_CONFIG_INITIALIZER");
    return real_serves_all() && REAL(ncclSetEncryption)
               ? fail_real(REAL(ncclSetEncryption)(config), SYMBOL_ncclSetEncryption)
               : ncclSuccess;
}
