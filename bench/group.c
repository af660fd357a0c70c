/* SPDX-License-Identifier: MIT */
/*
 * What a process group costs: how long a call submits, with the group's thread asleep and awake;
 * how long an operation takes from its submission to its result; then the same for sparse sums. The
 * ranks are processes that are not bound to cores. Rank 0 prints medians of float32 sums.
 *
 * For CUDA tensors, each rank on its own device: how long a call submits, how long the call takes
 * that makes a stream wait, and the time from the submission until the host finds the work done or
 * the stream has passed the wait. With "direct" the communicator is a CUDA one.
 *
 * THREADS threads of each rank share the host's reduction of large tensors.
 */
#include "gpu.h"
#include "now.h"
#include "stats.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <tutti/pg.h>

enum { MAX_RANKS = 64, LIMIT_S = 120, BATCH = 200, BATCHES = 20, ASLEEP = 200 };
enum { ELEMENTS = 4 << 20 };
enum what { CPU, CUDA, DIRECT };
enum { ROWS = 1000000, WIDTH = 64, TURNS = 50 }; /* of sparse tensors */

struct rank {
    tutti_pg_t *pg;
    int rank;
    float *data; /* of the device, if `cuda` */
    tutti_stream_t stream;
    bool cuda;
    int device;
    struct samples samples;
};

static void require(int good)
{
    if (good)
        return;
    fprintf(stderr, "group: %s\n", tutti_last_error());
    _exit(EXIT_FAILURE);
}

static void require_gpu(bool good)
{
    if (good)
        return;
    fprintf(stderr, "group: %s\n", library_error());
    _exit(EXIT_FAILURE);
}

static tutti_work_t *submit(const struct rank *self, float *data, int64_t count)
{
    const struct tutti_tensor tensor = {.struct_size = sizeof(tensor),
                                        .data = data,
                                        .dtype = TUTTI_FLOAT32,
                                        .device = self->cuda ? TUTTI_DEVICE_CUDA : TUTTI_DEVICE_CPU,
                                        .device_index = self->device,
                                        .dims = 1,
                                        .sizes = &count};
    const struct tutti_pg_call_options options = {.struct_size = sizeof(options),
                                                  .stream = self->stream};
    tutti_work_t *work;

    require(tutti_pg_all_reduce(self->pg, &tensor, 1, TUTTI_SUM, &options, &work) == TUTTI_OK);
    return work;
}

static void await(tutti_work_t *work)
{
    require(tutti_work_wait_host(work, 0) == TUTTI_OK);
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
    struct samples each = {0};
    for (int i = 0; i < BATCHES; i++) {
        const double batch_begun = now_us();
        for (int k = 0; k < BATCH; k++) {
            double begun = now_us();
            works[k] = submit(self, &self->data[k], 1);
            require(samples_add(&self->samples, now_us() - begun) == 0);
        }
        for (int k = 0; k < BATCH; k++)
            await(works[k]);
        require(samples_add(&each, (now_us() - batch_begun) / BATCH) == 0);
    }
    report(self, "submit, one after the other");
    self->samples = each;
    report(self, "200 at once, for each");
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

static void stream_measure(struct rank *self, int64_t bytes)
{
    char what[64];
    int turns = bytes < 1 << 20 ? 1000 : 100;
    struct samples waits = {0};

    for (int i = -turns / 10; i < turns; i++) {
        double begun = now_us(), called, waited;
        tutti_work_t *work = submit(self, self->data, bytes / (int64_t)sizeof(float));

        called = now_us();
        require(tutti_work_wait_stream(work, self->stream) == TUTTI_OK);
        waited = now_us();
        require_gpu(gpu_stream_synchronize(self->stream));
        if (i >= 0)
            require(samples_add(&self->samples, now_us() - begun) == 0 &&
                    samples_add(&waits, waited - called) == 0);
        await(work);
    }
    snprintf(what, sizeof(what), "%lld bytes, until a stream has passed", (long long)bytes);
    report(self, what);
    self->samples = waits;
    report(self, "  having it wait");
}

static void cpu_open(struct rank *self)
{
    self->data = calloc(ELEMENTS, sizeof(float));
    require(self->data != NULL);
}

static void cuda_open(struct rank *self)
{
    self->cuda = true;
    require_gpu(gpu_open() && gpu_count() > 0);
    self->device = self->rank % gpu_count();
    require_gpu(gpu_bind(self->device) && gpu_stream_create(&self->stream));
    self->data = gpu_alloc(ELEMENTS * sizeof(float));
    require_gpu(self->data && gpu_fill(self->data, 0, ELEMENTS * sizeof(float)));
}

static void measure(struct rank *self)
{
    submit_measure(self);
    for (int64_t bytes = 4; bytes <= 16 << 20; bytes *= bytes < 4096 ? 1024 : 4) {
        latency_measure(self, bytes);
        if (self->cuda)
            stream_measure(self, bytes);
    }
    if (!self->cuda)
        sparse_measure(self, 10000);
}

static int be_rank(const char *url, int rank, int ranks, enum what what, int threads)
{
    const struct tutti_comm_options comm_options = {.struct_size = sizeof(comm_options),
                                                    .device = what == DIRECT ? TUTTI_DEVICE_CUDA
                                                                             : TUTTI_DEVICE_CPU};
    struct tutti_pg_options options = {.struct_size = sizeof(options), .threads = threads};
    struct rank self = {.rank = rank};
    tutti_store_t *store;
    tutti_comm_t *comm;

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    alarm(LIMIT_S);
    if (what == CPU)
        cpu_open(&self);
    else
        cuda_open(&self);
    require(tutti_store_open(url, 0, &store) == TUTTI_OK);
    require(tutti_comm_create(store, rank, ranks, &comm_options, &comm) == TUTTI_OK);
    options.store = what == DIRECT ? store : NULL;
    require(tutti_pg_create(comm, &options, &self.pg) == TUTTI_OK);
    measure(&self);
    tutti_pg_destroy(self.pg);
    tutti_comm_destroy(comm);
    tutti_store_close(store);
    if (what == CPU)
        free(self.data);
    else
        gpu_free(self.data);
    return fflush(stdout) == 0 && !ferror(stdout) ? EXIT_SUCCESS : EXIT_FAILURE;
}

int main(int argc, char **argv)
{
    int ranks = argc > 1 ? atoi(argv[1]) : 2;
    char directory[] = "/tmp/tutti-group-XXXXXX";
    char url[80];
    int failures = 0, status;
    enum what what = CPU;
    int threads = argc > 3 ? atoi(argv[3]) : 0;

    if (argc > 2)
        what = strcmp(argv[2], "cuda") == 0 ? CUDA : DIRECT;
    if (argc > 4 || ranks < 1 || ranks > MAX_RANKS ||
        (what == DIRECT && strcmp(argv[2], "direct") != 0)) {
        fprintf(stderr, "usage: group [RANKS (2) [cuda|direct [THREADS]]]\n");
        return EXIT_FAILURE;
    }
    if (mkdtemp(directory) == NULL) {
        perror(directory);
        return EXIT_FAILURE;
    }
    snprintf(url, sizeof(url), "file:%s/store", directory);
    for (int rank = 0; rank < ranks; rank++) {
        pid_t child = fork();

        if (child == 0)
            _exit(be_rank(url, rank, ranks, what, threads));
        if (child < 0)
            perror("group: fork");
        failures += child < 0;
    }
    while (wait(&status) > 0)
        failures += status != 0;
    unlink(url + strlen("file:"));
    rmdir(directory);
    return failures ? EXIT_FAILURE : EXIT_SUCCESS;
}
