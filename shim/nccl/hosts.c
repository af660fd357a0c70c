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
#include "base/error.h"
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

ncclResult_t real_agree(struct tutti_exchanger *ranks, enum symbol symbol, ncclUniqueId *id)
{
    struct told {
        uint64_t has_library;
        ncclUniqueId id;
    } own = {.has_library = real_library()}, *all = malloc((size_t)ranks->size * sizeof *all);
    if (!all)
        return fail(ncclSystemError, symbol, "no memory");
    if (own.has_library && ranks->rank == 0)
        own.has_library = fail_real(REAL(ncclGetUniqueId)(&own.id), symbol) == ncclSuccess;
    ncclResult_t result =
        fail_status(tutti_exchanger_all_gather(ranks, &own, sizeof own, all, 0), symbol);
    if (result == ncclSuccess && !real_library())
        result = real_absent(symbol);
    for (int r = 0; r < ranks->size && result == ncclSuccess; r++)
        if (!all[r].has_library)
            result = fail(ncclInvalidUsage, symbol,
                          "all ranks need NVIDIA's library, and rank %d has none: name it in "
                          "TUTTI_NCCL_LIBRARY there",
                          r);
    if (result == ncclSuccess)
        *id = all[0].id;
    free(all);
    return result;
}

/* True in *several if the ranks have several hosts. */
static enum tutti_status hosts_compare(struct tutti_exchanger *ranks, bool *several)
{
    struct process self;
    uint64_t *hosts = malloc((size_t)ranks->size * sizeof *hosts);
    if (!hosts)
        return error_errno("the hosts of %d ranks", ranks->size);
    process_identify(&self);
    const enum tutti_status status =
        tutti_exchanger_all_gather(ranks, &self.host, sizeof self.host, hosts, 0);
    for (int r = 0; r < ranks->size && status == TUTTI_OK; r++)
        *several |= hosts[r] != self.host;
    free(hosts);
    return status;
}

ncclResult_t server_agree(const struct ncclComm *comm, const ncclUniqueId *id, enum symbol symbol,
                          bool *real, ncclUniqueId *real_id)
{
    struct tutti_exchanger ranks = {
        .struct_size = sizeof ranks, .prefix = "server", .rank = comm->rank, .size = comm->ranks};
    struct tutti_unique_id own;
    ncclResult_t result = ncclSuccess;
    memcpy(&own, id, sizeof own);
    enum tutti_status status = unique_id_store(&own, &ranks.store);
    if (status == TUTTI_OK)
        status = hosts_compare(&ranks, real);
    if (status != TUTTI_OK)
        result = fail(result_of(status), symbol,
                      "%s. If the ranks run on several hosts: NCCL_SOCKET_IFNAME names the "
                      "interface by which they reach each other; or set TUTTI_DISABLE=1 on all "
                      "ranks, and NVIDIA's library serves them",
                      tutti_last_error());
    else if (*real)
        result = real_agree(&ranks, symbol, real_id);
    if (status == TUTTI_OK)
        exchanger_end(&ranks, DEADLINE_NEVER);
    tutti_store_close(ranks.store);
    return result;
}
