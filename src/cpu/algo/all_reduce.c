/* SPDX-License-Identifier: MIT */
#include "cpu/algo/all_reduce.h"

#include "cpu/transport/distance.h"
#include "cpu/transport/wait.h"

static enum tutti_status by_copies(struct cpu_group *group, const struct request *request)
{
    return request->algo == TUTTI_ALGO_ONE_SHOT ? one_shot_pieces(group, request)
                                                : two_shot_pieces(group, request);
}

/* The operation has announced itself. */
static enum tutti_status run_fully_connected(struct cpu_group *group, const struct request *request)
{
    enum tutti_status status = distance_update(group, request);
    if (request->operands.send_id != LAYOUT_PRIVATE && status == TUTTI_OK) {
        bool done;
        status = direct_all_reduce(group, request, &done);
        if (done)
            return status;
    }
    return status == TUTTI_OK ? by_copies(group, request) : status;
}

static enum tutti_status run_mesh(struct cpu_group *group, const struct request *request)
{
    uint32_t sequence = (uint32_t)group->sequence;
    wait_publish(group, wait_announcement(group, group->rank, sequence), sequence,
                 request); /* M1 */
    enum tutti_status status = distance_update(group, request);
    if (status != TUTTI_OK)
        return status;
    return mesh_pieces(group, request);
}

/* Each takes steps of its own, and a step's flags name the operation: the mails are not needed. */
enum tutti_status cpu_all_reduce_more(struct cpu_group *group, const struct request *request)
{
    return by_copies(group, request);
}

void cpu_all_reduce_begin(struct cpu_group *group, const struct request *request)
{
    if (request->algo == TUTTI_ALGO_ONE_SHOT && request->count)
        one_shot_begin(group, request);
}

enum tutti_status cpu_all_reduce(struct cpu_group *group, const struct request *request)
{
    struct layout_mail *mail = &group->own->mails[group->sequence % LAYOUT_MAILS];
    if (request->algo == TUTTI_ALGO_ONE_SHOT && request->bytes <= LAYOUT_BODY_BYTES)
        return one_shot_mail(group, request);
    if (request->algo == TUTTI_ALGO_HYBRID_CUBE_MESH)
        return run_mesh(group, request);

    mail->u.operands = request->operands;
    wait_publish(group, &mail->header, (uint32_t)group->sequence, request);
    enum tutti_status status = run_fully_connected(group, request);
    if (status != TUTTI_OK && request->operands.send_id == LAYOUT_THIS_PROCESS)
        direct_leave_failed(group);
    return status;
}
