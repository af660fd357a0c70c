/* SPDX-License-Identifier: MIT */
/*
 * stream FOLDER TIMEOUT_MS [dies]: a rank of a stream of all-reduces, each with this time-out, over
 * the launcher's MPI. Rank 0 serves the store on the cable. It makes FOLDER/running.RANK with its
 * process number once the stream runs, and FOLDER/ended.RANK with the error that ends it. It leaves
 * without MPI, which may wait for ever. "dies": rank 2 is killed while the others connect.
 */
#include "fabric/fabric.h"
#include "tutti/communicators.h"
#include "tutti/fabric.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

enum { FIRST = 20, COUNT = 20000, SETUP_MS = 60000, OTHERS_US = 300000 };

static struct tutti_launcher me = {.struct_size = sizeof me};

/* The file gets its name once it is complete. */
static void tell(const char *folder, const char *what, const char *text)
{
    char path[400], hidden[420];
    snprintf(path, sizeof path, "%s/%s.%d", folder, what, me.rank);
    snprintf(hidden, sizeof hidden, "%s.new", path);
    FILE *file = fopen(hidden, "w");
    if (!file || fprintf(file, "%s\n", text) < 0 || fclose(file) != 0 || rename(hidden, path) != 0)
        perror(path);
}

/* The id, from rank 0 by a file. */
static enum tutti_status id_share(const char *folder, struct tutti_unique_id *id)
{
    char url[400];
    tutti_store_t *store;
    size_t size;
    snprintf(url, sizeof url, "file:%s/store", folder);
    enum tutti_status status = tutti_store_open(url, 0, &store);
    if (status == TUTTI_OK && me.rank == 0)
        status = tutti_unique_id_create(id);
    if (status == TUTTI_OK && me.rank == 0)
        status = tutti_store_set(store, "id", id, sizeof *id);
    if (status == TUTTI_OK)
        status = tutti_store_get(store, "id", 0, id, sizeof *id, &size);
    if (status == TUTTI_OK)
        tutti_store_close(store);
    return status;
}

static enum tutti_status die(tutti_fabric_t *fabric, int rank, int size, const void *addresses,
                             int64_t deadline, const struct interrupt *interrupt,
                             struct fabric_link **link)
{
    if (rank == 2) {
        usleep(OTHERS_US);
        raise(SIGKILL);
    }
    return mpi_fabric.connect(fabric, rank, size, addresses, deadline, interrupt, link);
}

static enum tutti_status start(const char *folder, bool dies, tutti_comm_t **comm)
{
    struct tutti_comm_options options = {.struct_size = sizeof options, .timeout_ms = SETUP_MS};
    struct fabric_ops dying = mpi_fabric;
    struct tutti_unique_id id;
    char host[64] = "";
    dying.connect = die;
    gethostname(host, sizeof host - 1);
    setenv("TUTTI_HOST_ID", host, 1);
    setenv("TUTTI_ID_ADDRESS", "v0", 1);
    enum tutti_status status = tutti_info_launcher(&me);
    if (status == TUTTI_OK)
        status = dies ? fabric_create(&dying, "", &options.fabric)
                      : tutti_fabric_open("mpi:", &options.fabric);
    if (status == TUTTI_OK)
        status = id_share(folder, &id);
    return status == TUTTI_OK
               ? tutti_comm_create_from_id(&id, me.rank, me.world_size, &options, comm)
               : status;
}

int main(int argc, char **argv)
{
    static float memory[COUNT];
    struct tutti_call_options options = {.struct_size = sizeof options};
    char number[24];
    tutti_comm_t *comm;
    if (argc < 3)
        return 2;
    options.timeout_ms = atoi(argv[2]);
    signal(SIGTERM, SIG_IGN); /* a launcher that notices trouble first */
    snprintf(number, sizeof number, "%d", (int)getpid());
    enum tutti_status status = start(argv[1], argc > 3, &comm);
    for (int i = 0; status == TUTTI_OK; i++) {
        if (i == FIRST)
            tell(argv[1], "running", number);
        /* some of one hop between the hosts, some of two */
        status = tutti_all_reduce_with(memory, memory, i % 2 ? COUNT : 1, TUTTI_FLOAT32, TUTTI_SUM,
                                       comm, TUTTI_STREAM_DEFAULT, &options);
    }
    tell(argv[1], "ended", tutti_last_error());
    pause(); /* until the script has seen all */
    _exit(1);
}
