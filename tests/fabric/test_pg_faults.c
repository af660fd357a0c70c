/* SPDX-License-Identifier: MIT */
/*
 * Process groups of communicators of several hosts, by the fabric of the tests: what ends them.
 * What they do is tested by the programs of ../multi, on several hosts.
 * - dead, aborted, broken: what happens to a rank, or between the hosts, ends the group on all
 * ranks
 * - silent: nothing crosses any more. Works end by their time-outs
 * - left: a rank that destroys its group ends collectives, and messages with it, but no others
 * - refused: a fabric that only one thread may use
 *
 * usage: test_pg_faults
 */
#include "../pg.h"
#include "loopback_fabric.h"
#include "tutti/recovery.h"

#include <signal.h>
#include <stdlib.h>

static struct loopback *loopback;
static tutti_fabric_t *fabric;
static const char *hosts = "AABB"; /* of the ranks */

static int join(struct ranks *ranks, int rank, tutti_store_t *store, tutti_comm_t **comm)
{
    setenv("TUTTI_HOST_ID", (char[]){hosts[rank], 0}, 1);
    RANKS_CHECK(loopback_open(loopback, rank, &fabric) == TUTTI_OK);
    const struct tutti_comm_options options = {
        .struct_size = sizeof options, .name = "group", .fabric = fabric};
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, comm) == TUTTI_OK);
    return 0;
}

