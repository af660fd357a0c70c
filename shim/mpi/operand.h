/* SPDX-License-Identifier: MIT */
/*
 * The operands of a call that Tutti serves. What only moves data moves bytes. An operand of a type
 * that is not plain is packed to bytes, and unpacked from them: the bytes of an element are those
 * of its data in the order of its type's map, in each MPI, so they are equal for equal signatures.
 * Each rank chooses that for its own operands.
 */
#ifndef SHIM_MPI_OPERAND_H
#define SHIM_MPI_OPERAND_H

#include "shim.h"

enum { BUFFERS = 4 };

/* A call under way. A function that fails sets the code; those behind it then do nothing. */
struct serving {
    const struct real *real;
    const struct call *call;
    const struct comm *comm;
    void *buffers[BUFFERS]; /* freed at the end */
    int used;
    const struct type *type; /* of a reduction */
    tutti_op_t op;
    bool is_logical;
    int code; /* MPI's; not 0: the call has failed */
};

/* An operand as bytes, as Tutti takes them: one block, or one for each rank. */
struct blocks {
    const struct side *side;
    struct type type;
    int count;
    char *base;
    size_t counts[TUTTI_MAX_RANKS], displs[TUTTI_MAX_RANKS];
    size_t end; /* of the last block, from base on */
};

/* Says why, and calls the error handler of MPI's communicator. */
void fail(struct serving *serving, const char *why);
/* A buffer until the end of the call; NULL after a failure. */
void *operand_buffer(struct serving *serving, size_t bytes);

static inline bool is_in_place(const struct serving *serving, const struct side *side)
{
    return side->buffer == serving->real->abi.in_place;
}

/* What is read, none of it between the bytes that are `written` (NULL: none are): Tutti wants
 * operands apart. */
void blocks_input(struct serving *serving, const struct side *side, int count,
                  const struct blocks *written, struct blocks *made);
/* Where elements are written; blocks_finish() unpacks them. */
void blocks_output(struct serving *serving, const struct side *side, int count,
                   struct blocks *made);
void blocks_finish(struct serving *serving, const struct blocks *blocks);
/* This rank's own block, which it sends from its place in what it receives. */
void blocks_own(struct serving *serving, const struct blocks *blocks, struct blocks *made);

#endif
