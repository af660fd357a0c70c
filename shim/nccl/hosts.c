/* SPDX-License-Identifier: MIT */
/*
 * The ranks of an id, on one host or several. The id names a store of the process that made it; its
 * ranks of other hosts reach the store at an address of that host. Each rank tells rank 0 its host,
 * and rank 0 answers all of them. If the hosts differ, each rank tells whether it has NVIDIA's
 * library, and rank 0 answers with that library's id. So all ranks decide alike. A rank that cannot
 * reach the store fails at once, and the others when their time is over.
 */
#include "create.h"

#include "comm/unique_id.h"
#include "ipc/process.h"
#include "real.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <stdio.h>
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
        return fail(ncclInvalidArgument, "ncclGetUniqueId: the id is NULL");
    if (real_serves_all())
        return real_library() ? fail_real(REAL(ncclGetUniqueId)(id), "ncclGetUniqueId")
                              : real_absent(SYMBOL_ncclGetUniqueId);
    const ncclResult_t result =
        fail_status(unique_id_make(address_of_host(), &made), "ncclGetUniqueId");
    memcpy(id, &made, sizeof *id);
    return result;
}

/* ---- the meeting ----------------------------------------------------------------------------- */

/* Each rank says a number to rank 0, which tells all of them whether these are equal. */
static enum tutti_status compare(const struct meeting *meeting, const char *round, uint64_t own,
                                 bool *equal)
{
    const struct ncclComm *comm = meeting->comm;
    uint8_t same = 1;
    uint64_t other;
    size_t size;
    char key[32];
    snprintf(key, sizeof key, "%s/%d", round, comm->rank);
    enum tutti_status status = tutti_store_set(meeting->store, key, &own, sizeof own);
    for (int r = 1; comm->rank == 0 && r < comm->ranks && status == TUTTI_OK; r++) {
        snprintf(key, sizeof key, "%s/%d", round, r);
        status = tutti_store_get(meeting->store, key, 0, &other, sizeof other, &size);
        same &= status == TUTTI_OK && other == own;
    }
    if (status == TUTTI_OK)
        status = comm->rank == 0
                     ? tutti_store_set(meeting->store, round, &same, sizeof same)
                     : tutti_store_get(meeting->store, round, 0, &same, sizeof same, &size);
    *equal = same;
    return status;
}

/* NVIDIA's library on all ranks, and its id, which rank 0 makes. */
static ncclResult_t agree_real(struct meeting *meeting, const char *name)
{
    ncclUniqueId *id = &meeting->real_id;
    const bool first = meeting->comm->rank == 0;
    bool has = real_library(), all_same;
    size_t size;
    if (has && first)
        has = fail_real(REAL(ncclGetUniqueId)(id), name) == ncclSuccess;
    enum tutti_status status = compare(meeting, "library", has, &all_same);
    if (status == TUTTI_OK && !(has && all_same))
        return fail(ncclInvalidUsage,
                    "%s: %s needs NVIDIA's library, and not every rank has it: name it in "
                    "TUTTI_NCCL_LIBRARY",
                    name,
                    meeting->several ? "a communicator of several hosts"
                                     : "a communicator of so many ranks");
    if (status == TUTTI_OK)
        status = first ? tutti_store_set(meeting->store, "id", id, sizeof *id)
                       : tutti_store_get(meeting->store, "id", 0, id, sizeof *id, &size);
    return fail_status(status, name);
}

ncclResult_t meeting_open(struct meeting *meeting, ncclComm_t comm, const ncclUniqueId *id,
                          bool real, const char *name)
{
    struct tutti_unique_id own;
    struct process self;
    bool same = true;
    memcpy(&own, id, sizeof own);
    process_identify(&self);
    *meeting = (struct meeting){.comm = comm, .real = real};
    enum tutti_status status = unique_id_store(&own, &meeting->store);
    if (status == TUTTI_OK)
        status = compare(meeting, "host", self.host, &same);
    meeting->several = !same;
    if (status != TUTTI_OK)
        return fail(result_of(status, ""),
                    "%s: %s. If the ranks run on several hosts: NCCL_SOCKET_IFNAME names the "
                    "interface by which they reach each other; or set TUTTI_DISABLE=1 on all "
                    "ranks, and NVIDIA's library serves them",
                    name, tutti_last_error());
    meeting->real |= meeting->several;
    return meeting->real ? agree_real(meeting, name) : ncclSuccess;
}

/* The last rank to have its communicator deletes the keys: all ranks have read them. */
void meeting_close(struct meeting *meeting, bool met)
{
    static const char *const rounds[] = {"host", "library"};
    const struct ncclComm *comm = meeting->comm;
    int64_t count = 0;
    char key[32];
    if (met && meeting->store)
        (void)tutti_store_add(meeting->store, "met", 1, &count);
    for (int i = 0; count == comm->ranks && i < (meeting->real ? 2 : 1); i++) {
        for (int r = 0; r < comm->ranks; r++) {
            snprintf(key, sizeof key, "%s/%d", rounds[i], r);
            (void)tutti_store_delete(meeting->store, key, NULL);
        }
        (void)tutti_store_delete(meeting->store, rounds[i], NULL);
    }
    if (count == comm->ranks) {
        if (meeting->real)
            (void)tutti_store_delete(meeting->store, "id", NULL);
        (void)tutti_store_delete(meeting->store, "met", NULL);
    }
    tutti_store_close(meeting->store);
}
