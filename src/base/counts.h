/* SPDX-License-Identifier: MIT */
/* What may be wrong with counts that a kernel reads. The kernel's fault has it in the parameter of
 * `expected`, whose count is the limit. `seen` has the count that was read, and as its parameter
 * the rank of the block. Compiles as C11 and as CUDA. */
#ifndef TUTTI_COUNTS_H
#define TUTTI_COUNTS_H

enum counts_fault {
    COUNTS_GOOD,
    COUNTS_ABOVE_MOST,    /* a count is more than max_count */
    COUNTS_BEYOND_EXTENT, /* a block ends behind its operand */
    COUNTS_OWN,           /* the rank's own block has two lengths */
    COUNTS_OVERLAP,       /* the block that is sent lies in part in one that is received */
    COUNTS_FAULT_MASK = 15,
    COUNTS_OF_RECV = 16,  /* added: the block is one of recv */
    COUNTS_NEGATIVE = 32, /* added: the number in `seen` is its absolute value */
};

#endif
