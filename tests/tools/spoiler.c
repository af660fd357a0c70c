/* SPDX-License-Identifier: MIT */
/*
 * To be preloaded: lets a collective do its work and then spoils the last rank's result, as SPOIL
 * says: "bit" of the last element, a byte "past" the end, a byte of the "input". The benchmark must
 * notice each. With "absent" the last rank does not come to where the ranks get symmetric memory;
 * with "later" each all-reduce after the first 200 takes 20 ms.
 */
#include "tutti/tutti.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef enum tutti_status reduce_fn(const void *, void *, size_t, enum tutti_dtype, tutti_op_t,
                                    tutti_comm_t *, tutti_stream_t);

static enum tutti_status spoil_result(enum tutti_status status, const void *send, void *recv,
                                      size_t bytes, tutti_comm_t *comm)
{
    const char *spoil = getenv("SPOIL");
    if (status || !spoil || !bytes || tutti_comm_rank(comm) != tutti_comm_world_size(comm) - 1)
        return status;
    if (strcmp(spoil, "bit") == 0)
        ((char *)recv)[bytes - 1] ^= 1;
    if (strcmp(spoil, "past") == 0)
        ((char *)recv)[bytes] ^= 1;
    if (strcmp(spoil, "input") == 0 &&
        ((const char *)send < (char *)recv || (const char *)send >= (char *)recv + bytes))
        *(char *)(uintptr_t)send ^= 1;
    return status;
}

enum tutti_status tutti_all_reduce(const void *send, void *recv, size_t count,
                                   enum tutti_dtype dtype, tutti_op_t op, tutti_comm_t *comm,
                                   tutti_stream_t stream)
{
    void *symbol = dlsym(RTLD_NEXT, "tutti_all_reduce");
    reduce_fn *next;
    static int calls;
    const char *spoil = getenv("SPOIL");
    memcpy(&next, &symbol, sizeof next);
    if (spoil && strcmp(spoil, "later") == 0 && ++calls > 200)
        usleep(20000);
    return spoil_result(next(send, recv, count, dtype, op, comm, stream), send, recv,
                        count * tutti_dtype_size(dtype), comm);
}

/* The collectives whose operands have blocks are called with options. */
#define FORWARD(name, blocks, parameters, ...)                                                     \
    enum tutti_status tutti_##name##_with parameters                                               \
    {                                                                                              \
        void *symbol = dlsym(RTLD_NEXT, "tutti_" #name "_with");                                   \
        enum tutti_status(*next) parameters;                                                       \
        memcpy(&next, &symbol, sizeof next);                                                       \
        return spoil_result(next(__VA_ARGS__), send, recv,                                         \
                            count * tutti_dtype_size(dtype) * (size_t)(blocks), comm);             \
    }
#define COPYING                                                                                    \
    (const void *send, void *recv, size_t count, enum tutti_dtype dtype, tutti_comm_t *comm,       \
     tutti_stream_t stream, const struct tutti_call_options *options)
FORWARD(all_gather, tutti_comm_world_size(comm), COPYING, send, recv, count, dtype, comm, stream,
        options)
FORWARD(all_to_all, tutti_comm_world_size(comm), COPYING, send, recv, count, dtype, comm, stream,
        options)
FORWARD(reduce_scatter, 1,
        (const void *send, void *recv, size_t count, enum tutti_dtype dtype, tutti_op_t op,
         tutti_comm_t *comm, tutti_stream_t stream, const struct tutti_call_options *options),
        send, recv, count, dtype, op, comm, stream, options)

typedef enum tutti_status symm_group_fn(const char *, int, int, tutti_store_t *,
                                        tutti_symm_group_t **);

enum tutti_status tutti_symm_group(const char *name, int rank, int world_size, tutti_store_t *store,
                                   tutti_symm_group_t **group)
{
    void *symbol = dlsym(RTLD_NEXT, "tutti_symm_group");
    symm_group_fn *next;
    memcpy(&next, &symbol, sizeof next);
    const char *spoil = getenv("SPOIL");
    while (spoil && strcmp(spoil, "absent") == 0 && rank == world_size - 1)
        pause();
    return next(name, rank, world_size, store, group);
}
