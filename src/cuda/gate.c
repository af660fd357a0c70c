/* SPDX-License-Identifier: MIT */
/*
 * The gate's code, once a context for all groups of the process. CUDA loads code only while no
 * kernel runs in the context; so a rank that loaded it where a gate of another rank runs, whose
 * operation that very rank is to take part in, would wait for itself.
 */
#include "cuda/stage_internal.h"
#include "error.h"

#include <stdlib.h>

struct cuda_gate_code {
    struct cuda_gate_code *next;
    unsigned long long context; /* its id: handles may be used again */
    struct cuda_kernels kernels;
    int holders; /* 0: it is being loaded */
};

/* Under the lock: */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t loaded = PTHREAD_COND_INITIALIZER;
static struct cuda_gate_code *list;

static struct cuda_gate_code *find(unsigned long long context)
{
    struct cuda_gate_code *code = list;
    while (code && code->context != context)
        code = code->next;
    return code;
}

static void forget(struct cuda_gate_code *code)
{
    struct cuda_gate_code **link = &list;
    while (*link != code)
        link = &(*link)->next;
    *link = code->next;
}

/* Not under the lock: it may last as long as a kernel of the program's does. */
static enum tutti_status load(const struct cuda_driver *driver, struct cuda_gate_code *code)
{
    enum tutti_status status = cuda_kernels_load_gate(driver, &code->kernels);
    pthread_mutex_lock(&lock);
    if (status == TUTTI_OK)
        code->holders = 1;
    else
        forget(code);
    pthread_cond_broadcast(&loaded);
    pthread_mutex_unlock(&lock);
    if (status != TUTTI_OK)
        free(code);
    return status;
}

enum tutti_status cuda_gate_take(const struct cuda_driver *driver, CUcontext context,
                                 struct cuda_gate_code **taken)
{
    unsigned long long id = 0;
    struct cuda_gate_code *code;
    enum tutti_status status = cuda_check(driver, driver->ctx_id(context, &id), "cuCtxGetId");
    *taken = NULL;
    if (status != TUTTI_OK)
        return status;
    pthread_mutex_lock(&lock);
    while ((code = find(id)) && !code->holders)
        pthread_cond_wait(&loaded, &lock);
    if (code) {
        code->holders++;
        pthread_mutex_unlock(&lock);
        *taken = code;
        return TUTTI_OK;
    }
    code = calloc(1, sizeof *code);
    if (code) {
        code->context = id;
        code->next = list;
        list = code;
    }
    pthread_mutex_unlock(&lock);
    status = code ? load(driver, code) : error_errno("calloc of a gate's code");
    if (status == TUTTI_OK)
        *taken = code;
    return status;
}

CUfunction cuda_gate_function(const struct cuda_gate_code *code)
{
    return code->kernels.gate;
}

bool cuda_gate_lives(const struct cuda_driver *driver, CUcontext context,
                     const struct cuda_gate_code *code)
{
    unsigned long long id = 0;
    return driver->ctx_id(context, &id) == CUDA_SUCCESS && id == code->context;
}

void cuda_gate_give(const struct cuda_driver *driver, struct cuda_gate_code *code)
{
    pthread_mutex_lock(&lock);
    const bool last = --code->holders == 0;
    if (last)
        forget(code);
    pthread_mutex_unlock(&lock);
    if (!last)
        return;
    cuda_kernels_unload(driver, &code->kernels);
    free(code);
}
