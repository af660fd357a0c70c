/* SPDX-License-Identifier: MIT */
/* What all all-reduces that are longer than a small message have in common. */
#include "cpu/algo/all_reduce.h"

#include "cpu/transport/distance.h"
#include "cpu/transport/wait.h"

static enum tutti_status run(struct cpu_group *group, const struct request *request)
{
    enum tutti_status status = distance_update(group, request);
    if (request->operands.send_id != LAYOUT_PRIVATE && status == TUTTI_OK) {
        bool done;
        status = direct_all_reduce(group, request, &done);
        if (done)
            return status;
    }
    return status == TUTTI_OK ? request->choice.transport->copies(group, request) : status;
}

enum tutti_status cpu_run_announced(void *opaque, struct request *request, tutti_stream_t stream)
{
    struct cpu_group *group = opaque;
    enum tutti_status status = operation_begin(group);
    (void)stream;
    if (status != TUTTI_OK)
        return status;
    const uint32_t sequence = (uint32_t)group->op.sequence;
    request_started(request, group->op.sequence, RECORD_CALL, RECORD_RUNNING);
    group->own->small_messages[sequence % LAYOUT_SMALL_MESSAGES].u.operands = request->operands;
    wait_publish(group, announcement_place(group, group->rank, sequence), sequence,
                 request); /* M1 */
    const uint64_t environment = reduce_env_begin();
    status = run(group, request);
    reduce_env_end(environment);
    if (status != TUTTI_OK && request->operands.send_id == LAYOUT_THIS_PROCESS)
        direct_leave_failed(group);
    return status;
}
