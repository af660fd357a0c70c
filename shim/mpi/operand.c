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

static bool is_apart(const struct blocks *blocks, const struct blocks *written)
{
    return !written || blocks->base >= written->base + written->end ||
           blocks->base + blocks->end <= written->base;
}

static int64_t displ_of(const struct serving *serving, const struct blocks *blocks, int block)
{
    return block_displ(serving->call, blocks->side, block);
}

/* Blocks of plain elements, as they lie. Displacements may be negative: base is the first block. */
static void use_plain(const struct serving *serving, struct blocks *blocks)
{
    int64_t least = INT64_MAX;
    for (int i = 0; i < blocks->count; i++)
        if (blocks->counts[i] && displ_of(serving, blocks, i) < least)
            least = displ_of(serving, blocks, i);
    least = least == INT64_MAX ? 0 : least;
    blocks->base = (char *)(uintptr_t)blocks->side->buffer + least * blocks->type.extent;
    blocks->end = 0;
    for (int i = 0; i < blocks->count; i++) {
        const int64_t displ = blocks->counts[i] ? displ_of(serving, blocks, i) - least : 0;
        blocks->displs[i] = (size_t)displ * blocks->type.bytes;
        if (blocks->displs[i] + blocks->counts[i] > blocks->end)
            blocks->end = blocks->displs[i] + blocks->counts[i];
    }
}

/* Blocks in a buffer, one behind the other. */
static void use_buffer(struct serving *serving, struct blocks *blocks)
{
    blocks->end = 0;
    for (int i = 0; i < blocks->count; i++) {
        blocks->displs[i] = blocks->end;
        blocks->end += blocks->counts[i];
    }
    blocks->base = operand_buffer(serving, blocks->end);
}

static void block_convert(struct serving *serving, const struct blocks *blocks, int block,
                          bool back)
{
    const struct type *type = &blocks->type;
    convert(serving,
            (const char *)blocks->side->buffer + displ_of(serving, blocks, block) * type->extent,
            block_count(serving->call, blocks->side, block), type,
            blocks->base + blocks->displs[block], back);
}

void blocks_output(struct serving *serving, const struct side *side, int count, struct blocks *made)
{
    made->side = side;
    made->count = count;
    made->type = (struct type){.is_plain = true};
    if (!type_find(serving->real, side->type, &made->type))
        fail(serving, "MPI does not know a type");
    else if (made->type.bytes > INT_MAX)
        fail(serving, "an element of a derived type has more than 2 GiB");
    for (int i = 0; i < count; i++)
        made->counts[i] = (size_t)block_count(serving->call, side, i) * made->type.bytes;
    if (made->type.is_plain)
        use_plain(serving, made);
    else
        use_buffer(serving, made);
}

void blocks_input(struct serving *serving, const struct side *side, int count,
                  const struct blocks *written, struct blocks *made)
{
    blocks_output(serving, side, count, made);
    if (made->type.is_plain) {
        if (is_apart(made, written))
            return;
        use_buffer(serving, made);
    }
    for (int i = 0; i < count; i++)
        block_convert(serving, made, i, false);
}

void blocks_finish(struct serving *serving, const struct blocks *blocks)
{
    for (int i = 0; i < blocks->count && !blocks->type.is_plain; i++)
        block_convert(serving, blocks, i, true);
}

void blocks_own(struct serving *serving, const struct blocks *blocks, struct blocks *made)
{
    const int rank = serving->comm->rank;
    if (!blocks->type.is_plain)
        block_convert(serving, blocks, rank, false);
    made->base = blocks->base + blocks->displs[rank];
    made->end = blocks->counts[rank];
}
