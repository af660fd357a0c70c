/* SPDX-License-Identifier: MIT */
/* group.h, symm.h and stage.h of a library that was built without CUDA. Whoever asks for a device
 * is told so; the rest cannot be reached. */
#include "cuda/group.h"
#include "cuda/stage.h"
#include "cuda/symm.h"

#include "error.h"

static enum tutti_status decline(void)
{
    return error_set(TUTTI_ERR_DECLINED,
                     "this library was built without CUDA: " TUTTI_CUDA_WHY_TEXT);
}

enum tutti_status cuda_device_current(struct cuda_device *device)
{
    *device = (struct cuda_device){0};
    return decline();
}

void cuda_links(const struct cuda_device *devices, int size, int rank, int16_t *links,
                const char **source)
{
    (void)devices;
    (void)rank;
    *source = "";
    for (int r = 0; r < size; r++)
        links[r] = TOPOLOGY_UNKNOWN_LINKS;
}

enum tutti_status cuda_group_open(const struct cuda_group_config *config, struct cuda_group **group)
{
    (void)config;
    *group = NULL;
    return decline();
}

void cuda_group_close(struct cuda_group *group, struct tutti_fault *fault)
{
    (void)group;
    (void)fault;
}

enum tutti_status cuda_group_retire(struct cuda_group *group, uint64_t *completed)
{
    (void)group;
    *completed = 0;
    return decline();
}

void cuda_group_bury(struct cuda_group *group)
{
    (void)group;
}

void cuda_group_forget(struct cuda_group *group)
{
    (void)group;
}

enum tutti_status cuda_group_enter(struct cuda_group *group, bool *pushed)
{
    (void)group;
    *pushed = false;
    return decline();
}

void cuda_group_leave(struct cuda_group *group, bool pushed)
{
    (void)group;
    (void)pushed;
}

int cuda_group_device(const struct cuda_group *group)
{
    (void)group;
    return -1;
}

enum tutti_status cuda_all_reduce(struct cuda_group *group, struct request *request,
                                  tutti_stream_t stream)
{
    (void)group;
    (void)request;
    (void)stream;
    return decline();
}

enum tutti_status cuda_barrier(struct cuda_group *group, uint64_t subset,
                               const struct request *request, tutti_stream_t stream)
{
    (void)group;
    (void)subset;
    (void)request;
    (void)stream;
    return decline();
}

uint64_t cuda_group_sequence(const struct cuda_group *group)
{
    (void)group;
    return 0;
}

bool cuda_group_is_staged(const struct cuda_group *group)
{
    (void)group;
    return false;
}

enum tutti_status cuda_algorithm(const struct cuda_group *group, enum tutti_algo asked,
                                 enum tutti_dtype dtype, size_t bytes, enum tutti_algo *algo,
                                 const char **reason)
{
    (void)group;
    (void)asked;
    (void)dtype;
    (void)bytes;
    (void)algo;
    (void)reason;
    return decline();
}

enum tutti_status cuda_group_status(struct cuda_group *group, struct tutti_fault *fault)
{
    (void)group;
    (void)fault;
    return decline();
}

enum tutti_status cuda_work_create(struct cuda_group *group, struct cuda_work **work)
{
    (void)group;
    *work = NULL;
    return decline();
}

enum tutti_status cuda_work_record(struct cuda_group *group, struct cuda_work *work,
                                   tutti_stream_t stream)
{
    (void)group;
    (void)work;
    (void)stream;
    return decline();
}

enum tutti_status cuda_work_test(const struct cuda_work *work, bool *done)
{
    (void)work;
    *done = false;
    return decline();
}

enum tutti_status cuda_work_wait(const struct cuda_work *work, tutti_stream_t stream)
{
    (void)work;
    (void)stream;
    return decline();
}

void cuda_work_destroy(struct cuda_work *work)
{
    (void)work;
}

void cuda_work_forget(struct cuda_work *work)
{
    (void)work;
}

int cuda_group_describe(const struct cuda_group *group, char *text, size_t size)
{
    (void)group;
    (void)text;
    (void)size;
    return 0;
}

enum tutti_status cuda_symm_create(const struct cuda_symm_config *config,
                                   struct cuda_device *device, struct cuda_symm **symm, void **base,
                                   int *fd)
{
    (void)config;
    (void)base;
    *device = (struct cuda_device){0};
    *symm = NULL;
    *fd = -1;
    return decline();
}

enum tutti_status cuda_symm_join(struct cuda_symm *symm, const int *fds, int64_t deadline,
                                 struct cuda_symm_places *places)
{
    (void)symm;
    (void)fds;
    (void)deadline;
    (void)places;
    return decline();
}

enum tutti_status cuda_symm_enqueue(struct cuda_symm *symm, enum cuda_symm_call call, int peer,
                                    int channel, int64_t timeout_ms, tutti_stream_t stream)
{
    (void)symm;
    (void)call;
    (void)peer;
    (void)channel;
    (void)timeout_ms;
    (void)stream;
    return decline();
}

