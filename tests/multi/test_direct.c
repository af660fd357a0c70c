/* SPDX-License-Identifier: MIT */
/* The option `direct`: what a communicator says of direct copies where they work, are switched off,
 * are not needed, or are refused on one rank. */
#include "ranks.h"

#include <errno.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { SIZE = 3, REFUSED = 1, COUNT = 100000, SECRET_CALL = 447 /* memfd_secret() */ };

static bool says(const tutti_comm_t *comm, const char *line)
{
    char text[4096];
    tutti_comm_describe(comm, text, sizeof text);
    const bool found = strstr(text, line) != NULL;
    if (!found)
        fprintf(stderr, "\"%s\" is not in:\n%s", line, text);
    return found;
}

/* A gather of long blocks. */
static bool gathers(tutti_comm_t *comm, int rank, int size)
{
    bool right = true;
    int32_t *send = malloc(COUNT * sizeof *send),
            *recv = calloc((size_t)size * COUNT, sizeof *recv);
    for (int i = 0; i < COUNT && send; i++)
        send[i] = rank * COUNT + i;
    right = send && recv &&
            tutti_gather(send, recv, COUNT, TUTTI_INT32, 0, comm, TUTTI_STREAM_DEFAULT) == TUTTI_OK;
    for (int i = 0; i < size * COUNT && right && rank == 0; i++)
        right = recv[i] == i;
    free(send);
    free(recv);
    return right;
}

static int join(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const struct {
        enum tutti_direct direct;
        const char *variable, *line;
    } rows[] = {
        {TUTTI_DIRECT_AUTO, NULL, "\ndirect_copies: yes\n"},
        {TUTTI_DIRECT_AUTO, "auto", "\ndirect_copies: yes\n"},
        {TUTTI_DIRECT_AUTO, "off", "\ndirect_copies: no (switched off)\n"},
        {TUTTI_DIRECT_AUTO, "1", "\ndirect_copies: yes\n"},
        {TUTTI_DIRECT_OFF, "on", "\ndirect_copies: no (switched off)\n"},
        {TUTTI_DIRECT_ON, "off", "\ndirect_copies: yes\n"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct tutti_comm_options options = {.struct_size = sizeof options,
                                                   .direct = rows[i].direct};
        tutti_comm_t *comm, *child;
        unsetenv("TUTTI_DIRECT");
        if (rows[i].variable)
            setenv("TUTTI_DIRECT", rows[i].variable, 1);
        RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
        RANKS_CHECK(says(comm, rows[i].line) && gathers(comm, rank, ranks->size));
        RANKS_CHECK(tutti_comm_dup(comm, NULL, &child) == TUTTI_OK);
        RANKS_CHECK(says(child, rows[i].line) && gathers(child, rank, ranks->size));
        tutti_comm_destroy(child);
        tutti_comm_destroy(comm);
    }
    unsetenv("TUTTI_DIRECT");
    return 0;
}

static int join_threads(struct ranks *ranks, int rank, tutti_store_t *store)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .direct = TUTTI_DIRECT_ON};
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    RANKS_CHECK(says(comm, "\ndirect_copies: not needed (no rank is in another process)\n"));
    RANKS_CHECK(gathers(comm, rank, ranks->size));
    tutti_comm_destroy(comm);
    return 0;
}

enum { MOST_BYTES = 600 * 1024 };

/* The byte i of the block that `from` sends to `to` in a round. */
static unsigned char byte_of(int round, int from, int to, size_t i)
{
    return (unsigned char)(i * 7 + i / 4096 + (size_t)(round * 31 + from * 13 + to * 5));
}

static void block_fill(unsigned char *block, size_t bytes, int round, int from, int to)
{
    for (size_t i = 0; i < bytes; i++)
        block[i] = byte_of(round, from, to, i);
}

static bool block_is(const unsigned char *block, size_t bytes, int round, int from, int to)
{
    size_t i = 0;
    while (i < bytes && block[i] == byte_of(round, from, to, i))
        i++;
    return i == bytes && block[bytes] == 0xee; /* nothing is written behind the block */
}

/* One call of each collective that moves blocks. The operand that receives has a byte more, which
 * stays. */
