/* SPDX-License-Identifier: MIT */
/*
 * How an operation goes through slots of host memory: it is cut into pieces. A piece is copied into
 * a slot, runs there among the hosts, and is copied out, while other pieces are copied:
 *
 *     copy in piece k + 1, run piece k, copy out piece k - 1
 *
 * The caller's functions say what that is. A CUDA communicator puts all on the caller's stream; a
 * host thread runs the pieces, and the stream waits for it (proxy.c). A process group's thread runs
 * the pieces itself. It starts copies on streams of the group and waits for them (pg/staging.c).
 *
 * A piece has the elements k to k + n of every block. In a slot each block of the piece has a
 * place. Both operands share the places, so the hosts work in place: an operand that is one block
 * has the place of this rank's block of the other one. In an all-to-all of blocks of different
 * lengths a rank may receive before it has sent, so there the operands have places of their own. An
 * all-reduce may have several blocks, the tensors of a process group.
 */
#ifndef TUTTI_CUDA_PIPE_H
#define TUTTI_CUDA_PIPE_H

#include "coll/coll.h"
#include "cuda/kernels/arena.h"

struct request;

/* ---- pieces ---------------------------------------------------------------------------------- */

enum cuda_operand { CUDA_SEND, CUDA_RECV, CUDA_OPERANDS };

struct cuda_cut {
    const struct coll *coll;
    int rank, size;
    size_t own;         /* elements of the rank's own block */
    size_t width;       /* bytes of an element */
    size_t place_bytes; /* room of a place */
    size_t piece;       /* elements of a block in a piece, at most */
    uint64_t pieces;    /* on this rank, at least one; in a v-form peers may have more */
};

/* The blocks of a request's operands. */
struct cuda_blocks {
    int blocks[CUDA_OPERANDS];                /* 0: this rank does not have the operand */
    size_t counts[CUDA_OPERANDS][CUDA_RANKS]; /* elements of each block */
    size_t starts[CUDA_OPERANDS][CUDA_RANKS]; /* its first element in the operand */
};

/* The places of a slot, for a collective of `size` ranks. */
int cuda_cut_places(const struct coll *coll, int size);
/* Sets `piece` and `pieces`; the caller has set all else. `longest`: elements of the longest
 * block. */
void cuda_cut_set(struct cuda_cut *cut, size_t longest);
/* Cuts a request of `size` ranks for slots of `slot_bytes`. */
void cuda_cut_make(const struct request *request, int rank, int size, size_t slot_bytes,
                   struct cuda_cut *cut, struct cuda_blocks *blocks);
/* The elements in a piece of a block of `count`. */
size_t cuda_cut_count(const struct cuda_cut *cut, size_t count, uint64_t piece);
/* The bytes from one place of a piece to the next one, and the offset of a block's place. */
size_t cuda_cut_stride(const struct cuda_cut *cut, uint64_t piece);
size_t cuda_cut_place(const struct cuda_cut *cut, enum cuda_operand operand, int block,
                      uint64_t piece);
/* Returns true if in this piece the blocks of an operand are rows of one copy: they have one
 * length, and CUDA takes the distance from one to the next. */
bool cuda_cut_is_rows(const struct cuda_cut *cut, int blocks, uint64_t piece);
/* Makes the request of a piece, for the hosts. It points into *part. The caller chooses the
 * algorithm. */
void cuda_cut_request(const struct cuda_cut *cut, const struct cuda_blocks *blocks,
                      const struct request *whole, uint64_t piece, unsigned char *slot,
                      struct cuda_blocks *part, struct request *request);

/* ---- slots, and how pieces pass through them ------------------------------------------------- */

/* Pieces use the slots in turn. */
struct cuda_slots {
    unsigned char *memory;
    size_t bytes; /* of a slot */
    uint64_t count;
    uint64_t used; /* number of earlier pieces, of other operations */
};

static inline uint64_t cuda_slot_number(const struct cuda_slots *slots, uint64_t piece)
{
    return (slots->used + piece) % slots->count;
}

static inline unsigned char *cuda_slot(const struct cuda_slots *slots, uint64_t piece)
{
    return slots->memory + cuda_slot_number(slots, piece) * slots->bytes;
}

struct cuda_pipe {
    uint64_t pieces;
    uint64_t slots; /* for pieces of this operation */
    uint64_t lag;   /* how many pieces run before the slot of an earlier one is taken again: so long
                     * it may be copied out. Below `slots` */
    void *context;
    /* Each returns what ends the operation. */
    enum tutti_status (*in)(void *context, uint64_t piece);  /* once its slot is free, starts to
                                                              * copy the piece in */
    enum tutti_status (*run)(void *context, uint64_t piece); /* waits for that, and runs it */
    enum tutti_status (*out)(void *context, uint64_t piece); /* starts to copy the result out */
};

/* Takes all pieces through. Returns the first error; no function runs any more then. */
enum tutti_status cuda_pipe_run(const struct cuda_pipe *pipe);

#endif
