/* SPDX-License-Identifier: MIT */
/*
 * The ranks of an id, on one host or several. The id names a store of the process that made it; its
 * ranks of other hosts reach the store at an address of that host. Each rank tells the others its
 * host. If the hosts differ, each rank tells whether it has NVIDIA's library, and rank 0 tells that
 * library's id. So all ranks decide alike. A rank that cannot reach the store fails at once, and
 * the others when their time is over.
 */
#include "shim.h"

#include "base/deadline.h"
#include "comm/unique_id.h"
#include "ipc/process.h"
#include "store/store.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <stdlib.h>
#include <string.h>

/* ---- this host's address --------------------------------------------------------------------- */

/* Whether NCCL would use an interface: NCCL_SOCKET_IFNAME lists beginnings of names, behind ^ those
 * that are not used; containers' bridges are not, unless it is set. */
static bool is_wanted(const char *name)
{
    const char *list = getenv("NCCL_SOCKET_IFNAME");
    const bool excludes = !list || !*list || *list == '^';
    if (!list || !*list)
        list = "docker";
    for (list += strspn(list, "^="); *list; list += strspn(list, ",")) {
        const size_t length = strcspn(list, ",");
        if (strncmp(name, list, length) == 0)
            return !excludes;
        list += length;
    }
    return excludes;
}

/* 0: no other host reaches this one. */
static struct in_addr address_of_host(void)
{
    struct in_addr address = {0};
    struct ifaddrs *all = NULL;
    if (getifaddrs(&all) != 0)
        return address;
    for (const struct ifaddrs *one = all; one && !address.s_addr; one = one->ifa_next)
        if (one->ifa_addr && one->ifa_addr->sa_family == AF_INET && (one->ifa_flags & IFF_UP) &&
            !(one->ifa_flags & IFF_LOOPBACK) && is_wanted(one->ifa_name))
            address = ((const struct sockaddr_in *)(const void *)one->ifa_addr)->sin_addr;
    freeifaddrs(all);
    return address;
}

NCCL_DEFINE(ncclResult_t, ncclGetUniqueId, ncclUniqueId *id)
{
    static_assert(sizeof *id == sizeof(struct tutti_unique_id), "copied as bytes");
    struct tutti_unique_id made;
    if (!id)
        return fail(ncclInvalidArgument, SYMBOL_ncclGetUniqueId, "the id is NULL");
    if (real_serves_all())
        return real_library() ? fail_real(REAL(ncclGetUniqueId)(id), SYMBOL_ncclGetUniqueId)
                              : real_absent(SYMBOL_ncclGetUniqueId);
    const ncclResult_t result =
        fail_status(unique_id_make(address_of_host(), &made), SYMBOL_ncclGetUniqueId);
    memcpy(id, &made, sizeof *id);
    return result;
}

/* ---- who serves the ranks -------------------------------------------------------------------- */

/* What a rank tells the others. */
struct told {
    uint64_t host;
    uint64_t has_library; /* NVIDIA's */
    ncclUniqueId real_id; /* of rank 0's library */
};

/* The ranks tell each other their hosts, and, if NVIDIA's library is to serve them, whether they
 * have it. */
static enum tutti_status ranks_tell(struct tutti_exchanger *ranks, bool *real, struct told *all)
{
    struct process self;
    process_identify(&self);
    struct told own = {.host = self.host};
    enum tutti_status status = tutti_exchanger_all_gather(ranks, &own, sizeof own, all, 0);
    for (int r = 0; r < ranks->size && status == TUTTI_OK; r++)
        *real |= all[r].host != own.host;
    if (status == TUTTI_OK && *real) {
        own.has_library = real_library();
        if (own.has_library && ranks->rank == 0)
            own.has_library = fail_real(REAL(ncclGetUniqueId)(&own.real_id),
                                        SYMBOL_ncclGetUniqueId) == ncclSuccess;
        status = tutti_exchanger_all_gather(ranks, &own, sizeof own, all, 0);
    }
    if (status == TUTTI_OK)
        exchanger_end(ranks, DEADLINE_NEVER);
    return status;
}

ncclResult_t server_agree(const struct ncclComm *comm, const ncclUniqueId *id, enum symbol symbol,
                          bool *real, ncclUniqueId *real_id)
{
    struct tutti_exchanger ranks = {
        .struct_size = sizeof ranks, .prefix = "server", .rank = comm->rank, .size = comm->ranks};
    struct told *all = malloc((size_t)comm->ranks * sizeof *all);
    struct tutti_unique_id own;
    ncclResult_t result = ncclSuccess;
    if (!all)
        return fail(ncclSystemError, symbol, "no memory");
    memcpy(&own, id, sizeof own);
    enum tutti_status status = unique_id_store(&own, &ranks.store);
    if (status == TUTTI_OK)
        status = ranks_tell(&ranks, real, all);
    if (status != TUTTI_OK)
        result = fail(result_of(status), symbol,
                      "%s. If the ranks run on several hosts: NCCL_SOCKET_IFNAME names the "
                      "interface by which they reach each other; or set TUTTI_DISABLE=1 on all "
                      "ranks, and NVIDIA's library serves them",
                      tutti_last_error());
    for (int r = 0; r < comm->ranks && *real && result == ncclSuccess; r++)
        if (!all[r].has_library)
            result = fail(ncclInvalidUsage, symbol,
                          "a communicator of several hosts, or of %d ranks, needs NVIDIA's "
                          "library, which rank %d does not have: name it in TUTTI_NCCL_LIBRARY",
                          comm->ranks, r);
    if (result == ncclSuccess)
        *real_id = all[0].real_id;
    tutti_store_close(ranks.store);
    free(all);
    return result;
}