static bool moves(tutti_comm_t *comm, int rank, int size, int root, size_t bytes, int round,
                  uint32_t flags, unsigned char *all, unsigned char *more, unsigned char *one)
{
    const struct tutti_call_options options = {.struct_size = sizeof options, .flags = flags};
    const size_t n = (size_t)size;
    bool right = true;
    /* A gather, in place every other time. */
    memset(all, 0xee, n * bytes + 1);
    const bool in_place = round % 2 && rank == root;
    unsigned char *own = in_place ? all + (size_t)rank * bytes : one;
    block_fill(own, bytes, round, rank, root);
    right &= tutti_gather_with(own, all, bytes, TUTTI_UINT8, root, comm, TUTTI_STREAM_DEFAULT,
                               &options) == TUTTI_OK;
    for (int r = size - 1; r >= 0 && rank == root && right; r--) {
        right &= block_is(all + (size_t)r * bytes, bytes, round, r, root);
        all[(size_t)r * bytes] = 0xee;
    }
    /* A scatter. */
    for (int r = 0; r < size && rank == root; r++)
        block_fill(all + (size_t)r * bytes, bytes, round, root, r);
    memset(one, 0xee, bytes + 1);
    own = in_place ? all + (size_t)rank * bytes : one;
    right &= tutti_scatter_with(all, own, bytes, TUTTI_UINT8, root, comm, TUTTI_STREAM_DEFAULT,
                                &options) == TUTTI_OK;
    right &= in_place || block_is(one, bytes, round, root, rank);
    /* A broadcast. */
    memset(one, 0xee, bytes + 1);
    if (rank == root)
        block_fill(one, bytes, round, root, root);
    right &= tutti_broadcast_with(one, one, bytes, TUTTI_UINT8, root, comm, TUTTI_STREAM_DEFAULT,
                                  &options) == TUTTI_OK;
    right &= block_is(one, bytes, round, root, root);
    /* All to all, and all of the last block to all; in place every other time. */
    for (int r = 0; r < size; r++)
        block_fill(all + (size_t)r * bytes, bytes, round, rank, r);
    memset(more, 0xee, n * bytes + 1);
    right &= tutti_all_to_all_with(all, more, bytes, TUTTI_UINT8, comm, TUTTI_STREAM_DEFAULT,
                                   &options) == TUTTI_OK;
    for (int r = size - 1; r >= 0 && right; r--) {
        right &= block_is(more + (size_t)r * bytes, bytes, round, r, rank);
        more[(size_t)r * bytes] = 0xee;
    }
    own = round % 2 ? more + (size_t)rank * bytes : one;
    block_fill(own, bytes, round, rank, root);
    right &= tutti_all_gather_with(own, more, bytes, TUTTI_UINT8, comm, TUTTI_STREAM_DEFAULT,
                                   &options) == TUTTI_OK;
    for (int r = size - 1; r >= 0 && right; r--) {
        right &= block_is(more + (size_t)r * bytes, bytes, round, r, root);
        more[(size_t)r * bytes] = 0xee;
    }
    /* Messages around a ring. */
    const int to = (rank + 1) % size, from = (rank + size - 1) % size;
    memset(one, 0xee, bytes + 1);
    block_fill(all, bytes, round, rank, to);
    right &= tutti_group_start() == TUTTI_OK;
    right &= tutti_send_with(all, bytes, TUTTI_UINT8, to, comm, TUTTI_STREAM_DEFAULT, &options) ==
             TUTTI_OK;
    right &= tutti_recv_with(one, bytes, TUTTI_UINT8, from, comm, TUTTI_STREAM_DEFAULT, &options) ==
             TUTTI_OK;
    right &= tutti_group_end() == TUTTI_OK;
    return right && block_is(one, bytes, round, from, rank);
}

/* Long blocks of every root arrive whole; also if some ranks refuse to be read. */
static int move(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const size_t sizes[] = {32 * 1024, 100001, 256 * 1024 + 3, MOST_BYTES};
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .direct = TUTTI_DIRECT_ON};
    unsigned char *all = malloc((size_t)ranks->size * MOST_BYTES + 1);
    unsigned char *more = malloc((size_t)ranks->size * MOST_BYTES + 1);
    unsigned char *one = malloc(MOST_BYTES + 1);
    tutti_comm_t *comm;
    RANKS_CHECK(all && more && one);
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    for (int round = 0; round < 12; round++) {
        const int refuser = round / 4 - 1; /* no rank, rank 0, rank 1 */
        for (int root = 0; root < ranks->size; root++)
            RANKS_CHECK(moves(comm, rank, ranks->size, root, sizes[round % 4], round,
                              rank == refuser ? TUTTI_CALL_NO_ZERO_COPY : 0, all, more, one));
    }
    tutti_comm_destroy(comm);
    free(all);
    free(more);
    free(one);
    return 0;
}

