/* SPDX-License-Identifier: MIT */
/* Who a rank is and where it runs: what the ranks tell each other first. */
#ifndef TUTTI_HOST_H
#define TUTTI_HOST_H

#include "comm/comm.h"
#include "cuda/runtime/group.h"
#include "cuda/runtime/table.h"

enum { HOST_CPU_BYTES = 128 }; /* a bit mask of 1024 processors */

/* Fixed-size, so that versions can be told apart: magic and version keep their place for ever. */
struct host_record {
    uint64_t magic;
    uint32_t version; /* TUTTI_VERSION */
    uint32_t layout;  /* LAYOUT_VERSION */
    char boot_id[40];
    char name[64];       /* of the host, for messages only */
    uint8_t process[16]; /* random, one a process */
    int32_t world_size;
    int32_t pid;
    uint32_t user;                /* effective */
    uint64_t user_namespace;      /* numbers of users compare within one only; 0 is unknown */
    uint8_t cpus[HOST_CPU_BYTES]; /* that the rank may run on */
    struct comm_config config;
    /* CUDA only, else zero. */
    struct cuda_device device;
    uint64_t table_hash;
    char table_source[CUDA_TABLE_SOURCE_BYTES];
};

/* device and table: NULL on CPU. */
enum tutti_status host_record_make(const struct tutti_comm *comm, const struct cuda_device *device,
                                   const struct cuda_table *table, struct host_record *record);

/* Of records as the store gave them: sees that texts end, and returns MISMATCH if this rank's is
 * not the one that it set. */
enum tutti_status host_records_take(struct host_record *records, const struct host_record *own,
                                    int rank, int size);

/* Compares all ranks' records: VERSION, MISMATCH (the difference is named), DECLINED (another host
 * or user, then: one CUDA device twice, which some rank does not allow). */
enum tutti_status host_records_compare(const struct host_record *records, int rank, int size);

/* Whether a device is that of several ranks. */
bool host_devices_overlap(const struct host_record *records, int size);

/* Whether a device is that of several processes; *low and *high are two ranks of such processes. */
bool host_processes_overlap(const struct host_record *records, int size, int *low, int *high);

/* How many processors the ranks have together. */
int host_cores(const struct host_record *records, int size);

#endif
