/* SPDX-License-Identifier: MIT */
#include "cpu/all_reduce.h"

#include "cpu/wait.h"

enum tutti_status cpu_all_reduce(struct cpu_group *group, enum tutti_algo algo,
                                 const struct request *request)
{
    struct layout_mail *mail = &group->own->mails[group->sequence % LAYOUT_MAILS];
    if (algo == TUTTI_ALGO_ONE_SHOT && request->bytes <= sizeof mail->u.payload)
        return one_shot_mail(group, request);

    mail->u.operands = request->operands;
    wait_publish(group, &mail->header, (uint32_t)group->sequence, request);
    if (request->operands.id) {
        bool done;
        enum tutti_status status = direct_all_reduce(group, request, &done);
        if (done || status != TUTTI_OK)
            return status;
    }
    return algo == TUTTI_ALGO_ONE_SHOT ? one_shot_pieces(group, request)
                                       : two_shot_pieces(group, request);
}
