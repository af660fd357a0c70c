/* SPDX-License-Identifier: MIT */
/*
 * Communicators made of communicators: members and their order, what they inherit, what is refused,
 * life after the parent.
 *
 * usage: test_split threads|processes|mixed
 */
#include "device.h"
#include "ranks.h"
#include "tutti/recovery.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MANY = 40 };

static tutti_comm_t *const none;

/* Whether the communicator has these ranks of a larger one, in this order, and works. */
static bool is_of(tutti_comm_t *comm, const int *members, int size, int own)
{
    int32_t all[TUTTI_MAX_RANKS] = {0};
    int64_t long_send[9000], long_recv[9000];
    if (tutti_comm_world_size(comm) != size || members[tutti_comm_rank(comm)] != own)
        return false;
    all[tutti_comm_rank(comm)] = own;
    if (tutti_all_reduce(all, all, (size_t)size, TUTTI_INT32, TUTTI_SUM, comm,
                         TUTTI_STREAM_DEFAULT) != TUTTI_OK)
        return false;
    for (int i = 0; i < size; i++)
        if (all[i] != members[i])
            return false;
    int64_t sum = 0;
    for (int i = 0; i < size; i++)
        sum += members[i];
    for (int i = 0; i < 9000; i++)
        long_send[i] = own + i;
    if (tutti_all_reduce(long_send, long_recv, 9000, TUTTI_INT64, TUTTI_SUM, comm,
                         TUTTI_STREAM_DEFAULT) != TUTTI_OK)
        return false;
    for (int i = 0; i < 9000; i++)
        if (long_recv[i] != sum + (int64_t)i * size)
            return false;
    return tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK &&
           tutti_comm_status(comm, NULL) == TUTTI_OK;
}

static bool is_whole(tutti_comm_t *comm)
{
    int members[TUTTI_MAX_RANKS];
    for (int r = 0; r < TUTTI_MAX_RANKS; r++)
        members[r] = r;
    return is_of(comm, members, tutti_comm_world_size(comm), tutti_comm_rank(comm));
}

static bool describes(const tutti_comm_t *comm, const char *line)
{
    char text[4096];
    tutti_comm_describe(comm, text, sizeof text);
    return strstr(text, line);
}

/* Rows and columns; the parent ends first. */
static int grid(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const int columns = 2, row = rank / columns, column = rank % columns;
    int in_row[TUTTI_MAX_RANKS], in_column[TUTTI_MAX_RANKS], row_size = 0, column_size = 0;
    tutti_comm_t *comm, *along, *down;
    for (int r = 0; r < ranks->size; r++) {
        if (r / columns == row)
            in_row[row_size++] = r;
        if (r % columns == column)
            in_column[column_size++] = r;
    }
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_split(comm, row, rank, NULL, &along) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_split(comm, column, rank, NULL, &down) == TUTTI_OK);
    RANKS_CHECK(is_of(along, in_row, row_size, rank) && is_of(down, in_column, column_size, rank));
    char line[64];
    snprintf(line, sizeof line, "name: default/split-2.%d\n", column);
    RANKS_CHECK(describes(down, line) && describes(down, "generation: 2\n"));
    RANKS_CHECK(is_whole(comm));
    tutti_comm_destroy(comm);
    for (int i = 0; i < 10; i++)
        RANKS_CHECK(is_of(along, in_row, row_size, rank) &&
                    is_of(down, in_column, column_size, rank));
    tutti_comm_destroy(along);
    RANKS_CHECK(is_of(down, in_column, column_size, rank));
    tutti_comm_destroy(down);
    return 0;
}

