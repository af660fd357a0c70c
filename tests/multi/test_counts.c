/* SPDX-License-Identifier: MIT */
/*
 * TUTTI_CALL_DEVICE_COUNTS on a CPU communicator: the arrays are the host's, with entries of 64 or
 * 32 bits, and the block and the number that are wrong are named.
 */
#include "ranks.h"

#include "tutti/collectives.h"

#include <string.h>

/* A CPU communicator reads memory of the host. */
static int on_cpu(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_call_options options = {
        .struct_size = sizeof options, .flags = TUTTI_CALL_DEVICE_COUNTS, .max_count = 6};
    const size_t counts[] = {3, 5}, places_given[] = {6, 0};
    const size_t lengths[] = {rank ? 5 : 3, rank ? 4 : 5}; /* to each rank, and from each */
    int32_t narrow[] = {3, 5};
    float send[20], recv[20], all[20];
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    for (int i = 0; i < 20; i++)
        send[i] = (float)(100 * rank + i);
#define TO_ALL()                                                                                   \
    tutti_all_to_all_v_with(send, lengths, NULL, recv, lengths, places_given, TUTTI_FLOAT32, comm, \
                            TUTTI_STREAM_DEFAULT, &options)
#define REFUSED_ON_CPU(text)                                                                       \
    RANKS_CHECK(TO_ALL() == TUTTI_ERR_INVALID && strstr(tutti_last_error(), text))
    options.max_count = 4;
    REFUSED_ON_CPU(rank ? "block 0 of send has 5 elements, and max_count is 4"
                        : "block 1 of send has 5 elements, and max_count is 4");
    options.max_count = 6;
    options.recv_extent = 8;
    REFUSED_ON_CPU(rank ? "block 0 of recv, 5 elements from 6 on, is not in its extent of 8"
                        : "block 0 of recv, 3 elements from 6 on, is not in its extent of 8");
    options.recv_extent = 0;
    RANKS_CHECK(TO_ALL() == TUTTI_OK);
    for (int i = 0; i < (rank ? 5 : 3); i++)
        RANKS_CHECK(recv[6 + i] == (float)(rank ? 3 + i : i));
    RANKS_CHECK(tutti_all_gather_v_with(send, 77, all, counts, NULL, TUTTI_FLOAT32, comm,
                                        TUTTI_STREAM_DEFAULT, &options) == TUTTI_OK);
    for (int i = 0; i < 8; i++)
        RANKS_CHECK(all[i] == (float)(i < 3 ? i : 100 + i - 3));
#define GATHER_INT32()                                                                             \
    tutti_all_gather_v_with(send + 1, 0, all, (const size_t *)(const void *)narrow, NULL,          \
                            TUTTI_FLOAT32, comm, TUTTI_STREAM_DEFAULT, &options)
    options.flags |= rank ? TUTTI_CALL_INT32_COUNTS : 0; /* rank 0 passes the same as size_t */
    RANKS_CHECK(rank ? GATHER_INT32() == TUTTI_OK
                     : tutti_all_gather_v_with(send + 1, 0, all, counts, NULL, TUTTI_FLOAT32, comm,
                                               TUTTI_STREAM_DEFAULT, &options) == TUTTI_OK);
    for (int i = 0; i < 8; i++)
        RANKS_CHECK(all[i] == (float)(i < 3 ? 1 + i : 101 + i - 3));
    options.flags |= TUTTI_CALL_INT32_COUNTS;
    narrow[!rank] = -7;
    RANKS_CHECK(GATHER_INT32() == TUTTI_ERR_INVALID);
    RANKS_CHECK(strstr(tutti_last_error(), rank
                                               ? "block 0 of recv has -7 elements, and max_count"
                                               : "block 1 of recv has -7 elements, and max_count"));
    options.flags = TUTTI_CALL_DEVICE_COUNTS;
    options.max_count = rank ? 6 : 7;
    RANKS_CHECK(tutti_all_gather_v_with(send, 0, all, counts, NULL, TUTTI_FLOAT32, comm,
                                        TUTTI_STREAM_DEFAULT, &options) == TUTTI_ERR_MISMATCH);
    tutti_comm_destroy(comm);
    return 0;
}

int main(void)
{
    static const struct ranks_part parts[] = {{"on CPU", on_cpu, {2}}};
    return ranks_run_parts(parts, 1) ? 1 : 0;
}