/* Memory that, if secret, the kernel cannot read for another process, as memory of a device is.
 * NULL: this kernel has none of it. */
static void *memory_map(size_t bytes, bool secret)
{
    const int flags = secret ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
    const int fd = secret ? (int)syscall(SECRET_CALL, 0) : -1;
    if (secret && (fd < 0 || ftruncate(fd, (off_t)bytes) != 0))
        return NULL;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, flags, fd, 0);
    if (secret)
        close(fd);
    return memory == MAP_FAILED ? NULL : memory;
}

/* Operands that the kernel cannot reach on one rank move as without direct copies. */
static int move_secrets(struct ranks *ranks, int rank, tutti_store_t *store)
{
    enum { BYTES = 96 * 1024 };
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .direct = TUTTI_DIRECT_ON};
    const size_t many = (size_t)ranks->size * BYTES + 1;
    tutti_comm_t *comm;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    for (int keeper = 0; keeper < ranks->size; keeper++) {
        unsigned char *all = memory_map(many, rank == keeper);
        unsigned char *one = memory_map(BYTES + 1, rank == keeper);
        unsigned char *more = memory_map(many, false);
        all = all ? all : memory_map(many, false);
        one = one ? one : memory_map(BYTES + 1, false);
        RANKS_CHECK(all && one && more);
        for (int root = 0; root < ranks->size; root++)
            RANKS_CHECK(moves(comm, rank, ranks->size, root, BYTES, 0, 0, all, more, one));
        munmap(all, many);
        munmap(one, BYTES + 1);
        munmap(more, many);
    }
    tutti_comm_destroy(comm);
    return 0;
}

/* From now on the kernel refuses this process copies, as in many containers. */
static int copies_refuse(int error)
{
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | (uint32_t)error),
    };
    const struct sock_fprog program = {sizeof filter / sizeof *filter, filter};
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) || prctl(PR_SET_SECCOMP, 2, &program, 0, 0);
}

/* One rank is refused: all have the same answer, and only `on` needs another one. */
static int refused(struct ranks *ranks, int rank, tutti_store_t *store)
{
    static const char why[] = "rank 1 cannot copy rank 0's memory: the kernel refuses";
    struct tutti_comm_options options = {.struct_size = sizeof options, .direct = TUTTI_DIRECT_ON};
    tutti_comm_t *comm;
    RANKS_CHECK(rank != REFUSED || copies_refuse(EPERM) == 0);
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_ERR_DECLINED);
    RANKS_CHECK(strstr(tutti_last_error(), why) && strstr(tutti_last_error(), "TUTTI_DIRECT"));
    options.direct = TUTTI_DIRECT_AUTO;
    RANKS_CHECK(ranks_join(ranks, rank, store, &options, &comm) == TUTTI_OK);
    RANKS_CHECK(says(comm, why) && gathers(comm, rank, ranks->size));
    tutti_comm_destroy(comm);
    return 0;
}

static int run(int processes, ranks_fn *fn)
{
    struct ranks *ranks = ranks_create(SIZE, processes, 0);
    const int failures = ranks_run(ranks, fn);
    ranks_destroy(ranks);
    return failures;
}

int main(void)
{
    int failures = 0, skip = ranks_skip_cuda("direct copies are the CPU's");
    if (skip)
        return skip;
    failures += run(0, join_threads);
    skip = ranks_skip_direct();
    if (skip)
        return failures ? 1 : skip;
    failures += run(SIZE, join);
    failures += run(SIZE, refused);
    failures += run(SIZE, move);
    failures += run(2, join); /* two of the ranks are threads of one process */
    failures += run(2, move);
    failures += run(SIZE, move_secrets);
    struct ranks *ranks = ranks_create(2, 2, 0); /* with a core each they share the copies */
    failures += ranks_run(ranks, move);
    ranks_destroy(ranks);
    return failures ? 1 : 0;
}
