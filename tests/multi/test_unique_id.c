/* SPDX-License-Identifier: MIT */
/*
 * Communicators from an id: made by a rank or by another process, used once, wrong, or of a process
 * that has ended; at what address they are served, or without any.
 *
 * usage: test_unique_id threads|processes|no_network
 */
#include "ranks.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { IDS = 8, SHORT_MS = 300 };

static tutti_comm_t *const none;

static bool works(tutti_comm_t *comm)
{
    int32_t one = 1, sum = 0;
    return tutti_all_reduce(&one, &sum, 1, TUTTI_INT32, TUTTI_SUM, comm, TUTTI_STREAM_DEFAULT) ==
               TUTTI_OK &&
           sum == tutti_comm_world_size(comm);
}

/* In the shared bytes. */
static struct tutti_unique_id *ids_of(struct ranks *ranks)
{
    return (struct tutti_unique_id *)(void *)ranks->shared;
}

static enum tutti_status create(const struct tutti_unique_id *id, int rank, int size,
                                int64_t timeout_ms, tutti_comm_t **comm)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .timeout_ms = timeout_ms};
    return tutti_comm_create_from_id(id, rank, size, &options, comm);
}

/* Rank 0 makes the ids. All make several communicators, in any order. */
static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_unique_id *ids = ids_of(ranks);
    tutti_comm_t *comms[IDS], *again;
    (void)store;
    for (int i = 0; i < IDS && rank == 0; i++) {
        RANKS_CHECK(tutti_unique_id_create(&ids[i]) == TUTTI_OK);
        RANKS_CHECK(i == 0 || memcmp(&ids[i], &ids[i - 1], sizeof *ids) != 0);
    }
    if (rank == 0)
        ranks_raise(ranks, 0);
    RANKS_CHECK(ranks_await(ranks, 0, 1));
    for (int i = 0; i < IDS; i++) {
        RANKS_CHECK(create(&ids[i], rank, ranks->size, RANKS_TIMEOUT_MS, &comms[i]) == TUTTI_OK);
        /* whether the others have come back or not */
        RANKS_CHECK(create(&ids[i], rank, ranks->size, RANKS_TIMEOUT_MS, &again) ==
                        TUTTI_ERR_INVALID &&
                    again == none);
        RANKS_CHECK(strstr(tutti_last_error(), "already"));
    }
    for (int i = 0; i < IDS; i++)
        RANKS_CHECK(tutti_comm_rank(comms[i]) == rank && works(comms[i]));
    tutti_comm_t *dup;
    RANKS_CHECK(tutti_comm_dup(comms[0], NULL, &dup) == TUTTI_OK && works(dup));
    tutti_comm_destroy(dup);
    for (int i = 0; i < IDS; i++)
        tutti_comm_destroy(comms[i]);
    return 0;
}

/* The first process made the id, and is no rank. A rank may make ids of its own. */
static int outside(struct ranks *ranks, int rank, tutti_store_t *store)
{
    struct tutti_unique_id own;
    tutti_comm_t *comm;
    (void)store;
    RANKS_CHECK(create(&ids_of(ranks)[0], rank, ranks->size, RANKS_TIMEOUT_MS, &comm) == TUTTI_OK);
    RANKS_CHECK(works(comm));
    tutti_comm_destroy(comm);
    RANKS_CHECK(tutti_unique_id_create(&own) == TUTTI_OK);
    RANKS_CHECK(create(&own, 0, 1, RANKS_TIMEOUT_MS, &comm) == TUTTI_OK && works(comm));
    tutti_comm_destroy(comm);
    return 0;
}

