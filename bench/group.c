/* SPDX-License-Identifier: MIT */
/*
 * What a process group costs: how long a caller is kept by submitting, with the group's thread
 * asleep and with it awake, and how long an operation takes from its submission until its result
 * is there; then the same of sparse sums. Rank 0 prints medians; float32 sums, process ranks, left
 * to the scheduler.
 */
#include "stats.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <tutti/pg.h>

enum { MAX_RANKS = 64, LIMIT_S = 120, BATCH = 200, BATCHES = 20, ASLEEP = 200 };
enum { ROWS = 1000000, WIDTH = 64, TURNS = 50 }; /* of sparse tensors */

struct rank {
    tutti_pg_t *pg;
    int rank;
    float *data;
    struct samples samples;
};

static double now_us(void)
{
    struct timespec now;

    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec * 1e6 + (double)now.tv_nsec * 1e-3;
}

static void require(int good)
{
    if (good)
        return;
    fprintf(stderr, "group: %s\n", tutti_last_error());
    _exit(EXIT_FAILURE);
}

static tutti_work_t *submit(const struct rank *self, float *data, int64_t count)
{
    const struct tutti_tensor tensor = {.struct_size = sizeof(tensor),
                                        .data = data,
                                        .dtype = TUTTI_FLOAT32,
                                        .dims = 1,
                                        .sizes = &count};
    tutti_work_t *work;

    require(tutti_pg_all_reduce(self->pg, &tensor, 1, TUTTI_SUM, NULL, &work) == TUTTI_OK);
    return work;
}

static void await(tutti_work_t *work)
{
    require(tutti_work_result(work, 0) == TUTTI_OK);
    tutti_work_destroy(work);
}

static void report(struct rank *self, const char *what)
{
    if (self->rank == 0)
        printf("%-40s %10.2f us\n", what, samples_median(&self->samples));
    samples_fini(&self->samples);
    self->samples = (struct samples){0};
}

/* Each call by itself. */
static void submit_measure(struct rank *self)
{
    tutti_work_t *works[BATCH];

    for (int i = 0; i < ASLEEP; i++) {
        usleep(2000);
        double begun = now_us();
        works[0] = submit(self, self->data, 1);
        require(samples_add(&self->samples, now_us() - begun) == 0);
        await(works[0]);
    }
    report(self, "submit, the group's thread asleep");
    for (int i = 0; i < BATCHES; i++) {
        for (int k = 0; k < BATCH; k++) {
            double begun = now_us();
            works[k] = submit(self, &self->data[k], 1);
            require(samples_add(&self->samples, now_us() - begun) == 0);
        }
        for (int k = 0; k < BATCH; k++)
            await(works[k]);
    }
    report(self, "submit, one after the other");
}

static void latency_measure(struct rank *self, int64_t bytes)
{
    char what[64];
    int turns = bytes < 1 << 20 ? 1000 : 100;

    for (int i = -turns / 10; i < turns; i++) {
        double begun = now_us();
        await(submit(self, self->data, bytes / (int64_t)sizeof(float)));
        if (i >= 0)
            require(samples_add(&self->samples, now_us() - begun) == 0);
    }
    snprintf(what, sizeof(what), "all_reduce of %lld bytes", (long long)bytes);
    report(self, what);
}

/* Random rows, not sorted. */
static void sparse_measure(struct rank *self, size_t nnz)
{
    static const int64_t sizes[] = {ROWS, WIDTH};
    int64_t *indices = malloc(nnz * sizeof(*indices));
    struct tutti_sparse_tensor tensor = {.struct_size = sizeof(tensor),
                                         .dtype = TUTTI_FLOAT32,
                                         .sparse_dim = 1,
                                         .dense_dim = 1,
                                         .sizes = sizes,
                                         .nnz = nnz,
                                         .indices = indices,
                                         .values = self->data};
    struct samples calls = {0};
    char what[64];

    require(indices != NULL);
    srand48(self->rank);
    for (size_t i = 0; i < nnz; i++)
        indices[i] = lrand48() % ROWS;
    for (int i = -TURNS / 10; i < TURNS; i++) {
        tutti_work_t *work;
        double begun = now_us(), called;

        require(tutti_pg_all_reduce_sparse(self->pg, &tensor, 1, NULL, &work) == TUTTI_OK);
        called = now_us();
        await(work);
        if (i >= 0)
            require(samples_add(&self->samples, now_us() - begun) == 0 &&
                    samples_add(&calls, called - begun) == 0);
    }
    snprintf(what, sizeof(what), "sparse: %zu of %d x %d", nnz, ROWS, WIDTH);
    report(self, what);
    self->samples = calls;
    report(self, "sparse: submit");
    free(indices);
}

static int be_rank(const char *url, int rank, int ranks)
{
    const struct tutti_pg_options options = {.struct_size = sizeof(options)};
    struct rank self = {.rank = rank, .data = calloc(4 << 20, sizeof(float))};
    tutti_store_t *store;
    tutti_comm_t *comm;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LIMIT_S);
    require(tutti_store_open(url, 0, &store) == TUTTI_OK);
    require(tutti_comm_create(store, rank, ranks, NULL, &comm) == TUTTI_OK);
    require(self.data != NULL && tutti_pg_create(comm, &options, &self.pg) == TUTTI_OK);
    submit_measure(&self);
    for (int64_t bytes = 4; bytes <= 16 << 20; bytes *= bytes < 4096 ? 1024 : 4)
        latency_measure(&self, bytes);
    sparse_measure(&self, 10000);
    tutti_pg_destroy(self.pg);
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    free(self.data);
    fflush(stdout);
    return EXIT_SUCCESS;
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 ? atoi(argv[1]) : 2;
    char directory[] = "/tmp/tutti-group-XXXXXX";
    char url[80];
    int failures = 0, status;

    if (argc > 2 || ranks < 1 || ranks > MAX_RANKS) {
        fprintf(stderr, "usage: group [RANKS (2)]\n");
        return EXIT_FAILURE;
    }
    if (mkdtemp(directory) == NULL) {
        perror(directory);
        return EXIT_FAILURE;
    }
    snprintf(url, sizeof(url), "file:%s/store", directory);
    for (int rank = 0; rank < ranks; rank++)
        if (fork() == 0)
            _exit(be_rank(url, rank, ranks));
    while (wait(&status) > 0)
        failures += status != 0;
    unlink(url + strlen("file:"));
    rmdir(directory);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
