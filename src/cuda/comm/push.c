/* SPDX-License-Identifier: MIT */
#include "cuda/comm/push.h"

#include "base/error.h"
#include "base/signature.h"
#include "coll/region.h"
#include "coll/request.h"
#include "cuda/comm/group_internal.h"

/* After TUTTI_CALL_. */
static const char *flag_name(bool by_engines)
{
    return by_engines ? "COPY_ENGINE" : "SYMMETRIC";
}

static const char *flag_of(const struct request *request)
{
    return flag_name(request->choice.algo == TUTTI_ALGO_COPY_ENGINE);
}

enum tutti_status cuda_push_choose(const struct cuda_group *group, const struct choice_call *call)
{
    const char *name = coll_rows[call->collective].call,
               *flag = flag_name(call->flags & TUTTI_CALL_COPY_ENGINE);
    if (group->on_host || group->proxied || group->fabric)
        return error_set(
            TUTTI_ERR_DECLINED,
            "%s: TUTTI_CALL_%s: the ranks' data goes through the host's memory (%s): leave the "
            "flag out",
            name, flag, group->why);
    if (!group->rules->paths.all)
        return error_set(
            TUTTI_ERR_DECLINED,
            "%s: TUTTI_CALL_%s: some two ranks' devices are not linked: leave the flag out", name,
            flag);
    return TUTTI_OK;
}

/* The peers write to recv at the offset that it has here, so each rank must have all of it there,
 * also one that receives nothing. */
static const struct region *recv_region(const struct cuda_group *group,
                                        const struct request *request)
{
    const size_t blocks = request->recv_all ? (size_t)group->launch.size : 1;
    const struct region *region = region_find_device_memory(request->recv, request->bytes * blocks);
    return region && region->symm_group && region->ordinal == group->device.ordinal &&
                   region->rank == group->launch.rank && region->world_size == group->launch.size
               ? region
               : NULL;
}

static enum tutti_status recv_refuse(const struct cuda_group *group, const struct request *request)
{
    const struct coll *coll = &coll_rows[request->collective];
    return error_set(
        TUTTI_ERR_INVALID,
        "%s: TUTTI_CALL_%s: recv %p of %zu bytes is not in symmetric memory of the %d ranks of "
        "this communicator on device %d: take it from tutti_symm_alloc(), after "
        "tutti_symm_rendezvous(), on all ranks%s, or leave the flag out",
        coll->call, flag_of(request), request->recv,
        request->bytes * (request->recv_all ? (size_t)group->launch.size : 1), group->launch.size,
        group->device.ordinal,
        coll->recv == COLL_OF_ROOT ? ", those that are not the root too" : "");
}

/* A rank begins with the next rank's block, so that the ranks do not all write to one device. An
 * own block that is already where it belongs is not copied. */
static void copies_list(const struct cuda_group *group, const struct request *request,
                        const struct region *region, struct cuda_copies *copies)
{
    const struct coll *coll = &coll_rows[request->collective];
    const int rank = group->launch.rank, size = group->launch.size, root = request->peer;
    const size_t offset = (uintptr_t)request->recv - (uintptr_t)region->base +
                          (coll->recv_all ? (size_t)rank * request->bytes : 0);
    copies->bytes = request->bytes;
    for (int i = 1; i <= size && coll_has(coll->send, rank, root); i++) {
        const int to = (rank + i) % size;
        const struct cuda_copy copy = {cuda_address(region->buffers[to]) + offset,
                                       cuda_address(request_sent(request, to))};
        if (coll_has(coll->recv, to, root) && copy.to != copy.from)
            copies->copies[copies->count++] = copy;
    }
}

enum tutti_status cuda_push_prepare(const struct cuda_group *group, struct request *request,
                                    struct cuda_copies *copies)
{
    const struct region *region = NULL;
    uint64_t place = 0;
    copies->count = 0;
    if (request->bytes) {
        region = recv_region(group, request);
        if (!region)
            return recv_refuse(group, request);
        place = region->id ^ ((uintptr_t)request->recv - (uintptr_t)region->base);
        copies_list(group, request, region, copies);
    }
    if (request->bytes && request->send_all && request->recv_all && request->send == request->recv)
        return error_set(
            TUTTI_ERR_INVALID,
            "%s: TUTTI_CALL_%s: in place the peers would overwrite blocks that are not sent yet: "
            "pass disjoint operands, or leave the flag out",
            coll_rows[request->collective].call, flag_of(request));
    request->signature = signature_set_algo(request->signature, request->choice.algo);
    request->parameter = coll_is_rooted(request->collective)
                             ? signature_root(signature_hash(place), request->peer)
                             : signature_hash(place);
    return TUTTI_OK;
}