/* A group that has run a collective, on all ranks. */
static int begin(struct ranks *ranks, int rank, tutti_store_t *store, tutti_comm_t **comm,
                 tutti_pg_t **pg)
{
    const int failed = join(ranks, rank, store, comm);
    if (failed)
        return failed;
    RANKS_CHECK(tutti_pg_create(*comm, NULL, pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(*pg, 0, 4) && ranks_meet(ranks, 0));
    return 0;
}

static int end(tutti_comm_t *comm, tutti_pg_t *pg)
{
    tutti_pg_destroy(pg);
    tutti_comm_destroy(comm);
    return 0;
}

/* A sum, and a message of which nobody has the other end, end so. */
static int ends(struct ranks *ranks, int rank, tutti_pg_t *pg, enum tutti_status status, int peer)
{
    static const int64_t one = 1;
    float x = 1, y = 1;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    tutti_work_t *works[2] = {NULL, NULL};
    const struct tutti_tensor tensor = pg_vector(&y, &one);
    enum tutti_status ended = pg_sum(pg, &x, 0, 0, &works[0]);
    if (ended == TUTTI_OK)
        ended = tutti_pg_recv(pg, &tensor, (rank + 2) % 4, NULL, &works[1]);
    for (int i = 0; i < 2 && works[i]; i++) {
        RANKS_CHECK(tutti_work_wait_host(works[i], RANKS_TIMEOUT_MS) == status);
        RANKS_CHECK(tutti_work_fault(works[i], &fault) == status);
        RANKS_CHECK(peer < 0 || fault.peer == peer);
        tutti_work_destroy(works[i]);
    }
    RANKS_CHECK(ended == TUTTI_OK || ended == status);
    RANKS_CHECK(pg_sum(pg, &x, 0, 0, &works[0]) == status); /* the group has ended */
    return 0;
}

/* Without rank 3, or with all ranks. */
static int shrink(struct ranks *ranks, int rank, tutti_store_t *store, tutti_comm_t *comm,
                  tutti_pg_t *pg, int size)
{
    struct tutti_shrink_result result = {.struct_size = sizeof result};
    tutti_comm_t *shrunk;
    tutti_pg_destroy(pg);
    RANKS_CHECK(tutti_comm_shrink(comm, store, NULL, &shrunk, &result) == TUTTI_OK);
    RANKS_CHECK(result.world_size == size && result.rank == rank);
    tutti_comm_destroy(comm);
    RANKS_CHECK(tutti_pg_create(shrunk, NULL, &pg) == TUTTI_OK);
    RANKS_CHECK(pg_goes_on(pg, 0, size));
    return end(shrunk, pg);
}

static int dead(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    int failed = begin(ranks, rank, store, &comm, &pg);
    if (failed)
        return failed;
    ranks->expendable = 1 << 3;
    if (rank == 3)
        raise(SIGKILL);
    failed = ends(ranks, rank, pg, TUTTI_ERR_PEER_DEAD, 3);
    return failed ? failed : shrink(ranks, rank, store, comm, pg, 3);
}

static int dead_silent(struct ranks *ranks, int rank, tutti_store_t *store)
{
    loopback_set(loopback->silent_deaths, 1);
    return dead(ranks, rank, store);
}

/* No other rank of its host notices the end: the store does. */
static int dead_alone(struct ranks *ranks, int rank, tutti_store_t *store)
{
    hosts = "AABC";
    return dead_silent(ranks, rank, store);
}

static int aborted(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    int failed = begin(ranks, rank, store, &comm, &pg);
    if (failed)
        return failed;
    if (rank == 2)
        tutti_comm_abort(comm);
    failed = ends(ranks, rank, pg, TUTTI_ERR_ABORTED, 2);
    return failed ? failed : shrink(ranks, rank, store, comm, pg, 4);
}

static int broken(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    int failed = begin(ranks, rank, store, &comm, &pg);
    if (failed)
        return failed;
    RANKS_CHECK(ranks_meet(ranks, 1));
    loopback_cut_hosts(loopback, 2, LOOPBACK_BROKEN);
    failed = ends(ranks, rank, pg, TUTTI_ERR_SYSTEM, -1);
    return failed ? failed : end(comm, pg);
}

static int silent(struct ranks *ranks, int rank, tutti_store_t *store)
{
    float x = 1;
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_work_t *work;
    int failed = begin(ranks, rank, store, &comm, &pg);
    if (failed)
        return failed;
    RANKS_CHECK(ranks_meet(ranks, 1));
    loopback_cut_hosts(loopback, 2, LOOPBACK_SILENT);
    RANKS_CHECK(ranks_meet(ranks, 2));
    RANKS_CHECK(rank == 3 || pg_sum(pg, &x, 0, 100, &work) == TUTTI_OK);
    RANKS_CHECK(rank > 1 || pg_end(work) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(ranks_meet(ranks, 3));
    loopback_cut_hosts(loopback, 2, LOOPBACK_WHOLE); /* the leader's verdict comes to the others */
    RANKS_CHECK(rank != 3 || pg_sum(pg, &x, 0, 0, &work) == TUTTI_OK);
    RANKS_CHECK(rank < 2 || pg_end(work) == TUTTI_ERR_TIMEOUT);
    RANKS_CHECK(pg_goes_on(pg, 0, 4));
    RANKS_CHECK(ranks_meet(ranks, 4));
    return end(comm, pg);
}

static int left(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const int64_t many = 100000;
    static float memory[100000];
    const struct tutti_tensor tensor = pg_vector(memory, &many);
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    tutti_work_t *work;
    const int failed = begin(ranks, rank, store, &comm, &pg);
    if (failed)
        return failed;
    if (rank == 2)
        return end(comm, pg);
    const enum tutti_status status = pg_sum(pg, memory, 0, 0, &work);
    RANKS_CHECK((status == TUTTI_OK ? pg_end(work) : status) == TUTTI_ERR_PEER_DEAD);
    RANKS_CHECK(tutti_pg_send(pg, &tensor, 2, NULL, &work) == TUTTI_OK &&
                pg_end(work) == TUTTI_ERR_PEER_DEAD);
    memory[many - 1] = (float)rank;
    if (rank == 3)
        RANKS_CHECK(tutti_pg_send(pg, &tensor, 0, NULL, &work) == TUTTI_OK);
    else if (rank == 0)
        RANKS_CHECK(tutti_pg_recv(pg, &tensor, TUTTI_ANY_SOURCE, NULL, &work) == TUTTI_OK);
    RANKS_CHECK(rank == 1 || pg_end(work) == TUTTI_OK);
    RANKS_CHECK(rank != 0 || memory[many - 1] == 3);
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, 3)); /* rank 2 does not come */
    return end(comm, pg);
}

static int refused(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    tutti_pg_t *pg;
    loopback_set(loopback->one_thread, 1);
    const int failed = join(ranks, rank, store, &comm);
    if (failed)
        return failed;
    RANKS_CHECK(tutti_pg_create(comm, NULL, &pg) == TUTTI_ERR_DECLINED && !pg);
    RANKS_CHECK(strstr(tutti_last_error(), "MPI_THREAD_MULTIPLE"));
    tutti_comm_destroy(comm);
    return 0;
}

int main(void)
{
    static const struct ranks_part parts[] = {
        {"dead", dead, {4}},
        {"dead_silent", dead_silent, {4}},
        {"dead_alone", dead_alone, {4}},
        {"aborted", aborted, {4}},
        {"broken", broken, {4}},
        {"silent", silent, {4}},
        {"left", left, {4}},
        {"refused", refused, {4}},
    };
    const int skip = ranks_skip_cuda("fabrics of CPU ranks");
    int failures = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !skip; i++) {
        loopback = loopback_create();
        failures += ranks_run_parts(&parts[i], 1);
    }
    return skip ? skip : failures != 0;
}
