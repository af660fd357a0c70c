/* SPDX-License-Identifier: MIT */
#include "operands.h"

#include "gpu.h"

#include <stdlib.h>
#include <string.h>

enum {
    NONSENSE = 0xa5,
    GUARD = 0x5a,
    CHUNK = 64 * REFERENCE_PERIOD, /* elements that are copied and compared at once */
};

bool operands_init(struct operands *operands, bool gpu)
{
    operands->table = malloc(REFERENCE_PERIOD * REFERENCE_WIDEST);
    operands->chunk = gpu ? malloc((size_t)CHUNK * REFERENCE_WIDEST) : NULL;
    return operands->table && (operands->chunk || !gpu);
}

void operands_fini(struct operands *operands)
{
    free(operands->table);
    free(operands->chunk);
}

static size_t width_of(const struct operands *operands)
{
    return tutti_dtype_size(operands->reference.dtype);
}

static size_t block_bytes(const struct operands *operands)
{
    return operands->count * width_of(operands);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static bool fill_bytes(const struct operands *operands, char *to, unsigned char byte, size_t bytes)
{
    if (operands->chunk)
        return gpu_fill(to, byte, bytes);
    memset(to, byte, bytes);
    return true;
}

/* The size of the next part of `count` elements. */
static size_t part_of(size_t count)
{
    return count < CHUNK ? count : CHUNK;
}

bool operands_fill(const struct operands *operands, char *to, size_t count, const void *table)
{
    const size_t width = width_of(operands);
    char *chunk = operands->chunk;
    reference_fill(chunk ? chunk : to, chunk ? part_of(count) : count, width, table);
    for (size_t i = 0; i < count && chunk; i += CHUNK)
        if (!gpu_copy(to + i * width, chunk, part_of(count - i) * width))
            return false;
    return true;
}

/* Adds the elements that differ from the repeated table. */
static bool compare(const struct operands *operands, const char *from, size_t count,
                    const void *table, uint64_t *wrong)
{
    const size_t width = width_of(operands);
    for (size_t i = 0; i < count; i += CHUNK) {
        const size_t part = part_of(count - i);
        const char *at = from + i * width;
        if (operands->chunk && !gpu_copy(operands->chunk, at, part * width))
            return false;
        *wrong += reference_differences(operands->chunk ? operands->chunk : at, part, width, table);
    }
    return true;
}

/* Writes the guard at this place, or adds its changed bytes. */
static bool guard(const struct operands *operands, char *at, uint64_t *wrong)
{
    const char *seen = operands->chunk ? operands->chunk : at;
    if (!wrong)
        return fill_bytes(operands, at, GUARD, operands->guard_bytes);
    if (operands->chunk && !gpu_copy(operands->chunk, at, operands->guard_bytes))
        return false;
    for (size_t i = 0; i < operands->guard_bytes; i++)
        *wrong += seen[i] != GUARD;
    return true;
}

/* The guards of both buffers. */
static bool guards(const struct operands *operands, uint64_t *wrong)
{
    bool ok = true;
    for (int i = 0; i < 2 && operands->guard_bytes; i++)
        ok = ok && guard(operands, operands->buffers[i] - operands->guard_bytes, wrong) &&
             guard(operands, operands->buffers[i] + operands->bytes[i], wrong);
    return ok;
}

/* ---- inputs and results ---------------------------------------------------------------------- */

/* Each block of an input has different numbers. Returns one period of a block of a rank's input. */
static const void *input_of(const struct operands *operands, int rank, int block)
{
    struct reference reference = operands->reference;
    reference.seed ^= (uint64_t)block << 32;
    reference_input(&reference, rank, operands->table);
    return operands->table;
}

/* Returns one period of a block of this rank's result. */
static const void *result_of(const struct operands *operands, int block)
{
    const struct collective *collective = &collectives[operands->which];
    struct reference reference = operands->reference;
    const int own = collective->send_all ? operands->rank : 0;
    if (!collective->reduces)
        return input_of(operands,
                        collective_source(operands->which, operands->rank, reference.ranks,
                                          operands->root, block),
                        own);
    reference.seed ^= (uint64_t)own << 32;
    reference_expected(&reference, operands->table);
    return operands->table;
}

static int send_blocks(const struct operands *operands)
{
    return collective_send_blocks(&collectives[operands->which], operands->reference.ranks);
}

static int recv_blocks(const struct operands *operands)
{
    return collective_recv_blocks(&collectives[operands->which], operands->reference.ranks);
}

bool operands_spoil(const struct operands *operands)
{
    return fill_bytes(operands, operands->recv, NONSENSE,
                      block_bytes(operands) * (size_t)recv_blocks(operands));
}

bool operands_write(const struct operands *operands)
{
    bool ok = guards(operands, NULL);
    for (int i = 0; i < send_blocks(operands) && ok; i++)
        ok = operands_fill(operands, operands->send + (size_t)i * block_bytes(operands),
                           operands->count, input_of(operands, operands->rank, i));
    return ok;
}

bool operands_check_result(const struct operands *operands, uint64_t *wrong)
{
    const bool receives =
        !collectives[operands->which].recv_at_root || operands->rank == operands->root;
    bool ok = guards(operands, wrong);
    for (int i = 0; i < recv_blocks(operands) && receives && ok; i++)
        ok = compare(operands, operands->recv + (size_t)i * block_bytes(operands), operands->count,
                     result_of(operands, i), wrong);
    return ok;
}

bool operands_check_input(const struct operands *operands, uint64_t *wrong)
{
    const char *recv = operands->recv;
    const char *end = recv + block_bytes(operands) * (size_t)recv_blocks(operands);
    bool ok = true;
    for (int i = 0; i < send_blocks(operands) && ok; i++) {
        const char *input = operands->send + (size_t)i * block_bytes(operands);
        if (input < recv || input >= end)
            ok = compare(operands, input, operands->count, input_of(operands, operands->rank, i),
                         wrong);
    }
    return ok;
}
