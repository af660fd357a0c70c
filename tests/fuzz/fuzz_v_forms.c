/* SPDX-License-Identifier: MIT */
/* Counts, displacements and addresses of the v-forms: a call that is accepted has blocks within
 * memory, outputs that are disjoint, and overlaps in place alone; a refusal names the call. */
#include "coll/coll.h"
#include "fuzz.h"

#include <string.h>

enum { RANKS = 5 };

__extension__ typedef unsigned __int128 wide; /* no sum wraps */

struct reader {
    const uint8_t *bytes;
    size_t size;
};

static unsigned take(struct reader *reader)
{
    if (!reader->size)
        return 0;
    reader->size--;
    return *reader->bytes++;
}

/* Small, close to the largest, or close to a power of two. */
static size_t number(struct reader *reader)
{
    const unsigned how = take(reader), value = take(reader);
    if (how < 160)
        return value % 32;
    if (how < 190)
        return SIZE_MAX - value;
    return ((size_t)1 << how % 64) + value - 128;
}

struct span {
    wide begin, end;
};

static bool overlap(struct span a, struct span b)
{
    return a.begin < a.end && b.begin < b.end && a.begin < b.end && b.begin < a.end;
}

/* The blocks of an operand of a call that was accepted; how many there are. */
static int spans_make(const struct coll_args *args, bool there, bool many,
                      const struct coll_blocks *blocks, const void *memory, size_t own, int ranks,
                      struct span *spans)
{
    const size_t width = dtype_bytes(args->dtype);
    wide next = 0;
    int n = 0;
    fuzz_check(!there || !many || blocks->counts != NULL);
    for (; there && n < (many ? ranks : 1); n++) {
        const size_t count = many ? coll_block_count(blocks, n) : own;
        const wide at =
            many && blocks->displacements ? coll_entry(blocks, blocks->displacements, n) : next;
        spans[n].begin = (uintptr_t)memory + at * width;
        spans[n].end = spans[n].begin + (wide)count * width;
        next += count;
        if (!count)
            continue;
        fuzz_check(memory && spans[n].end <= UINTPTR_MAX);
        fuzz_check(!coll_is_misaligned((uintptr_t)memory, args->dtype, width));
    }
    return n;
}

static void check_accepted(const struct coll *coll, const struct coll_args *args, int rank,
                           int ranks)
{
    struct span send[RANKS], recv[RANKS];
    const size_t own = coll_own_count(coll, args, rank);
    const int sends = spans_make(args, coll_has(coll->send, rank, args->peer), coll->send_all,
                                 &args->send_blocks, args->send, own, ranks, send);
    const int receives = spans_make(args, coll_has(coll->recv, rank, args->peer), coll->recv_all,
                                    &args->recv_blocks, args->recv, own, ranks, recv);
    for (int i = 0; i < receives; i++)
        for (int j = 0; j < i; j++)
            fuzz_check(!overlap(recv[i], recv[j]));
    for (int i = 0; i < sends; i++)
        for (int j = 0; j < receives; j++)
            fuzz_check(!overlap(send[i], recv[j]) ||
                       (coll->send_all != coll->recv_all && (coll->send_all ? i : j) == rank &&
                        send[i].begin == recv[j].begin));
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const enum tutti_collective kinds[] = {
        TUTTI_COLLECTIVE_ALL_GATHER_V, TUTTI_COLLECTIVE_REDUCE_SCATTER_V,
        TUTTI_COLLECTIVE_ALL_TO_ALL_V, TUTTI_COLLECTIVE_GATHER_V, TUTTI_COLLECTIVE_SCATTER_V};
    struct reader reader = {bytes, size};
    size_t numbers[4][RANKS];
    const struct coll *coll = &coll_rows[kinds[take(&reader) % (sizeof kinds / sizeof *kinds)]];
    const int ranks = 1 + (int)take(&reader) % RANKS, rank = (int)take(&reader) % ranks;
    struct coll_args args = {.peer = (int)(int8_t)take(&reader)};
    args.dtype = (enum tutti_dtype)(take(&reader) % (TUTTI_DTYPE_COUNT + 1));
    args.op = (tutti_op_t)(uintptr_t)(take(&reader) % 10);
    const unsigned there = take(&reader);
    args.count = number(&reader);
    args.send = (const void *)(uintptr_t)number(&reader);
    args.recv = (void *)(uintptr_t)number(&reader);
    for (int i = 0; i < 4; i++)
        for (int r = 0; r < ranks; r++)
            numbers[i][r] = number(&reader);
    if (there & 16)
        args.limits = (struct coll_limits){number(&reader), number(&reader), number(&reader)};
    const bool is_narrow = there & 32;
    const size_t width = is_narrow ? sizeof(int32_t) : sizeof(size_t);
    const size_t array = (size_t)ranks * width;
    /* Exactly as long as the world: a read past the end is seen. */
    unsigned char *exact = malloc(4 * array);
    fuzz_check(exact != NULL);
    for (int i = 0; i < 4 * ranks; i++) /* the low bytes are the first ones */
        memcpy(exact + (size_t)i * width, &numbers[i / ranks][i % ranks], width);
    args.send_blocks =
        (struct coll_blocks){there & 1 ? NULL : exact, there & 2 ? NULL : exact + array, is_narrow};
    args.recv_blocks = (struct coll_blocks){there & 4 ? NULL : exact + 2 * array,
                                            there & 8 ? NULL : exact + 3 * array, is_narrow};
    const enum coll_error error = coll_check(coll, &args, dtype_bytes(args.dtype), rank, ranks);
    if (error == COLL_GOOD)
        check_accepted(coll, &args, rank, ranks);
    else
        fuzz_check(coll_explain(coll->call, coll, &args, error, rank, ranks, "send") ==
                       TUTTI_ERR_INVALID &&
                   strncmp(tutti_last_error(), coll->call, strlen(coll->call)) == 0);
    free(exact);
    return 0;
}
