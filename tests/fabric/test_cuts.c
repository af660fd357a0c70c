/* SPDX-License-Identifier: MIT */
/*
 * A bad network between a host and the store, and between hosts: ranks 0 and 1 are on one host,
 * rank 2 on another, which reaches the store by a relay.
 * - delayed: a slow store serves as a quick one does
 * - in_meeting: the store is cut off while the ranks meet
 * - dies_at_address, dies_at_connect, dies_connected, first_dies: the death of a rank in the set-up
 *   is known at once
 * - closed, healed: rank 2's connections to the store end, for good or once
 * - silent_store: nothing comes from the store any more; the fabric works
 * - silent: nothing crosses any more
 *
 * Each is an error that names ranks and hosts, at the deadline at the latest, or no error at all.
 *
 * usage: test_cuts [closed|silent], half of the parts
 */
#include "../ranks.h"
#include "loopback_fabric.h"
#include "relay.h"
#include "tutti/collectives.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { SHORT_MS = 500, DELAY_US = 25000, LOOKS_US = 400000 /* a rank that waits so long looks */ };

static struct loopback *loopback;
static struct relay *relay;

/* Rank 2's handle goes by the relay. */
static int open_store(struct ranks *ranks, int rank, tutti_store_t *direct, tutti_store_t **store)
{
    char url[64];
    *store = direct;
    setenv("TUTTI_HOST_ID", (char[]){"AAB"[rank], 0}, 1);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%u", relay->port);
    if (rank == 2)
        RANKS_CHECK(tutti_store_open(url, RANKS_TIMEOUT_MS, store) == TUTTI_OK);
    return 0;
}

static enum tutti_status join(int rank, tutti_store_t *store, int64_t timeout_ms,
                              tutti_comm_t **comm)
{
    tutti_fabric_t *fabric;
    if (loopback_open(loopback, rank, &fabric) != TUTTI_OK)
        abort();
    const struct tutti_comm_options options = {
        .struct_size = sizeof options, .timeout_ms = timeout_ms, .fabric = fabric};
    return tutti_comm_create(store, rank, 3, &options, comm);
}

static enum tutti_status sum(tutti_comm_t *comm)
{
    static float memory[1000];
    return tutti_all_reduce(memory, memory, 1000, TUTTI_FLOAT32, TUTTI_SUM, comm,
                            TUTTI_STREAM_DEFAULT);
}

/* A communicator that has done some operations. Its later ones have the time-out SHORT_MS. */
static int begin(struct ranks *ranks, int rank, tutti_store_t *direct, tutti_comm_t **comm)
{
    tutti_store_t *store;
    const int failed = open_store(ranks, rank, direct, &store);
    if (failed)
        return failed;
    RANKS_CHECK(join(rank, store, RANKS_TIMEOUT_MS, comm) == TUTTI_OK);
    for (int i = 0; i < 50; i++)
        RANKS_CHECK(sum(*comm) == TUTTI_OK);
    RANKS_CHECK(ranks_meet(ranks, 1));
    return 0;
}

static enum tutti_status sum_shortly(tutti_comm_t *comm)
{
    static float memory[1000];
    const struct tutti_call_options options = {.struct_size = sizeof options,
                                               .timeout_ms = SHORT_MS};
    return tutti_all_reduce_with(memory, memory, 1000, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                 TUTTI_STREAM_DEFAULT, &options);
}

/* The fault names this rank, and the last error names hosts. */
static int fault_is(struct ranks *ranks, int rank, tutti_comm_t *comm, enum tutti_status status,
                    int peer)
{
    struct tutti_fault fault = {.struct_size = sizeof fault};
    char host[64] = "";
    gethostname(host, sizeof host - 1);
    RANKS_CHECK(tutti_comm_status(comm, &fault) == status);
    RANKS_CHECK(peer < 0 ? (fault.rank < 2) != (fault.peer < 2) : fault.peer == peer);
    RANKS_CHECK(strstr(tutti_last_error(), " runs on ") && strstr(tutti_last_error(), host));
    tutti_comm_destroy(comm);
    return 0;
}

static int delayed(struct ranks *ranks, int rank, tutti_store_t *direct)
{
    tutti_comm_t *comm;
    relay_set(relay->delay_us, DELAY_US);
    const int failed = begin(ranks, rank, direct, &comm);
    if (failed)
        return failed;
    if (rank == 2)
        tutti_comm_abort(comm);
    RANKS_CHECK(sum(comm) == TUTTI_ERR_ABORTED);
    return fault_is(ranks, rank, comm, TUTTI_ERR_ABORTED, 2);
}

static int in_meeting(struct ranks *ranks, int rank, tutti_store_t *direct)
{
    tutti_store_t *store;
    tutti_comm_t *comm;
    const int failed = open_store(ranks, rank, direct, &store);
    if (failed)
        return failed;
    if (rank == 2)
        relay_set(relay->mode, RELAY_CLOSED);
    RANKS_CHECK(ranks_meet(ranks, 1));
    const enum tutti_status status = join(rank, store, SHORT_MS, &comm);
    RANKS_CHECK(status == (rank == 2 ? TUTTI_ERR_SYSTEM : TUTTI_ERR_TIMEOUT));
    RANKS_CHECK(strstr(tutti_last_error(), rank == 2 ? "the store at 127.0.0.1" : "rank 2"));
    return 0;
}

