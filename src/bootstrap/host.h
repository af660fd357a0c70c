/* SPDX-License-Identifier: MIT */
/* What a rank tells about itself, its process and its host when ranks meet. */
#ifndef TUTTI_HOST_H
#define TUTTI_HOST_H

#include "bootstrap/config.h"
#include "coll/backend.h"
#include "ipc/channel.h"

enum { HOST_CPU_BYTES = 128 /* a bit mask of 1024 processors */, HOST_NAME_BYTES = 64 };

/* The offsets of magic and version never change, so that other versions are recognised. */
struct host_identity {
    uint64_t magic;
    uint32_t version; /* TUTTI_VERSION */
    uint32_t layout;  /* LAYOUT_VERSION */
    char boot_id[40];
    char name[HOST_NAME_BYTES]; /* of the host, for messages only */
    struct channel_address address;
    int32_t world_size;
    uint32_t user;                /* effective */
    uint64_t user_namespace;      /* users are compared within one namespace; 0 is unknown */
    uint8_t cpus[HOST_CPU_BYTES]; /* that the rank's threads may run on; all 0: unknown */
};

/* What the ranks of a communicator exchange. */
struct host_record {
    struct host_identity identity;
    struct comm_config config;
    struct backend_record part; /* the back end's; zero if it has none */
};

/* The threads of options->parallel. */
struct host_threads {
    tutti_parallel_t parallel; /* NULL: the calling thread alone */
    void *context;
    int count;
};

/* address: as channel_listen() makes it. Runs a task on each of the threads. The caller lets the
 * back end fill its part. */
enum tutti_status host_record_make(const struct comm_config *config, int world_size,
                                   const struct channel_address *address,
                                   const struct host_threads *threads, struct host_record *record);

/* Which ranks share a host. Hosts are numbered in the order of their least ranks. */
struct hosts {
    int count;
    int of[WORLD_RANKS];                      /* [r]: the number of rank r's host */
    char names[WORLD_RANKS][HOST_NAME_BYTES]; /* [host] */
};

/* Compares all ranks' records: VERSION, MISMATCH (the difference is named), DECLINED (another user
 * on the same host). Sets *hosts if the result is OK: ranks share a host if they have the same boot
 * id. Whether these also reach each other shows when their channel opens. The parts are the back
 * end's to compare. */
enum tutti_status host_records_compare(const struct host_record *records, int rank, int size,
                                       struct hosts *hosts);
/* The back end's parts, by rank. This and the next ones fill arrays of `size` elements. */
void host_parts(const struct host_record *records, int size, const struct backend_record **parts);

/* Returns an error if a rank cannot listen: `own_text` on that rank, its number on the others.
 * Returns OK if all ranks run in one process. */
enum tutti_status host_channels_check(const struct host_record *records, int rank, int size,
                                      const char *own_text);
/* By rank. */
void host_addresses(const struct host_record *records, int size, struct channel_address *addresses);
/* [r] becomes the lowest rank of rank r's process. Returns whether a process has several ranks. */
bool host_processes(const struct host_record *records, int size, int *processes);
/* The ranks that run in other processes. */
struct rank_set host_remote_ranks(const struct host_record *records, int rank, int size);
/* How many processors the ranks have together; WORLD_RANKS if a rank does not know its own. */
int host_cores(const struct host_record *records, int size);

#endif