/* A rank does not come; then all come with the same id. */
static int late(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    const struct tutti_unique_id *id = &ids_of(ranks)[1];
    (void)store;
    if (rank > 0) {
        RANKS_CHECK(create(id, rank, ranks->size, SHORT_MS, &comm) == TUTTI_ERR_TIMEOUT);
        /* On busy cores the store itself may be late. */
        RANKS_CHECK(comm == none && (strstr(tutti_last_error(), "rank 0") ||
                                     strstr(tutti_last_error(), "answer in time")));
    }
    ranks_raise(ranks, 1);
    RANKS_CHECK(ranks_await(ranks, 1, (uint32_t)ranks->size));
    RANKS_CHECK(create(id, rank, ranks->size, RANKS_TIMEOUT_MS, &comm) == TUTTI_OK && works(comm));
    tutti_comm_destroy(comm);
    return 0;
}

/* The ranks pass different world sizes. */
static int disagree(struct ranks *ranks, int rank, tutti_store_t *store)
{
    tutti_comm_t *comm;
    (void)store;
    RANKS_CHECK(create(&ids_of(ranks)[2], rank, ranks->size + (rank == 1), RANKS_TIMEOUT_MS,
                       &comm) == TUTTI_ERR_MISMATCH);
    RANKS_CHECK(comm == none && strstr(tutti_last_error(), "world size"));
    return 0;
}

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            fprintf(stderr, "line %d: %s [%s]\n", __LINE__, #condition, tutti_last_error());       \
            return 1;                                                                              \
        }                                                                                          \
    } while (0)

static int refuse(void)
{
    struct tutti_unique_id id = {{0}}, changed;
    struct tutti_comm_options options = {.struct_size = sizeof options, .defer = true};
    tutti_comm_t *comm;
    CHECK(tutti_unique_id_create(NULL) == TUTTI_ERR_INVALID);
    CHECK(tutti_comm_create_from_id(&id, 0, 1, NULL, &comm) == TUTTI_ERR_INVALID && comm == none);
    CHECK(strstr(tutti_last_error(), "no id"));
    CHECK(tutti_unique_id_create(&id) == TUTTI_OK);
    CHECK(tutti_comm_create_from_id(NULL, 0, 1, NULL, &comm) == TUTTI_ERR_INVALID);
    CHECK(tutti_comm_create_from_id(&id, 0, 1, NULL, NULL) == TUTTI_ERR_INVALID);
    CHECK(tutti_comm_create_from_id(&id, 0, 1, &options, &comm) == TUTTI_ERR_INVALID);
    CHECK(strstr(tutti_last_error(), "defer"));
    for (size_t i = 0; i < sizeof id; i++) {
        changed = id;
        changed.bytes[i] ^= 1;
        CHECK(tutti_comm_create_from_id(&changed, 0, 1, NULL, &comm) == TUTTI_ERR_INVALID);
    }
    CHECK(tutti_comm_create_from_id(&id, 1, 1, NULL, &comm) == TUTTI_ERR_INVALID);
    CHECK(tutti_comm_create_from_id(&id, 0, 1, NULL, &comm) == TUTTI_OK && works(comm));
    tutti_comm_destroy(comm);
    return 0;
}

/* The process that made the id has ended: known from the id, or, where it was not waited for, from
 * its socket. */
static int ended(void)
{
    struct tutti_unique_id id;
    tutti_comm_t *comm;
    int pipes[2];
    CHECK(pipe(pipes) == 0);
    const pid_t child = fork();
    if (child == 0) {
        if (tutti_unique_id_create(&id) != TUTTI_OK ||
            write(pipes[1], &id, sizeof id) != (ssize_t)sizeof id)
            _exit(1);
        _exit(0);
    }
    CHECK(read(pipes[0], &id, sizeof id) == (ssize_t)sizeof id);
    CHECK(waitpid(child, NULL, 0) == child);
    CHECK(tutti_comm_create_from_id(&id, 0, 2, NULL, &comm) == TUTTI_ERR_PEER_DEAD && comm == none);
    CHECK(strstr(tutti_last_error(), "made the id"));
    close(pipes[0]);
    close(pipes[1]);
    return 0;
}

