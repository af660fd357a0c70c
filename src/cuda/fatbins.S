/* SPDX-License-Identifier: MIT */
/* The compiled kernels, one fatbin for each row of CUDA_KERNEL_MAP and one each for the barrier, for
 * symmetric memory and for gates, as the read-only bytes cuda_fatbin_NAME. */
    .macro fatbin name
    .globl cuda_fatbin_\name
    .hidden cuda_fatbin_\name
    .type cuda_fatbin_\name, %object
    .balign 64
cuda_fatbin_\name:
    .incbin "\name\().fatbin"
    .size cuda_fatbin_\name, . - cuda_fatbin_\name
    .endm

    .section .rodata
    fatbin one_shot_ll
    fatbin one_shot_lines
    fatbin two_shot_lines
    fatbin two_shot_pipelined
    fatbin mesh
    fatbin ring
    fatbin barrier
    fatbin symm
    fatbin gate

    .section .note.GNU-stack, "", %progbits
