/* SPDX-License-Identifier: MIT */
/*
 * Calls whose ranks write into the peers' recv, which lies in symmetric memory at the same offset
 * on all ranks: TUTTI_CALL_SYMMETRIC by a kernel (kernels/copy_symmetric.cu),
 * TUTTI_CALL_COPY_ENGINE by copy engines (engines.h).
 */
#ifndef TUTTI_CUDA_COMM_PUSH_H
#define TUTTI_CUDA_COMM_PUSH_H

#include "cuda/kernels/push.h"
#include "tutti/tutti.h"

struct choice_call;
struct cuda_group;
struct request;

enum { CUDA_PUSH_FLAGS = TUTTI_CALL_COPY_ENGINE | TUTTI_CALL_SYMMETRIC };

/* Returns DECLINED, with a message, if the ranks' devices do not allow it. */
enum tutti_status cuda_push_choose(const struct cuda_group *group, const struct choice_call *call);
/* Finds recv at the peers, lists the copies, and adds algorithm and place of recv to the request's
 * signature. Returns INVALID. */
enum tutti_status cuda_push_prepare(const struct cuda_group *group, struct request *request,
                                    struct cuda_copies *copies);

#endif
