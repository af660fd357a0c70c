/* SPDX-License-Identifier: MIT */
/*
 * What a communicator of several hosts costs, for the model of docs/scale.md: `scale.py measure`
 * runs it. The ranks are processes of this machine; TUTTI_HOST_ID makes their hosts, and the fabric
 * of the tests joins them over Unix sockets. So what passes the loopback interface is the traffic
 * of the tcp store, which the parent serves.
 *
 * usage: scale RANKS HOSTS, in a network namespace of its own
 * Prints JSON: bytes, packets and the server's CPU time until all have a communicator, the private
 * memory of the first rank before and after, and the messages between hosts of an all-reduce.
 */
#include "../tests/fabric/loopback_fabric.h"
#include "now.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SMALL = 2, LARGE = 1 << 18, SIZES = 2, TIMEOUT_MS = 120000 };
static const size_t counts[SIZES] = {SMALL, LARGE};

/* In memory that all share. */
static struct shared {
    struct loopback *loopback;
    int64_t private_kib[2];
    uint64_t messages[SIZES], bytes[SIZES];
    int ready, begun, arrivals;
} * shared;

struct traffic {
    uint64_t bytes, packets;
    int64_t server_us;
};

static void die(const char *what)
{
    fprintf(stderr, "scale: %s: %s\n", what, tutti_last_error());
    exit(1);
}

static struct traffic traffic_now(void)
{
    struct traffic now = {0};
    struct rusage usage;
    char line[512];
    FILE *file = fopen("/proc/net/dev", "r");
    while (file && fgets(line, sizeof line, file))
        sscanf(line, " lo: %" SCNu64 " %" SCNu64, &now.bytes, &now.packets);
    if (file)
        fclose(file);
    getrusage(RUSAGE_SELF, &usage);
    now.server_us = (usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) * 1000000 +
                    usage.ru_utime.tv_usec + usage.ru_stime.tv_usec;
    return now;
}

static int64_t private_kib(void)
{
    char line[128];
    int64_t sum = 0, kib;
    FILE *file = fopen("/proc/self/smaps_rollup", "r");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, "Private_%*[CD]%*[a-z]: %" SCNd64, &kib) == 1)
            sum += kib;
    if (file)
        fclose(file);
    return sum;
}

static void messages_now(uint64_t *messages, uint64_t *bytes)
{
    *messages = *bytes = 0;
    for (int i = 0; i < LOOPBACK_RANKS * LOOPBACK_RANKS; i++) {
        *messages += loopback_get((&shared->loopback->messages[0][0])[i]);
        *bytes += loopback_get((&shared->loopback->bytes[0][0])[i]);
    }
}

/* Waits until all ranks have come. */
static void meet(int ranks)
{
    static int meetings;
    meetings++;
    __atomic_add_fetch(&shared->arrivals, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&shared->arrivals, __ATOMIC_SEQ_CST) < meetings * ranks)
        usleep(500);
}

/* The messages of one all-reduce. A rank has begun all of its own when the call returns. */
static void count_messages(tutti_comm_t *comm, int rank, int ranks, int which)
{
    static float buffer[LARGE];
    uint64_t before[2] = {0}, after[2];
    meet(ranks);
    if (rank == 0)
        messages_now(&before[0], &before[1]);
    meet(ranks);
    if (tutti_all_reduce(buffer, buffer, counts[which], TUTTI_FLOAT32, TUTTI_SUM, comm,
                         TUTTI_STREAM_DEFAULT))
        die("all_reduce");
    meet(ranks);
    if (rank != 0)
        return;
    messages_now(&after[0], &after[1]);
    shared->messages[which] = after[0] - before[0];
    shared->bytes[which] = after[1] - before[1];
}

static int be_rank(int rank, int ranks, int hosts, const char *url)
{
    struct tutti_comm_options options = {.struct_size = sizeof options, .timeout_ms = TIMEOUT_MS};
    tutti_store_t *store;
    tutti_comm_t *comm;
    char host[16];
    snprintf(host, sizeof host, "%d", rank * hosts / ranks);
    setenv("TUTTI_HOST_ID", host, 1);
    if (loopback_open(shared->loopback, rank, &options.fabric) ||
        tutti_store_open(url, TIMEOUT_MS, &store))
        die("set-up");
    if (rank == 0)
        shared->private_kib[0] = private_kib();
    if (tutti_comm_create(store, rank, ranks, &options, &comm))
        die("tutti_comm_create");
    if (rank == 0)
        shared->private_kib[1] = private_kib();
    __atomic_add_fetch(&shared->ready, 1, __ATOMIC_SEQ_CST);
    while (!__atomic_load_n(&shared->begun, __ATOMIC_SEQ_CST)) /* the parent reads its counters */
        usleep(500);
    for (int i = 0; i < SIZES; i++)
        count_messages(comm, rank, ranks, i);
    tutti_comm_destroy(comm);
    tutti_fabric_close(options.fabric);
    tutti_store_close(store);
    return 0;
}

int main(int argc, char **argv)
{
    const int ranks = argc == 3 ? atoi(argv[1]) : 0, hosts = argc == 3 ? atoi(argv[2]) : 0;
    tutti_store_t *store;
    int status, failed = 0, gate[2];
    char url[128];
    if (hosts < 1 || ranks < hosts || ranks > LOOPBACK_RANKS || pipe(gate) != 0) {
        fprintf(stderr, "usage: scale RANKS HOSTS\n");
        return 2;
    }
    shared = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        die("mmap");
    shared->loopback = loopback_create();
    for (int rank = 0; rank < ranks; rank++)
        if (fork() == 0) {
            close(gate[1]);
            if (read(gate[0], url, sizeof url) != sizeof url)
                exit(1);
            exit(be_rank(rank, ranks, hosts, url));
        }
    if (tutti_store_open("tcp://127.0.0.1:0?server=1", TIMEOUT_MS, &store))
        die("store");
    snprintf(url, sizeof url, "%s", tutti_store_url(store));
    const struct traffic before = traffic_now();
    const int64_t begun = now_ns();
    for (int rank = 0; rank < ranks; rank++)
        if (write(gate[1], url, sizeof url) != sizeof url)
            die("write");
    while (__atomic_load_n(&shared->ready, __ATOMIC_SEQ_CST) < ranks &&
           now_ns() - begun < 60000000000)
        usleep(200);
    const struct traffic after = traffic_now();
    const double ms = (double)(now_ns() - begun) * 1e-6;
    __atomic_store_n(&shared->begun, 1, __ATOMIC_SEQ_CST);
    while (wait(&status) > 0)
        failed |= status;
    printf("{\"ranks\": %d, \"hosts\": %d, \"setup_ms\": %.1f, \"store_bytes\": %" PRIu64
           ", \"store_packets\": %" PRIu64 ", \"server_us\": %" PRId64 ", \"memory_kib\": %" PRId64,
           ranks, hosts, ms, after.bytes - before.bytes, after.packets - before.packets,
           after.server_us - before.server_us, shared->private_kib[1] - shared->private_kib[0]);
    for (int i = 0; i < SIZES; i++)
        printf(", \"messages_%zu\": %" PRIu64 ", \"bytes_%zu\": %" PRIu64,
               counts[i] * sizeof(float), shared->messages[i], counts[i] * sizeof(float),
               shared->bytes[i]);
    printf("}\n");
    tutti_store_close(store);
    return failed != 0;
}
