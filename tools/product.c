/* SPDX-License-Identifier: MIT */
/* The types and numbers of cuBLAS's binary interface that the tool needs. */
#include "product.h"

#include "gpu.h"

#include <stddef.h>
#include <stdlib.h>

typedef int result_t;   /* cublasStatus_t; 0 is success */
typedef void *handle_t; /* cublasHandle_t, cudaStream_t */

enum {
    BFLOAT16 = 14,      /* CUDA_R_16BF */
    SUMS_FLOAT32 = 68,  /* CUBLAS_COMPUTE_32F */
    NO_TRANSPOSE = 0,   /* CUBLAS_OP_N */
    ANY_ALGORITHM = -1, /* CUBLAS_GEMM_DEFAULT */
};

/* X(member, symbol, arguments) */
#define CUBLAS_MAP(X)                                                                              \
    X(create, cublasCreate_v2, (handle_t * handle))                                                \
    X(destroy, cublasDestroy_v2, (handle_t handle))                                                \
    X(set_stream, cublasSetStream_v2, (handle_t handle, handle_t stream))                          \
    X(product, cublasGemmEx,                                                                       \
      (handle_t handle, int transpose_a, int transpose_b, int rows, int columns, int depth,        \
       const void *alpha, const void *a, int a_type, int a_stride, const void *b, int b_type,      \
       int b_stride, const void *beta, void *c, int c_type, int c_stride, int compute,             \
       int algorithm))

static struct {
#define CUBLAS_MEMBER(member, symbol, arguments) result_t(*member) arguments;
    CUBLAS_MAP(CUBLAS_MEMBER)
#undef CUBLAS_MEMBER
} cublas;

struct product {
    handle_t handle;
    void *matrices[3];
};

static bool check(result_t result, const char *call)
{
    return result ? library_fail("%s: cublasStatus_t %d", call, result) : true;
}

static bool open_library(void)
{
    static const struct library_symbol symbols[] = {
#define CUBLAS_SYMBOL(member, symbol, arguments)                                                   \
    {#symbol, (size_t)((char *)&cublas.member - (char *)&cublas), false},
        CUBLAS_MAP(CUBLAS_SYMBOL)
#undef CUBLAS_SYMBOL
    };
    static struct library libraries[2] = {{.file = "libcublas.so.13"}, {.file = "libcublas.so.12"}};
    for (size_t i = 0; i < sizeof libraries / sizeof *libraries; i++) {
        libraries[i].variable = "TUTTI_CUBLAS_LIBRARY";
        libraries[i].absent = "name the file in TUTTI_CUBLAS_LIBRARY";
        libraries[i].lacking = "";
        libraries[i].symbols = symbols;
        libraries[i].count = sizeof symbols / sizeof *symbols;
        if (library_open(&libraries[i], &cublas, NULL))
            return true;
    }
    return false;
}

struct product *product_create(void)
{
    const size_t bytes = (size_t)2 * PRODUCT_SIZE * PRODUCT_SIZE;
    struct product *product = calloc(1, sizeof *product);
    bool ok = product || library_fail("no memory");
    ok = ok && open_library() && check(cublas.create(&product->handle), "cublasCreate");
    for (int i = 0; i < 3 && ok; i++) {
        product->matrices[i] = gpu_alloc(bytes);
        ok = product->matrices[i] && gpu_fill(product->matrices[i], 0x3c, bytes); /* 0.0115 */
    }
    if (ok)
        return product;
    product_destroy(product);
    return NULL;
}

void product_destroy(struct product *product)
{
    if (!product)
        return;
    for (int i = 0; i < 3; i++)
        gpu_free(product->matrices[i]);
    if (product->handle)
        cublas.destroy(product->handle);
    free(product);
}

bool product_enqueue(struct product *product, tutti_stream_t stream)
{
    const float one = 1, zero = 0;
    const int n = PRODUCT_SIZE;
    void *const *matrices = product->matrices;
    return check(cublas.set_stream(product->handle, stream), "cublasSetStream") &&
           check(cublas.product(product->handle, NO_TRANSPOSE, NO_TRANSPOSE, n, n, n, &one,
                                matrices[0], BFLOAT16, n, matrices[1], BFLOAT16, n, &zero,
                                matrices[2], BFLOAT16, n, SUMS_FLOAT32, ANY_ALGORITHM),
                 "cublasGemmEx");
}