/* A rank dies between its record and the end of the set-up. Nobody waits for the deadline. */
static int dies(struct ranks *ranks, int rank, tutti_store_t *direct, int dying,
                enum loopback_death where)
{
    char text[64];
    tutti_store_t *store;
    tutti_comm_t *comm;
    const int failed = open_store(ranks, rank, direct, &store);
    if (failed)
        return failed;
    ranks->expendable = 1u << dying;
    loopback_set(loopback->dies_in, where);
    loopback_set(loopback->dies, 1 + (uint32_t)dying);
    snprintf(text, sizeof text, "rank %d ended while the ranks met", dying);
    RANKS_CHECK(join(rank, store, RANKS_TIMEOUT_MS, &comm) == TUTTI_ERR_PEER_DEAD);
    RANKS_CHECK(strstr(tutti_last_error(), text));
    return 0;
}

static int dies_at_address(struct ranks *ranks, int rank, tutti_store_t *direct)
{
    return dies(ranks, rank, direct, 2, LOOPBACK_ADDRESS);
}

static int dies_at_connect(struct ranks *ranks, int rank, tutti_store_t *direct)
{
    return dies(ranks, rank, direct, 2, LOOPBACK_CONNECT);
}

static int dies_connected(struct ranks *ranks, int rank, tutti_store_t *direct)
{
    return dies(ranks, rank, direct, 2, LOOPBACK_CONNECTED);
}

/* The engine of rank 2 cannot connect to rank 0, or its connection ends. */
static int first_dies(struct ranks *ranks, int rank, tutti_store_t *direct)
{
    return dies(ranks, rank, direct, 0, LOOPBACK_CONNECT);
}

/* The server takes the end of a connection for that of its process. */
static int closed(struct ranks *ranks, int rank, tutti_store_t *direct)
{
    tutti_comm_t *comm;
    const int failed = begin(ranks, rank, direct, &comm);
    if (failed)
        return failed;
    relay_set(relay->mode, RELAY_CLOSED);
    if (rank == 2)
        usleep(LOOKS_US);
    RANKS_CHECK(rank == 2 || sum(comm) == TUTTI_ERR_PEER_DEAD);
    RANKS_CHECK(rank < 2 || sum_shortly(comm) == TUTTI_ERR_TIMEOUT);
    return rank < 2 ? fault_is(ranks, rank, comm, TUTTI_ERR_PEER_DEAD, 2)
                    : fault_is(ranks, rank, comm, TUTTI_ERR_TIMEOUT, -1);
}

static int healed(struct ranks *ranks, int rank, tutti_store_t *direct)
{
    tutti_comm_t *comm;
    const int failed = begin(ranks, rank, direct, &comm);
    if (failed)
        return failed;
    if (rank == 2) {
        relay_set(relay->mode, RELAY_CLOSED);
        usleep(LOOKS_US);
        relay_set(relay->mode, RELAY_WHOLE);
    }
    RANKS_CHECK(sum(comm) == TUTTI_ERR_PEER_DEAD);
    return fault_is(ranks, rank, comm, TUTTI_ERR_PEER_DEAD, 2);
}

static int silent_store(struct ranks *ranks, int rank, tutti_store_t *direct)
{
    tutti_comm_t *comm;
    const int failed = begin(ranks, rank, direct, &comm);
    if (failed)
        return failed;
    relay_set(relay->mode, RELAY_SILENT);
    for (int late = 0; late < 3; late++) {
        if (rank == late)
            usleep(LOOKS_US);
        RANKS_CHECK(sum(comm) == TUTTI_OK);
    }
    tutti_comm_destroy(comm);
    return 0;
}

static int silent(struct ranks *ranks, int rank, tutti_store_t *direct)
{
    tutti_comm_t *comm;
    const int failed = begin(ranks, rank, direct, &comm);
    if (failed)
        return failed;
    relay_set(relay->mode, RELAY_SILENT);
    loopback_cut_hosts(loopback, 2, LOOPBACK_SILENT);
    RANKS_CHECK(ranks_meet(ranks, 2));
    RANKS_CHECK(sum_shortly(comm) == TUTTI_ERR_TIMEOUT);
    return fault_is(ranks, rank, comm, TUTTI_ERR_TIMEOUT, -1);
}

int main(int argc, char **argv)
{
    static const struct {
        const char *name, *group;
        ranks_fn *fn;
    } parts[] = {{"delayed", "closed", delayed},
                 {"in_meeting", "closed", in_meeting},
                 {"dies_at_address", "closed", dies_at_address},
                 {"dies_at_connect", "closed", dies_at_connect},
                 {"dies_connected", "closed", dies_connected},
                 {"first_dies", "closed", first_dies},
                 {"closed", "closed", closed},
                 {"healed", "silent", healed},
                 {"silent_store", "silent", silent_store},
                 {"silent", "silent", silent}};
    const int skip = ranks_skip_cuda("fabrics of CPU ranks");
    int failures = 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts && !skip; i++) {
        if (argc > 1 && strcmp(argv[1], parts[i].group) != 0)
            continue;
        struct ranks *ranks = ranks_create(3, 3, 0);
        loopback = loopback_create();
        loopback_set(loopback->silent_deaths, 1);
        relay = relay_start((uint16_t)atoi(strrchr(ranks->url, ':') + 1));
        const int failed = ranks_run(ranks, parts[i].fn);
        if (failed)
            fprintf(stderr, "%s failed\n", parts[i].name);
        failures += failed;
        relay_end(relay);
        ranks_destroy(ranks);
    }
    return skip ? skip : failures != 0;
}