bool cuda_symm_failed(const struct cuda_symm *symm, struct cuda_symm_fault *fault)
{
    (void)symm;
    (void)fault;
    return false;
}

void cuda_symm_destroy(struct cuda_symm *symm)
{
    (void)symm;
}

enum tutti_status cuda_symm_watch_open(struct channel *channel, uint64_t peers,
                                       struct cuda_symm_watch **watch)
{
    (void)channel;
    (void)peers;
    *watch = NULL;
    return decline();
}

void cuda_symm_watch_add(struct cuda_symm_watch *watch, struct cuda_symm *symm)
{
    (void)watch;
    (void)symm;
}

void cuda_symm_watch_close(struct cuda_symm_watch *watch)
{
    (void)watch;
}

/* There is a stage, without anything in it: its first call is a check. */
enum tutti_status cuda_stage_create(struct cuda_stage **stage)
{
    *stage = NULL;
    return TUTTI_OK;
}

void cuda_stage_close(struct cuda_stage *stage)
{
    (void)stage;
}

void cuda_stage_forget(struct cuda_stage *stage)
{
    (void)stage;
}

void cuda_stage_trim(int most)
{
    (void)most;
}

enum tutti_status cuda_stage_check(struct cuda_stage *stage, int device, const void *pointer,
                                   size_t bytes)
{
    (void)stage;
    (void)device;
    (void)pointer;
    (void)bytes;
    return decline();
}

enum tutti_status cuda_result_take(struct cuda_stage *stage, int device, size_t bytes,
                                   struct cuda_result **result)
{
    (void)stage;
    (void)device;
    (void)bytes;
    *result = NULL;
    return decline();
}

void cuda_result_give(struct cuda_stage *stage, struct cuda_result *result)
{
    (void)stage;
    (void)result;
}

enum tutti_status cuda_ticket_take(struct cuda_stage *stage, const int *devices, int count,
                                   tutti_stream_t stream, struct cuda_ticket **ticket)
{
    (void)stage;
    (void)devices;
    (void)count;
    (void)stream;
    *ticket = NULL;
    return decline();
}

bool cuda_ticket_come(struct cuda_ticket *ticket)
{
    (void)ticket;
    return false;
}

enum tutti_status cuda_ticket_wait(struct cuda_ticket *ticket, tutti_stream_t stream,
                                   const struct cuda_patience *patience, bool *full)
{
    (void)ticket;
    (void)stream;
    (void)patience;
    *full = false;
    return decline();
}

bool cuda_ticket_forsaken(const struct cuda_ticket *ticket)
{
    (void)ticket;
    return false;
}

void cuda_stage_call_begin(const struct cuda_stage *stage)
{
    (void)stage;
}

void cuda_stage_call_end(const struct cuda_stage *stage)
{
    (void)stage;
}

void cuda_ticket_open(struct cuda_ticket *ticket)
{
    (void)ticket;
}

void cuda_ticket_give(struct cuda_ticket *ticket)
{
    (void)ticket;
}

enum tutti_status cuda_block_take(struct cuda_stage *stage, size_t bytes, struct cuda_block **block)
{
    (void)stage;
    (void)bytes;
    *block = NULL;
    return decline();
}

enum tutti_status cuda_block_take_shared(struct cuda_stage *stage, size_t bytes,
                                         struct cuda_block **block)
{
    return cuda_block_take(stage, bytes, block);
}

void cuda_block_give(struct cuda_stage *stage, struct cuda_block *block)
{
    (void)stage;
    (void)block;
}

void cuda_block_lose(struct cuda_stage *stage, struct cuda_block *block)
{
    (void)stage;
    (void)block;
}

enum tutti_status cuda_stage_copy(struct cuda_stage *stage, int device, enum cuda_way way, void *to,
                                  const void *from, size_t bytes)
{
    (void)stage;
    (void)device;
    (void)way;
    (void)to;
    (void)from;
    (void)bytes;
    return decline();
}

enum tutti_status cuda_stage_open(struct cuda_stage *stage, int device)
{
    (void)stage;
    (void)device;
    return decline();
}

void cuda_stage_open_current(struct cuda_stage *stage)
{
    (void)stage;
}

tutti_stream_t cuda_stage_stream(const struct cuda_stage *stage, int device, enum cuda_way way)
{
    (void)stage;
    (void)device;
    (void)way;
    return TUTTI_STREAM_DEFAULT;
}

enum tutti_status cuda_stage_mark(struct cuda_stage *stage, int device, enum cuda_way way,
                                  uint64_t *mark)
{
    (void)stage;
    (void)device;
    (void)way;
    *mark = 0;
    return decline();
}

bool cuda_stage_passed(const struct cuda_stage *stage, int device, enum cuda_way way, uint64_t mark)
{
    (void)stage;
    (void)device;
    (void)way;
    (void)mark;
    return true;
}
