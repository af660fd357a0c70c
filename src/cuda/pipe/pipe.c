/* SPDX-License-Identifier: MIT */
#include "cuda/pipe/pipe.h"

#include "coll/request.h"

enum {
    PLACE_ALIGNMENT = 256,
    PITCH_MOST = INT32_MAX, /* bytes: CU_DEVICE_ATTRIBUTE_MAX_PITCH of every device */
};

/* ---- pieces ---------------------------------------------------------------------------------- */

static bool is_many(const struct coll *coll, enum cuda_operand operand)
{
    return operand == CUDA_SEND ? coll->send_all : coll->recv_all;
}

static bool has_own_places(const struct coll *coll)
{
    return coll->varies && coll->send_all && coll->recv_all;
}

int cuda_cut_places(const struct coll *coll, int size)
{
    return coll->send_all || coll->recv_all ? size << has_own_places(coll) : 1;
}

void cuda_cut_set(struct cuda_cut *cut, size_t longest)
{
    cut->piece = cut->width ? cut->place_bytes / cut->width : 0; /* a barrier has no elements */
    cut->pieces = longest ? (longest + cut->piece - 1) / cut->piece : 1;
}

/* Returns the elements of the longest block. */
static size_t operand_read(const struct request *request, const struct cuda_cut *cut,
                           enum cuda_operand operand, struct cuda_blocks *blocks)
{
    const struct coll *coll = cut->coll;
    const bool many = is_many(coll, operand), varies = coll->varies && many;
    const struct coll_blocks *given =
        operand == CUDA_SEND ? &request->send_blocks : &request->recv_blocks;
    const enum coll_use use = operand == CUDA_SEND ? coll->send : coll->recv;
    size_t longest = 0, next = 0;
    blocks->blocks[operand] = !coll_has(use, cut->rank, request->peer) ? 0 : many ? cut->size : 1;
    for (int b = 0; b < blocks->blocks[operand]; b++) {
        const size_t count = varies ? coll_block_count(given, b) : request->count;
        blocks->counts[operand][b] = count;
        blocks->starts[operand][b] =
            varies ? coll_block_start(given, b, &next) : (size_t)b * request->count;
        longest = count > longest ? count : longest;
    }
    return longest;
}

void cuda_cut_make(const struct request *request, int rank, int size, size_t slot_bytes,
                   struct cuda_cut *cut, struct cuda_blocks *blocks)
{
    const struct coll *coll = &coll_rows[request->collective];
    *cut = (struct cuda_cut){
        .coll = coll,
        .rank = rank,
        .size = size,
        .own = request->count,
        .width = coll->varies ? request->bytes : request->element_bytes,
        .place_bytes =
            slot_bytes / (size_t)cuda_cut_places(coll, size) / PLACE_ALIGNMENT * PLACE_ALIGNMENT,
    };
    const size_t sent = operand_read(request, cut, CUDA_SEND, blocks);
    const size_t received = operand_read(request, cut, CUDA_RECV, blocks);
    cuda_cut_set(cut, sent > received ? sent : received);
}

size_t cuda_cut_count(const struct cuda_cut *cut, size_t count, uint64_t piece)
{
    const size_t first = piece * cut->piece, left = count > first ? count - first : 0;
    return left < cut->piece ? left : cut->piece;
}

/* Blocks for the ranks are one operand of the hosts: without gaps, except in a v-form. */
size_t cuda_cut_stride(const struct cuda_cut *cut, uint64_t piece)
{
    const bool compact = !cut->coll->varies && (cut->coll->send_all || cut->coll->recv_all);
    return compact ? cuda_cut_count(cut, cut->own, piece) * cut->width : cut->place_bytes;
}

size_t cuda_cut_place(const struct cuda_cut *cut, enum cuda_operand operand, int block,
                      uint64_t piece)
{
    const struct coll *coll = cut->coll;
    int place = block;
    if (has_own_places(coll))
        place += operand == CUDA_RECV ? cut->size : 0;
    else if (!is_many(coll, operand) && (coll->send_all || coll->recv_all))
        place = cut->rank;
    return (size_t)place * cuda_cut_stride(cut, piece);
}

bool cuda_cut_is_rows(const struct cuda_cut *cut, int blocks, uint64_t piece)
{
    return blocks > 1 && !cut->coll->varies && cuda_cut_stride(cut, piece) &&
           cut->own * cut->width <= PITCH_MOST;
}

void cuda_cut_request(const struct cuda_cut *cut, const struct cuda_blocks *blocks,
                      const struct request *whole, uint64_t piece, unsigned char *slot,
                      struct cuda_blocks *part, struct request *request)
{
    *request = *whole;
    request->send = slot + cuda_cut_place(cut, CUDA_SEND, 0, piece);
    request->recv = slot + cuda_cut_place(cut, CUDA_RECV, 0, piece);
    request->count = cuda_cut_count(cut, cut->own, piece);
    if (!cut->coll->varies) {
        request->bytes = request->count * cut->width;
        return;
    }
    for (enum cuda_operand o = CUDA_SEND; o < CUDA_OPERANDS; o++)
        for (int b = 0; b < blocks->blocks[o]; b++) {
            part->counts[o][b] = cuda_cut_count(cut, blocks->counts[o][b], piece);
            part->starts[o][b] = (size_t)b * cut->place_bytes / cut->width;
        }
    request->send_blocks = (struct coll_blocks){.counts = part->counts[CUDA_SEND],
                                                .displacements = part->starts[CUDA_SEND]};
    request->recv_blocks = (struct coll_blocks){.counts = part->counts[CUDA_RECV],
                                                .displacements = part->starts[CUDA_RECV]};
}

/* ---- how pieces pass through the slots ------------------------------------------------------- */

static enum tutti_status in(const struct cuda_pipe *pipe, uint64_t piece)
{
    return piece < pipe->pieces ? pipe->in(pipe->context, piece) : TUTTI_OK;
}

enum tutti_status cuda_pipe_run(const struct cuda_pipe *pipe)
{
    const uint64_t lag = pipe->lag;
    enum tutti_status status = TUTTI_OK;
    for (uint64_t p = 0; p < pipe->slots && status == TUTTI_OK; p++)
        status = in(pipe, p);
    for (uint64_t p = 0; p < pipe->pieces && status == TUTTI_OK; p++) {
        const uint64_t next = p < lag ? pipe->pieces : p - lag + pipe->slots;
        status = pipe->run(pipe->context, p);
        if (status == TUTTI_OK && lag) /* first, since it is waited for sooner */
            status = in(pipe, next);
        if (status == TUTTI_OK)
            status = pipe->out(pipe->context, p);
        if (status == TUTTI_OK && !lag) /* into the slot of the copy out */
            status = in(pipe, next);
    }
    return status;
}