/* Whether a process that makes its first id with this TUTTI_ID_ADDRESS is told so. */
static int address_is(const char *named, enum tutti_status expected, const char *text)
{
    const pid_t child = fork();
    int how;
    if (child == 0) {
        struct tutti_unique_id id;
        tutti_comm_t *comm;
        setenv("TUTTI_ID_ADDRESS", named, 1);
        CHECK(tutti_unique_id_create(&id) == expected);
        if (expected != TUTTI_OK) {
            CHECK(strstr(tutti_last_error(), "TUTTI_ID_ADDRESS"));
            CHECK(strstr(tutti_last_error(), text));
            setenv("TUTTI_ID_ADDRESS", "127.0.0.1", 1); /* it may try again */
            CHECK(tutti_unique_id_create(&id) == TUTTI_OK);
        }
        CHECK(tutti_comm_create_from_id(&id, 0, 1, NULL, &comm) == TUTTI_OK && works(comm));
        tutti_comm_destroy(comm);
        _exit(0);
    }
    CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0);
    return 0;
}

static int addresses(void)
{
    return address_is("127.0.0.3", TUTTI_OK, "") || address_is("lo", TUTTI_OK, "") ||
           address_is("10.9.0", TUTTI_ERR_INVALID, "neither an IP address nor an interface") ||
           address_is("eth99", TUTTI_ERR_INVALID, "eth99") ||
           address_is("0.0.0.0", TUTTI_ERR_INVALID, "one interface") ||
           address_is("::", TUTTI_ERR_INVALID, "one interface") ||
           address_is("fe80::1", TUTTI_ERR_INVALID, "link") ||
           address_is("192.0.2.7", TUTTI_ERR_SYSTEM, "192.0.2.7"); /* of documents */
}

/* Where no_network.sh has taken loopback down: ranks of this host need none. */
static int without_network(void)
{
    struct tutti_unique_id id;
    pid_t pids[3];
    int how;
    setenv("TUTTI_ID_ADDRESS", "127.0.0.1", 1);
    CHECK(tutti_unique_id_create(&id) == TUTTI_ERR_SYSTEM);
    CHECK(strstr(tutti_last_error(), "the loopback interface is down"));
    unsetenv("TUTTI_ID_ADDRESS");
    CHECK(tutti_unique_id_create(&id) == TUTTI_OK);
    for (int r = 0; r < 3; r++) {
        pids[r] = fork();
        if (pids[r] == 0) {
            tutti_comm_t *comm, *dup;
            CHECK(create(&id, r, 3, RANKS_TIMEOUT_MS, &comm) == TUTTI_OK && works(comm));
            CHECK(tutti_comm_dup(comm, NULL, &dup) == TUTTI_OK && works(dup));
            tutti_comm_destroy(dup);
            tutti_comm_destroy(comm);
            _exit(0);
        }
    }
    for (int r = 0; r < 3; r++)
        CHECK(waitpid(pids[r], &how, 0) == pids[r] && how == 0);
    return 0;
}

int main(int argc, char **argv)
{
    static ranks_fn *const parts[] = {live, late, disagree, outside};
    int failures = 0;
    if (argc != 2)
        return 2;
    int skip = ranks_skip_cuda("it is about the meeting alone");
    if (skip)
        return skip;
    if (strcmp(argv[1], "no_network") == 0)
        return without_network();
    const bool threads = strcmp(argv[1], "threads") == 0;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int size = 2; size <= 4; size++) {
            struct ranks *ranks =
                ranks_create(size, threads ? 0 : size, IDS * sizeof(struct tutti_unique_id));
            for (int j = 0; j < IDS; j++)
                CHECK(tutti_unique_id_create(&ids_of(ranks)[j]) == TUTTI_OK);
            failures += ranks_run(ranks, parts[i]);
            ranks_destroy(ranks);
        }
    return failures || refuse() || (!threads && (ended() || addresses()));
}
