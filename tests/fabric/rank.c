/* SPDX-License-Identifier: MIT */
#include "rank.h"

#include "pattern.h"
#include "tutti/communicators.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_BYTES = 8 << 20 };

static int rank, size;
static tutti_store_t *store;

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "rank %d: %s:%d: %s: %s\n", rank, __FILE__, __LINE__, #condition,      \
                    tutti_last_error());                                                           \
            return false;                                                                          \
        }                                                                                          \
    } while (0)

/* No rank leaves while another one may still need its progress. */
static bool meet(struct fabric_link *link)
{
    return pattern_exchange(link, 1, 1, true, false);
}

/* A link allocates nothing for what it has done before. */
static bool repeat(struct fabric_link *link)
{
    char in[2], out[2] = {1, 2};
    const int next = (link->rank + 1) % link->size,
              last = (link->rank ? link->rank : link->size) - 1;
    const struct fabric_transfer list[] = {{next, 1, true, out, 2}, {last, 1, false, in, 2}};
    struct fabric_batch *first, *second;
    CHECK(fabric_start(link, list, 2, &first) == TUTTI_OK && pattern_wait(link, first) == TUTTI_OK);
    CHECK(fabric_start(link, list, 2, &second) == TUTTI_OK && second == first);
    CHECK(pattern_wait(link, second) == TUTTI_OK);
    return true;
}

static bool run_patterns(tutti_fabric_t *fabric)
{
    struct fabric_link *all, *some = NULL, *pieces;
    CHECK(pattern_connect(store, fabric, "all", rank, size, &all));
    CHECK(pattern_all(all, MOST_BYTES));
    /* All but rank 0, in the opposite order. */
    if (rank)
        CHECK(pattern_connect(store, fabric, "some", size - 1 - rank, size - 1, &some));
    if (rank)
        CHECK(pattern_exchange(some, 3000, 3, true, true));
    mpi_piece_bytes = 1000;
    CHECK(pattern_connect(store, fabric, "pieces", rank, size, &pieces));
    CHECK(pattern_exchange(pieces, 65000, 3, false, true));
    CHECK(pattern_exchange(pieces, 3001, 3, true, false));
    mpi_piece_bytes = 1 << 30;
    CHECK(repeat(all) && meet(all));
    CHECK(!some || fabric_disconnect(some, 0));
    CHECK(fabric_disconnect(pieces, 0) && fabric_disconnect(all, 0));
    return true;
}

static void *exchange_beside(void *link)
{
    return pattern_exchange(link, 100000, 3, true, false) ? link : NULL;
}

/* Two threads use a link each, at the same time. */
static bool run_threads(tutti_fabric_t *fabric)
{
    struct fabric_link *own, *other;
    pthread_t thread;
    void *passed;
    CHECK(pattern_connect(store, fabric, "own", rank, size, &own));
    CHECK(pattern_connect(store, fabric, "other", rank, size, &other));
    CHECK(pthread_create(&thread, NULL, exchange_beside, other) == 0);
    CHECK(pattern_exchange(own, 3000, 30, false, true));
    CHECK(pthread_join(thread, &passed) == 0 && passed);
    CHECK(meet(own) && fabric_disconnect(own, 0) && fabric_disconnect(other, 0));
    return true;
}

