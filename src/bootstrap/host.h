/* SPDX-License-Identifier: MIT */
/* What a rank tells about itself, its process and its host when ranks meet. */
#ifndef TUTTI_HOST_H
#define TUTTI_HOST_H

#include "bootstrap/config.h"
#include "cuda/runtime/group.h"
#include "cuda/runtime/table.h"
#include "ipc/channel.h"

enum { HOST_CPU_BYTES = 128 }; /* a bit mask of 1024 processors */

/* The places of magic and version never change, so that other versions are recognised. */
struct host_identity {
    uint64_t magic;
    uint32_t version; /* TUTTI_VERSION */
    uint32_t layout;  /* LAYOUT_VERSION */
    char boot_id[40];
    char name[64]; /* of the host, for messages only */
    struct channel_address address;
    int32_t world_size;
    uint32_t user;                /* effective */
    uint64_t user_namespace;      /* users are compared within one namespace; 0 is unknown */
    uint8_t cpus[HOST_CPU_BYTES]; /* the processors that the rank may run on; all 0: unknown */
};

/* What the ranks of a communicator exchange. */
struct host_record {
    struct host_identity identity;
    struct comm_config config;
    /* CUDA only, else zero. */
    struct cuda_device device;
    uint64_t table_hash;
    char table_source[CUDA_TABLE_SOURCE_BYTES];
};

/* address: as channel_listen() makes it. device and table: NULL on CPU. */
enum tutti_status host_record_make(const struct comm_config *config, int world_size,
                                   const struct channel_address *address,
                                   const struct cuda_device *device, const struct cuda_table *table,
                                   struct host_record *record);

/* Terminates the texts of the records from the store. Replaces this rank's own record by `own`. */
void host_records_take(struct host_record *records, const struct host_record *own, int rank,
                       int size);

/* Compares all ranks' records: VERSION, MISMATCH (the difference is named), DECLINED (another host
 * or user; ranks that share a CUDA device, unless all ranks allow that). */
enum tutti_status host_records_compare(const struct host_record *records, int rank, int size);

/* Returns true if several ranks have one device. */
bool host_devices_overlap(const struct host_record *records, int size);

/* Returns true if several processes have one device; *low and *high are two of their ranks. */
bool host_processes_overlap(const struct host_record *records, int size, int *low, int *high);

/* Returns an error if a rank cannot listen: `own_text` on that rank, its number on the others.
 * Returns OK if all ranks run in one process. */
enum tutti_status host_channels_check(const struct host_record *records, int rank, int size,
                                      const char *own_text);
/* By rank. */
void host_addresses(const struct host_record *records, int size,
                    struct channel_address addresses[TUTTI_MAX_RANKS]);
/* Whether a process has several ranks. */
bool host_processes_shared(const struct host_record *records, int size);
/* The ranks that run in other processes. */
struct rank_set host_remote_ranks(const struct host_record *records, int rank, int size);
/* How many processors the ranks have together; TUTTI_MAX_RANKS if a rank does not know its own. */
int host_cores(const struct host_record *records, int size);

#endif
