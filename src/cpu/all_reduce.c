/* SPDX-License-Identifier: MIT */
#include "cpu/all_reduce.h"

#include "cpu/copy.h"
#include "cpu/distance.h"
#include "cpu/wait.h"

static enum tutti_status mail_all_reduce(struct cpu_group *group, const struct request *request)
{
    enum tutti_status status = one_shot_mail(group, request);
    if (status != TUTTI_OK || request->bytes < COPY_FAR_BYTES)
        return status;
    return distance_update(group, request);
}

/* The operation has announced itself. */
static enum tutti_status by_reach(struct cpu_group *group, const struct request *request)
{
    enum tutti_status status = distance_update(group, request);
    if (request->operands.send_id != LAYOUT_PRIVATE && status == TUTTI_OK) {
        bool done;
        status = direct_all_reduce(group, request, &done);
        if (done)
            return status;
    }
    if (status != TUTTI_OK)
        return status;
    return request->algo == TUTTI_ALGO_ONE_SHOT ? one_shot_pieces(group, request)
                                                : two_shot_pieces(group, request);
}

enum tutti_status cpu_all_reduce(struct cpu_group *group, const struct request *request)
{
    struct layout_mail *mail = &group->own->mails[group->sequence % LAYOUT_MAILS];
    if (request->algo == TUTTI_ALGO_ONE_SHOT && request->bytes <= LAYOUT_BODY_BYTES)
        return mail_all_reduce(group, request);

    mail->u.operands = request->operands;
    wait_publish(group, &mail->header, (uint32_t)group->sequence, request);
    enum tutti_status status = by_reach(group, request);
    if (status != TUTTI_OK && request->operands.send_id == LAYOUT_THIS_PROCESS)
        direct_leave_failed(group);
    return status;
}