/* Keys turn the order round; equal keys leave it; some ranks stay outside. */
static int order(struct ranks *ranks, int rank, tutti_store_t *store)
{
    int members[TUTTI_MAX_RANKS], size = 0;
    tutti_comm_t *comm, *sub, *again;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    for (int r = ranks->size - 1; r >= 0; r--)
        members[size++] = r;
    RANKS_CHECK(tutti_comm_split(comm, 7, -rank, NULL, &sub) == TUTTI_OK);
    RANKS_CHECK(is_of(sub, members, size, rank));

    /* of a split one, without the last rank of that one, which is rank 0 */
    RANKS_CHECK(tutti_comm_split(sub, rank == 0 ? TUTTI_NO_COLOR : INT32_MAX, 5, NULL, &again) ==
                TUTTI_OK);
    RANKS_CHECK(rank == 0 ? again == none : is_of(again, members, size - 1, rank));
    tutti_comm_destroy(again);
    RANKS_CHECK(tutti_comm_split(comm, -5, 0, NULL, &again) == TUTTI_OK && again == none);
    RANKS_CHECK(is_whole(comm));
    tutti_comm_destroy(comm);
    RANKS_CHECK(is_of(sub, members, size, rank));
    tutti_comm_destroy(sub);
    return 0;
}

/* What a new communicator has from its parent, and what the options change. */
static int inherit(struct ranks *ranks, int rank, tutti_store_t *store)
{
    int leaves[TUTTI_MAX_RANKS], length = 0;
    char line[64 + 4 * TUTTI_MAX_RANKS];
    for (int r = 0; r < ranks->size; r++)
        leaves[r] = (r + 1) % ranks->size;
    struct tutti_comm_options options = {.struct_size = sizeof options,
                                         .name = "parent",
                                         .arena_bytes = 128 << 10,
                                         .timeout_ms = RANKS_TIMEOUT_MS,
                                         .leaf_order = leaves};
    tutti_comm_t *comm, *sub, *dup;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_split(comm, 0, 0, NULL, &sub) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_dup(comm, NULL, &dup) == TUTTI_OK);
    RANKS_CHECK(describes(sub, "name: parent/split-1.0\n") && describes(dup, "name: parent/dup-2"));
    RANKS_CHECK(describes(sub, "arena_bytes: 131072\n") && describes(dup, "arena_bytes: 131072\n"));
    RANKS_CHECK(describes(dup, "timeout_ms: 60000\n"));
    length = snprintf(line, sizeof line, "leaf_order:");
    for (int r = 0; r < ranks->size; r++)
        length += snprintf(line + length, sizeof line - (size_t)length, " %d", leaves[r]);
    RANKS_CHECK(describes(dup, line) && is_whole(dup));
    RANKS_CHECK(ranks->size == 1 || !describes(sub, line));
    tutti_comm_destroy(dup);
    options = (struct tutti_comm_options){.struct_size = sizeof options,
                                          .name = "own",
                                          .arena_bytes = 256 << 10,
                                          .timeout_ms = 70000};
    RANKS_CHECK(tutti_comm_dup(sub, &options, &dup) == TUTTI_OK);
    RANKS_CHECK(describes(dup, "name: own\n") && describes(dup, "arena_bytes: 262144\n") &&
                describes(dup, "timeout_ms: 70000\n") && is_whole(dup));
    tutti_comm_destroy(dup);
    tutti_comm_destroy(sub);
    tutti_comm_destroy(comm);
    return 0;
}

static int refused(struct ranks *ranks, int rank, tutti_comm_t *comm,
                   const struct tutti_comm_options *options, enum tutti_status expected,
                   const char *words)
{
    tutti_comm_t *sub;
    const enum tutti_status status = tutti_comm_split(comm, rank % 2, 0, options, &sub);
    RANKS_CHECK(status == expected && sub == none);
    RANKS_CHECK(strstr(tutti_last_error(), words));
    return 0;
}

