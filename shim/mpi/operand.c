/* SPDX-License-Identifier: MIT */
#include "operand.h"

#include "base/log.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

void fail(struct serving *serving, const char *why)
{
    if (serving->code != 0)
        return;
    log_write(TUTTI_LOG_WARN, serving->comm->rank, "%s: %s",
              function_names[serving->call->function], why);
    serving->code = serving->real->abi.other;
    serving->real->Comm_call_errhandler(serving->call->comm, serving->code);
}

void *operand_buffer(struct serving *serving, size_t bytes)
{
    void *made = malloc(bytes ? bytes : 1);
    if (made)
        serving->buffers[serving->used++] = made;
    else
        fail(serving, "no memory for a copy of an operand");
    return made;
}

struct type operand_type(struct serving *serving, uintptr_t handle)
{
    struct type type = no_type;
    if (!type_find(serving->real, handle, &type))
        fail(serving, "MPI does not know a type");
    else if (type.bytes > INT_MAX)
        fail(serving, "an element of a derived type has more than 2 GiB");
    return type;
}

/* ---- one operand ----------------------------------------------------------------------------- */

/* Packs elements to `bytes`, which has room for them, or with `back` unpacks them from there. MPI
 * counts the bytes of a packed buffer in ints, so it does so in pieces. */
static void convert(struct serving *serving, const char *from, int64_t count,
                    const struct type *type, char *bytes, bool back)
{
    const struct real *real = serving->real;
    char *operand = (char *)(uintptr_t)from;
    const int64_t most = type->bytes ? INT_MAX / (int64_t)type->bytes : INT_MAX;
    if (type->is_plain && count > 0 && serving->code == 0) {
        memcpy(back ? operand : bytes, back ? bytes : operand, (size_t)count * type->bytes);
        return;
    }
    while (count > 0 && serving->code == 0) {
        const int piece = (int)(count < most ? count : most), room = piece * (int)type->bytes;
        int position = 0;
        serving->code = back ? real->Unpack(bytes, room, &position, operand, piece, type->handle,
                                            serving->call->comm)
                             : real->Pack(operand, piece, type->handle, bytes, room, &position,
                                          serving->call->comm);
        operand += piece * type->extent;
        bytes += room;
        count -= piece;
    }
}

static bool is_apart(const char *from, size_t bytes, const struct blocks *written)
{
    return from >= written->base + written->end || from + bytes <= written->base;
}

char *operand_input(struct serving *serving, const struct side *side, const struct type *type,
                    const struct blocks *written)
{
    const size_t bytes = (size_t)side->count * type->bytes;
    char *operand = (char *)(uintptr_t)side->buffer;
    if (type->is_plain && (!written || is_apart(operand, bytes, written)))
        return operand;
    char *copy = operand_buffer(serving, bytes);
    convert(serving, operand, side->count, type, copy, false);
    return copy;
}

char *operand_output(struct serving *serving, const struct side *side, const struct type *type)
{
    return type->is_plain ? (char *)(uintptr_t)side->buffer
                          : operand_buffer(serving, (size_t)side->count * type->bytes);
}

void operand_finish(struct serving *serving, const struct side *side, const struct type *type,
                    char *bytes)
{
    if (!type->is_plain)
        convert(serving, side->buffer, side->count, type, bytes, true);
}

/* ---- a block for each rank ------------------------------------------------------------------- */

/* Blocks of plain elements, as they lie. Displacements may be negative: base is the first block. */
static void blocks_plain(const struct serving *serving, struct blocks *blocks,
                         const struct side *side, const struct type *type)
{
    const struct call *call = serving->call;
    int64_t least = INT64_MAX;
    for (int r = 0; r < serving->comm->size; r++) {
        blocks->counts[r] = (size_t)block_count(call, side, r) * type->bytes;
        if (blocks->counts[r] && block_displ(call, side, r) < least)
            least = block_displ(call, side, r);
    }
    least = least == INT64_MAX ? 0 : least;
    blocks->base = (char *)(uintptr_t)side->buffer + least * type->extent;
    blocks->end = 0;
    for (int r = 0; r < serving->comm->size; r++) {
        blocks->displs[r] =
            blocks->counts[r] ? (size_t)(block_displ(call, side, r) - least) * type->bytes : 0;
        if (blocks->displs[r] + blocks->counts[r] > blocks->end)
            blocks->end = blocks->displs[r] + blocks->counts[r];
    }
}

/* Blocks in a buffer, one behind the other. */
static void blocks_packed(struct serving *serving, struct blocks *blocks, const struct side *side,
                          const struct type *type)
{
    blocks->end = 0;
    for (int r = 0; r < serving->comm->size; r++) {
        blocks->counts[r] = (size_t)block_count(serving->call, side, r) * type->bytes;
        blocks->displs[r] = blocks->end;
        blocks->end += blocks->counts[r];
    }
    blocks->base = operand_buffer(serving, blocks->end);
}

static void block_convert(struct serving *serving, const struct blocks *blocks, int rank,
                          const struct side *side, const struct type *type, bool back)
{
    convert(
        serving, (const char *)side->buffer + block_displ(serving->call, side, rank) * type->extent,
        block_count(serving->call, side, rank), type, blocks->base + blocks->displs[rank], back);
}

void blocks_input(struct serving *serving, struct blocks *blocks, const struct side *side,
                  const struct type *type, const struct blocks *written)
{
    if (type->is_plain) {
        blocks_plain(serving, blocks, side, type);
        if (is_apart(blocks->base, blocks->end, written))
            return;
    }
    blocks_packed(serving, blocks, side, type);
    for (int r = 0; r < serving->comm->size; r++)
        block_convert(serving, blocks, r, side, type, false);
}

void blocks_output(struct serving *serving, struct blocks *blocks, const struct side *side,
                   const struct type *type)
{
    if (type->is_plain)
        blocks_plain(serving, blocks, side, type);
    else
        blocks_packed(serving, blocks, side, type);
}

void blocks_finish(struct serving *serving, const struct blocks *blocks, const struct side *side,
                   const struct type *type)
{
    for (int r = 0; r < serving->comm->size && !type->is_plain; r++)
        block_convert(serving, blocks, r, side, type, true);
}

char *blocks_own(struct serving *serving, const struct blocks *blocks, const struct side *side,
                 const struct type *type)
{
    const int rank = serving->comm->rank;
    if (!type->is_plain)
        block_convert(serving, blocks, rank, side, type, false);
    return blocks->base + blocks->displs[rank];
}
