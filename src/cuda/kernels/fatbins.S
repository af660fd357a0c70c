/* SPDX-License-Identifier: MIT */
/* The compiled kernels, one fatbin for each name in CUDA_FATBINS, as the read-only bytes
 * cuda_fatbin_NAME. Without nvcc each is a stub: a fatbin's header, which says that no byte
 * follows. */
    .macro fatbin name
    .globl cuda_fatbin_\name
    .hidden cuda_fatbin_\name
    .type cuda_fatbin_\name, %object
    .balign 64
cuda_fatbin_\name:
#ifdef TUTTI_CUDA_STUBS
    .4byte 0xba55ed50 /* magic */
    .2byte 1, 16 /* version, bytes of this header */
    .8byte 0 /* bytes that follow */
#else
    .incbin "\name\().fatbin"
#endif
    .size cuda_fatbin_\name, . - cuda_fatbin_\name
    .endm

    .section .rodata
    .irp name, CUDA_FATBINS
    fatbin \name
    .endr

    .section .note.GNU-stack, "", %progbits