/* Refused by this rank alone, or by all ranks because one is wrong. The parent works on. */
static int refuse(struct ranks *ranks, int rank, tutti_store_t *store)
{
    int wrong_order[TUTTI_MAX_RANKS] = {5};
    struct tutti_comm_options options = {.struct_size = sizeof options, .defer = true};
    tutti_comm_t *comm, *sub, *unmet;
    RANKS_CHECK(tutti_comm_split(NULL, 0, 0, NULL, &sub) == TUTTI_ERR_INVALID && sub == none);
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &unmet) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_dup(unmet, NULL, &sub) == TUTTI_ERR_INVALID && sub == none);
    tutti_comm_destroy(unmet);
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_split(comm, 0, 0, NULL, NULL) == TUTTI_ERR_INVALID);
    int failed = refused(ranks, rank, comm, &options, TUTTI_ERR_INVALID, "defer");
    options =
        (struct tutti_comm_options){.struct_size = sizeof options, .device = TUTTI_DEVICE_CUDA};
    failed = failed ? failed : refused(ranks, rank, comm, &options, TUTTI_ERR_INVALID, "device");
    options = (struct tutti_comm_options){.struct_size = sizeof options, .name = "a/b"};
    failed = failed ? failed : refused(ranks, rank, comm, &options, TUTTI_ERR_INVALID, "a/b");
    options = (struct tutti_comm_options){.struct_size = sizeof options};
    if (rank == 0)
        options.leaf_order = wrong_order;
    failed =
        failed ? failed : refused(ranks, rank, comm, &options, TUTTI_ERR_INVALID, "leaf_order");
    RANKS_CHECK(failed || rank == 0 || strstr(tutti_last_error(), "rank 0: "));
    /* Ranks 0 and 2 have one color; the others learn of their difference. */
    options = (struct tutti_comm_options){.struct_size = sizeof options};
    options.arena_bytes = rank == 0 ? 128 << 10 : 0;
    if (!failed && ranks->size > 2)
        failed = refused(ranks, rank, comm, &options, TUTTI_ERR_MISMATCH, "arena");
    if (failed)
        return failed;
    RANKS_CHECK(is_whole(comm));
    RANKS_CHECK(tutti_comm_dup(comm, NULL, &sub) == TUTTI_OK && is_whole(sub));
    tutti_comm_destroy(sub);
    RANKS_CHECK(tutti_comm_finalize(comm, 0) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_dup(comm, NULL, &sub) == TUTTI_ERR_INVALID && sub == none);
    tutti_comm_destroy(comm);
    return 0;
}

static int descriptors(void)
{
    int count = 0;
    DIR *directory = opendir("/proc/self/fd");
    while (directory && readdir(directory))
        count++;
    if (directory)
        closedir(directory);
    return count;
}

/* Each has one descriptor of its own, its recorder's; no store, no socket. */
static int many(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .arena_bytes = 64 << 10};
    tutti_comm_t *comm, *dups[MANY];
    int64_t keys, keys_after;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    RANKS_CHECK(tutti_store_num_keys(store, &keys) == TUTTI_OK);
    const int before = descriptors();
    for (int i = 0; i < MANY; i++)
        RANKS_CHECK(tutti_comm_dup(comm, &options, &dups[i]) == TUTTI_OK);
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
    if (ranks->processes == ranks->size)
        RANKS_CHECK(descriptors() - before == MANY);
    RANKS_CHECK(tutti_store_num_keys(store, &keys_after) == TUTTI_OK && keys_after == keys);
    for (int i = MANY - 1; i >= 0; i--)
        RANKS_CHECK(is_whole(dups[i]));
    for (int i = 0; i < MANY; i++)
        tutti_comm_destroy(dups[(i * 7 + rank) % MANY]);
    RANKS_CHECK(is_whole(comm));
    tutti_comm_destroy(comm);
    return 0;
}

/* Ranks leave a split communicator; the others shrink it. The parent's failure is none of its. */
static int shrink(struct ranks *ranks, int rank, tutti_store_t *store)
{
    int members[TUTTI_MAX_RANKS], size = 0;
    tutti_comm_t *comm, *sub, *less;
    for (int r = ranks->size - 1; r > 0; r--)
        members[size++] = r;
    RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_split(comm, 0, -rank, NULL, &sub) == TUTTI_OK);
    if (rank == 0) /* the last rank there */
        tutti_comm_destroy(sub);
    else
        RANKS_CHECK(tutti_comm_shrink(sub, store, NULL, &less, NULL) == TUTTI_OK);
    RANKS_CHECK(rank == 0 || is_of(less, members, size, rank));
    RANKS_CHECK(is_whole(comm));
    ranks_raise(ranks, 0);
    RANKS_CHECK(ranks_await(ranks, 0, (uint32_t)ranks->size));
    tutti_comm_abort(comm);
    RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_ERR_ABORTED);
    tutti_comm_destroy(comm);
    if (rank == 0)
        return 0;
    RANKS_CHECK(is_of(less, members, size, rank));
    tutti_comm_destroy(sub);
    RANKS_CHECK(is_of(less, members, size, rank));
    tutti_comm_destroy(less);
    return 0;
}