/* Sums of several lengths; destroys the communicator. */
static bool check_comm(tutti_comm_t *comm)
{
    enum { COUNT = 300000 };
    static const size_t counts[] = {1, 1000, COUNT};
    static float values[COUNT];
    char text[4096];
    tutti_comm_describe(comm, text, sizeof text);
    CHECK(strstr(text, "hosts: 2\n") && strstr(text, "fabric: mpi"));
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        for (size_t j = 0; j < counts[i]; j++)
            values[j] = (float)(rank + (int)(j % 5));
        CHECK(tutti_all_reduce(values, values, counts[i], TUTTI_FLOAT32, TUTTI_SUM, comm,
                               TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        for (size_t j = 0; j < counts[i]; j++)
            CHECK(values[j] == (float)(size * (size - 1) / 2 + size * (int)(j % 5)));
    }
    CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    tutti_comm_destroy(comm);
    return true;
}

/* Communicators of both hosts, whose names tell them apart: one that meets on the store, and one on
 * the store of an id, which rank 0 serves on the cable. */
static bool run_comm(tutti_fabric_t *fabric)
{
    const struct tutti_comm_options options = {
        .struct_size = sizeof options, .timeout_ms = PATTERN_TIMEOUT_MS, .fabric = fabric};
    char host[64] = "";
    struct tutti_unique_id id;
    tutti_comm_t *comm;
    size_t bytes;
    gethostname(host, sizeof host - 1);
    setenv("TUTTI_HOST_ID", host, 1);
    CHECK(tutti_comm_create(store, rank, size, &options, &comm) == TUTTI_OK && check_comm(comm));
    setenv("TUTTI_ID_ADDRESS", "v0", 1);
    if (rank == 0)
        CHECK(tutti_unique_id_create(&id) == TUTTI_OK &&
              tutti_store_set(store, "id", &id, sizeof id) == TUTTI_OK);
    CHECK(tutti_store_get(store, "id", PATTERN_TIMEOUT_MS, &id, sizeof id, &bytes) == TUTTI_OK);
    CHECK(tutti_comm_create_from_id(&id, rank, size, &options, &comm) == TUTTI_OK);
    return check_comm(comm);
}

/* What leaves links of no more use. */
static bool run_ends(tutti_fabric_t *fabric)
{
    struct fabric_link *all, *cut, *wrong[2];
    CHECK(pattern_connect(store, fabric, "ends", rank, size, &all));
    CHECK(pattern_connect(store, fabric, "shorter", rank, size, &wrong[0]));
    CHECK(pattern_mismatch(wrong[0], 4));
    CHECK(pattern_connect(store, fabric, "longer", rank, size, &wrong[1]));
    CHECK(getenv("FABRIC_CUTS") || pattern_mismatch(wrong[1], 16)); /* see mpi.sh */
    CHECK(pattern_connect(store, fabric, "cut", rank, size, &cut));
    CHECK(pattern_abort(cut));
    CHECK(meet(all));
    CHECK(fabric_disconnect(wrong[0], 0) && fabric_disconnect(wrong[1], 0));
    CHECK(fabric_disconnect(cut, 0)); /* the receive was cancelled */
    CHECK(fabric_disconnect(all, 0));
    return true;
}

static void *open_elsewhere(void *arg)
{
    tutti_fabric_t *fabric;
    enum tutti_status *status = arg;
    *status = tutti_fabric_open("mpi:", &fabric);
    tutti_fabric_close(fabric);
    return NULL;
}

/* With less than MPI_THREAD_SERIALIZED, only MPI's main thread opens a fabric. */
static bool check_threads(const tutti_fabric_t *fabric)
{
    const bool any =
        strstr(fabric->description, "MULTIPLE") || strstr(fabric->description, "SERIAL");
    enum tutti_status status;
    pthread_t thread;
    CHECK(fabric->ops->threads(fabric) == (strstr(fabric->description, "MULTIPLE") != NULL));
    CHECK(pthread_create(&thread, NULL, open_elsewhere, &status) == 0);
    CHECK(pthread_join(thread, NULL) == 0 && status == (any ? TUTTI_OK : TUTTI_ERR_DECLINED));
    return true;
}

/*
 * Ends the process, once no rank is inside MPI. MPICH's launcher ends the other ranks of a rank
 * that leaves without MPI_Finalize(), so the file PASSED.RANK tells mpi.sh that this one has
 * passed.
 */
static void leave(const char *passed)
{
    int64_t left = 0;
    char name[300];
    snprintf(name, sizeof name, "%s.%d", passed, rank);
    FILE *file = fopen(name, "w");
    enum tutti_status status = file && fclose(file) == 0 ? TUTTI_OK : TUTTI_ERR_SYSTEM;
    if (status == TUTTI_OK)
        status = tutti_store_add(store, "left", 1, &left);
    for (; left < size && status == TUTTI_OK; usleep(1000))
        status = tutti_store_add(store, "left", 0, &left);
    fflush(stdout);
    _exit(left != size);
}

static bool run(const char *url, bool ends)
{
    tutti_fabric_t *fabric, *again;
    CHECK(tutti_fabric_open(url, &fabric) == TUTTI_OK);
    CHECK(tutti_fabric_open("mpi:", &again) == TUTTI_OK);
    tutti_fabric_close(again);
    if (rank == 0)
        printf("%s\n", fabric->description);
    bool passed = check_threads(fabric);
    if (store)
        passed = passed && run_patterns(fabric) && run_comm(fabric) &&
                 (!fabric->ops->threads(fabric) || run_threads(fabric)) &&
                 (!ends || run_ends(fabric));
    if (passed && store && getenv("FABRIC_PASSED"))
        leave(getenv("FABRIC_PASSED"));
    tutti_fabric_close(fabric);
    return passed;
}

int fabric_rank(char **argv, int ends)
{
    struct tutti_launcher launcher = {.struct_size = sizeof launcher};
    char url[300];
    snprintf(url, sizeof url, "file:%s", argv[1]);
    if (strcmp(argv[1], "-") != 0 && (tutti_info_launcher(&launcher) != TUTTI_OK ||
                                      tutti_store_open(url, PATTERN_TIMEOUT_MS, &store))) {
        fprintf(stderr, "%s\n", tutti_last_error());
        return 1;
    }
    rank = launcher.rank;
    size = launcher.world_size;
    const bool passed = run(argv[2], ends);
    tutti_store_close(store);
    return !passed;
}
