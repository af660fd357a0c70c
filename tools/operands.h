/* SPDX-License-Identifier: MIT */
/*
 * The operands of one operation: inputs of reference_table.h, and the check of every element of the
 * result. The memory is the host's, or the device's to which the calling thread is bound.
 */
#ifndef TUTTI_TOOL_OPERANDS_H
#define TUTTI_TOOL_OPERANDS_H

#include "collective.h"
#include "reference_table.h"

struct operands {
    enum tutti_collective which;
    struct reference reference;
    int rank, root;
    size_t count;       /* elements of a block */
    char *buffers[2];   /* those that send and recv are in */
    size_t bytes[2];    /* of each buffer */
    size_t guard_bytes; /* before and behind each buffer; 0: none */
    char *send, *recv;  /* the operands: see operands_find() */
    char *table;        /* one period */
    char *chunk;        /* what is copied at once; NULL: the memory is the host's */
};

/* Makes the tables, which operands_fini() frees. False if there is no memory. */
bool operands_init(struct operands *operands, bool gpu);
void operands_fini(struct operands *operands);

/* Finds the operands in two buffers. In place the smaller one is the rank's own block of the larger
 * one. */
static inline void operands_find(const struct operands *operands, bool in_place, char *send,
                                 char *recv, char **found_send, char **found_recv)
{
    const struct collective *collective = &collectives[operands->which];
    *found_send = send;
    *found_recv = recv;
    if (!in_place)
        return;
    const size_t own = (size_t)collective_own_block(collective, operands->rank) * operands->count *
                       tutti_dtype_size(operands->reference.dtype);
    if (collective->send_all)
        *found_recv = send + own;
    else
        *found_send = recv + own;
}

/* The next functions return false only if a copy of the device failed: see library_error(). */

/* Fills the memory of the result with nonsense. */
bool operands_spoil(const struct operands *operands);
/* Writes the guards and the input. */
bool operands_write(const struct operands *operands);
/* Adds the wrong elements of the result and the changed bytes of the guards. */
bool operands_check_result(const struct operands *operands, uint64_t *wrong);
/* Adds the changed elements of the input, as far as the result does not replace it. */
bool operands_check_input(const struct operands *operands, uint64_t *wrong);
/* Repeats a table of one period over `count` elements. */
bool operands_fill(const struct operands *operands, char *to, size_t count, const void *table);

#endif