/* Of devices: what is inherited, what is refused; nothing is in the store, and the parent counts
 * its operations as before. */
static int on_devices(struct ranks *ranks, int rank, tutti_store_t *store)
{
    int leaves[TUTTI_MAX_RANKS];
    for (int r = 0; r < ranks->size; r++)
        leaves[r] = (r + 1) % ranks->size;
    struct tutti_comm_options options = {.struct_size = sizeof options,
                                         .name = "parent",
                                         .buffer_size = 1 << 20,
                                         .timeout_ms = RANKS_TIMEOUT_MS,
                                         .leaf_order = leaves};
    tutti_comm_t *comm, *dup, *sub;
    int64_t keys, keys_after;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    for (int i = 0; i < 5; i++)
        RANKS_CHECK(is_whole(comm));
    RANKS_CHECK(tutti_store_num_keys(store, &keys) == TUTTI_OK);
    RANKS_CHECK(tutti_comm_dup(comm, NULL, &dup) == TUTTI_OK && is_whole(dup));
    RANKS_CHECK(describes(dup, "name: parent/dup-1\n") && describes(dup, "leaf_order: 1 "));
    RANKS_CHECK(describes(dup, "device: cuda") && describes(dup, "timeout_ms: 60000\n"));
    RANKS_CHECK(tutti_comm_buffer_size(dup) == 1 << 20);
    for (int i = 0; i < 3; i++)
        RANKS_CHECK(is_whole(comm) && is_whole(dup));
    RANKS_CHECK(tutti_comm_dup(dup, NULL, &sub) == TUTTI_OK && is_whole(sub));
    RANKS_CHECK(tutti_store_num_keys(store, &keys_after) == TUTTI_OK && keys_after == keys);
    tutti_comm_destroy(sub);
    tutti_comm_destroy(dup);

    leaves[0] = 9;
    options = (struct tutti_comm_options){.struct_size = sizeof options,
                                          .leaf_order = rank == 0 ? leaves : NULL};
    int failed = refused(ranks, rank, comm, &options, TUTTI_ERR_INVALID, "leaf_order");
    options = (struct tutti_comm_options){.struct_size = sizeof options, .arena_bytes = 65536};
    failed = failed ? failed : refused(ranks, rank, comm, &options, TUTTI_ERR_INVALID, "arena");
    RANKS_CHECK(failed || is_whole(comm));
    tutti_comm_destroy(comm);
    return failed;
}

static int world_run(const char *kind, int size, ranks_fn *fn)
{
    int processes = strcmp(kind, "threads") == 0 ? 0 : size;
    if (strcmp(kind, "mixed") == 0)
        processes = (size + 1) / 2;
    struct ranks *ranks = ranks_create(size, processes, 0);
    int failures = ranks_run(ranks, fn);
    ranks_destroy(ranks);
    return failures;
}

int main(int argc, char **argv)
{
    static ranks_fn *const parts[] = {grid, order, inherit, refuse, many};
    int failures = 0;
    if (argc != 2)
        return 2;
    if (device_is_cuda()) {
        static const struct {
            ranks_fn *fn;
            int size;
        } worlds[] = {{grid, 1},  {grid, 3},  {grid, 4},       {grid, 6},   {grid, 8},
                      {order, 1}, {order, 3}, {on_devices, 4}, {shrink, 2}, {shrink, 4}};
        const int skip = ranks_skip(4);
        for (size_t i = 0; i < sizeof worlds / sizeof *worlds && !skip; i++)
            if (ranks_fit(worlds[i].size))
                failures += world_run(argv[1], worlds[i].size, worlds[i].fn);
        return failures ? 1 : skip;
    }
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int size = 1; size <= 5; size++)
            failures += world_run(argv[1], size, parts[i]);
    failures += world_run(argv[1], 4, shrink);
    failures += world_run(argv[1], ranks_short() ? 9 : 33, grid);
    return failures ? 1 : 0;
}
