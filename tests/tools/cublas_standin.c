/* SPDX-License-Identifier: MIT */
/* A stand-in for cuBLAS whose product is a copy. Linked with the stand-in for libcuda. */
#include "cuda/driver/driver_abi.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

enum { SUCCESS, WRONG = 7, BYTES = 4096 };

int cublasCreate_v2(void **handle);
int cublasDestroy_v2(void *handle);
int cublasSetStream_v2(void *handle, CUstream stream);
int cublasGemmEx(void *handle, int transpose_a, int transpose_b, int rows, int columns, int depth,
                 const void *alpha, const void *a, int a_type, int a_stride, const void *b,
                 int b_type, int b_stride, const void *beta, void *c, int c_type, int c_stride,
                 int compute, int algorithm);

int cublasCreate_v2(void **handle)
{
    *handle = calloc(1, sizeof(CUstream));
    return *handle ? SUCCESS : WRONG;
}

int cublasDestroy_v2(void *handle)
{
    free(handle);
    return SUCCESS;
}

int cublasSetStream_v2(void *handle, CUstream stream)
{
    *(CUstream *)handle = stream;
    return SUCCESS;
}

int cublasGemmEx(void *handle, int transpose_a, int transpose_b, int rows, int columns, int depth,
                 const void *alpha, const void *a, int a_type, int a_stride, const void *b,
                 int b_type, int b_stride, const void *beta, void *c, int c_type, int c_stride,
                 int compute, int algorithm)
{
    const bool square = rows == columns && rows == depth && rows == a_stride && rows == b_stride &&
                        rows == c_stride;
    const bool types = a_type == 14 && b_type == 14 && c_type == 14 && compute == 68;
    if (!square || !types || transpose_a || transpose_b || algorithm != -1 || !b ||
        *(const float *)alpha != 1 || *(const float *)beta != 0)
        return WRONG;
    return cuMemcpyAsync((CUdeviceptr)(uintptr_t)c, (CUdeviceptr)(uintptr_t)a, BYTES,
                         *(CUstream *)handle) == CUDA_SUCCESS
               ? SUCCESS
               : WRONG;
}
