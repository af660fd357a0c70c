/* SPDX-License-Identifier: MIT */
/* Premultiplied sums of libnccl.so.2, as NCCL's manual has them: each rank has a scalar of its own,
 * of the host or in memory of the device. */
#include "harness.h"

/* ---- one scalar ------------------------------------------------------------------------------ */

static void premultiplied(struct rank *self)
{
    float *data = device_alloc(2 * sizeof *data), half = .5f;
    float *scalar = device_alloc(sizeof *scalar);
    ncclRedOp_t host, device, wrong;
    *scalar = 4;
    data[0] = data[1] = (float)(self->rank + 1);
    OK(ncclRedOpCreatePreMulSum(&host, &half, ncclFloat32, ncclScalarHostImmediate, self->comm));
    OK(ncclRedOpCreatePreMulSum(&device, scalar, ncclFloat32, ncclScalarDevice, self->comm));
    CHECK(host >= ncclNumOps && device >= ncclNumOps && host != device);
    half = 100; /* read at the creation */
    OK(ncclAllReduce(data, data, 1, ncclFloat32, host, self->comm, self->stream));
    OK(ncclAllReduce(data + 1, data + 1, 1, ncclFloat32, device, self->comm, self->stream));
    stream_wait(self->stream);
    CHECK(data[0] == 3 && data[1] == 24);
    *scalar = 1; /* read at each call */
    OK(ncclAllReduce(data + 1, data + 1, 1, ncclFloat32, device, self->comm, self->stream));
    stream_wait(self->stream);
    CHECK(data[1] == 72);
    CHECK(ncclAllReduce(data, data, 1, ncclFloat16, host, self->comm, self->stream) ==
          ncclInvalidArgument);
    OK(ncclRedOpDestroy(host, self->comm));
    CHECK(ncclRedOpDestroy(host, self->comm) == ncclInvalidArgument);
    CHECK(ncclAllReduce(data, data, 1, ncclFloat32, host, self->comm, self->stream) ==
          ncclInvalidArgument);
    CHECK(ncclRedOpCreatePreMulSum(&wrong, &half, (ncclDataType_t)77, ncclScalarHostImmediate,
                                   self->comm) == ncclInvalidArgument);
    OK(ncclRedOpDestroy(device, self->comm));
}

/* A graph reads the scalar at each launch, and the products of integers wrap. */
static void premultiplied_integers(struct rank *self)
{
    const uint64_t factor = (UINT64_C(1) << 63) + 3;
    uint64_t *data = device_alloc(sizeof *data);
    int8_t *bytes = device_alloc(2), *scalar = bytes + 1;
    ncclRedOp_t host, device;
    CUgraph graph;
    CUgraphExec launch;
    *data = 1;
    OK(ncclRedOpCreatePreMulSum(&host, (void *)(uintptr_t)&factor, ncclUint64,
                                ncclScalarHostImmediate, self->comm));
    OK(ncclRedOpCreatePreMulSum(&device, scalar, ncclInt8, ncclScalarDevice, self->comm));
    OK(ncclAllReduce(data, data, 1, ncclUint64, host, self->comm, self->stream));
    stream_wait(self->stream);
    CHECK(*data == factor * RANKS);
    CHECK(cuStreamBeginCapture_v2(self->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
          CUDA_SUCCESS);
    OK(ncclAllReduce(bytes, bytes, 1, ncclInt8, device, self->comm, self->stream));
    CHECK(cuStreamEndCapture(self->stream, &graph) == CUDA_SUCCESS);
    CHECK(cuGraphInstantiateWithFlags(&launch, graph, 0) == CUDA_SUCCESS);
    for (int value = -100; value <= 100; value += 67) {
        bytes[0] = 5;
        *scalar = (int8_t)value;
        CHECK(cuGraphLaunch(launch, self->stream) == CUDA_SUCCESS);
        stream_wait(self->stream);
        CHECK(bytes[0] == (int8_t)(5 * value * RANKS));
    }
    CHECK(cuGraphExecDestroy(launch) == CUDA_SUCCESS && cuGraphDestroy(graph) == CUDA_SUCCESS);
    OK(ncclRedOpDestroy(host, self->comm));
    OK(ncclRedOpDestroy(device, self->comm));
}

/* ---- scalars of each rank's own -------------------------------------------------------------- */

enum { FEW = 37 };

static void put(void *data, int i, ncclDataType_t dtype, int number)
{
    const float real = (float)number;
    uint32_t bits;
    memcpy(&bits, &real, sizeof bits);
    if (dtype == ncclInt8)
        ((int8_t *)data)[i] = (int8_t)number;
    else if (dtype == ncclBfloat16)
        ((uint16_t *)data)[i] = (uint16_t)(bits >> 16);
    else
        ((float *)data)[i] = real;
}

static int get(const void *data, int i, ncclDataType_t dtype)
{
    uint32_t bits;
    float real;
    if (dtype == ncclInt8)
        return ((const int8_t *)data)[i];
    bits = dtype == ncclBfloat16 ? (uint32_t)((const uint16_t *)data)[i] << 16
                                 : ((const uint32_t *)data)[i];
    memcpy(&real, &bits, sizeof real);
    return (int)real;
}

static int width_of(ncclDataType_t dtype)
{
    return dtype == ncclInt8 ? 1 : dtype == ncclBfloat16 ? 2 : 4;
}

/* Of a rank whose scalar is `first` more than its number: an element of the input, and of the sum.
 */
static int input(int rank, int i)
{
    return (rank + i) % 4 - 1;
}

static int products_sum(int ranks, int i, int first)
{
    int all = 0;
    for (int r = 0; r < ranks; r++)
        all += (r + first) * input(r, i);
    return all;
}

/* What a rank passes: an input with a block for each rank, and where the three results go. */
struct products {
    ncclDataType_t dtype;
    char *send[3], *recv[3];
    bool is_root;
};

static struct products products_make(const struct rank *self, ncclDataType_t dtype, bool in_place)
{
    const int width = width_of(dtype);
    struct products made = {.dtype = dtype, .is_root = self->rank == 1};
    for (int c = 0; c < 3; c++) {
        made.send[c] = device_alloc((size_t)(self->ranks * FEW * width));
        made.recv[c] = in_place ? made.send[c] : device_alloc((size_t)(FEW * width));
    }
    if (in_place)
        made.recv[1] += self->rank * FEW * width;
    if (!made.is_root)
        made.recv[2] = NULL;
    return made;
}

static void products_fill(const struct rank *self, const struct products *p)
{
    for (int c = 0; c < 3; c++)
        for (int i = 0; i < self->ranks * FEW; i++)
            put(p->send[c], i, p->dtype, input(self->rank, i));
}

static void products_call(const struct rank *self, const struct products *p, ncclRedOp_t op)
{
    OK(ncclAllReduce(p->send[0], p->recv[0], FEW, p->dtype, op, self->comm, self->stream));
    OK(ncclReduceScatter(p->send[1], p->recv[1], FEW, p->dtype, op, self->comm, self->stream));
    OK(ncclReduce(p->send[2], p->recv[2], FEW, p->dtype, op, 1, self->comm, self->stream));
}

static void products_check(const struct rank *self, const struct products *p, int first)
{
    stream_wait(self->stream);
    for (int c = 0; c < (p->is_root ? 3 : 2); c++)
        for (int i = 0; i < FEW; i++)
            CHECK(get(p->recv[c], i, p->dtype) ==
                  products_sum(self->ranks, i + (c == 1 ? self->rank * FEW : 0), first));
}

static const ncclDataType_t product_dtypes[] = {ncclFloat32, ncclBfloat16, ncclInt8};

/* Each rank has a scalar of its own, in place or not, in a group or not. */
static void premultiplied_apart(struct rank *self)
{
    uint32_t *scalar = device_alloc(sizeof *scalar);
    ncclRedOp_t op;
    for (int turn = 0; turn < 24; turn++) {
        const struct products p = products_make(self, product_dtypes[turn % 3], turn & 4);
        put(scalar, 0, p.dtype, self->rank + 1);
        products_fill(self, &p);
        OK(ncclRedOpCreatePreMulSum(&op, scalar, p.dtype,
                                    turn & 8 ? ncclScalarDevice : ncclScalarHostImmediate,
                                    self->comm));
        if (turn >= 12)
            OK(ncclGroupStart());
        products_call(self, &p, op);
        if (turn >= 12) { /* a sum of the same number replaces it in the group */
            OK(ncclRedOpDestroy(op, self->comm));
            OK(ncclRedOpCreatePreMulSum(&op, scalar, ncclFloat64, ncclScalarDevice, self->comm));
            OK(ncclGroupEnd());
        }
        products_check(self, &p, 1);
        OK(ncclRedOpDestroy(op, self->comm));
    }
    OK(ncclAllReduce(NULL, NULL, 0, ncclFloat32, ncclSum, self->comm, self->stream));
    OK(ncclRedOpCreatePreMulSum(&op, scalar, ncclFloat32, ncclScalarHostImmediate, self->comm));
    OK(ncclAllReduce(NULL, NULL, 0, ncclFloat32, op, self->comm, self->stream));
    OK(ncclReduceScatter(NULL, NULL, 0, ncclFloat32, op, self->comm, self->stream));
    stream_wait(self->stream);
}

/* The first premultiplied sum is made in a capture. A graph reads the scalar at each launch. */
static void premultiplied_captured(struct rank *self)
{
    uint32_t *scalar = device_alloc(sizeof *scalar);
    const struct products p =
        products_make(self, product_dtypes[self->ranks % 3], self->ranks == 2);
    ncclRedOp_t op;
    CUgraph graph;
    CUgraphExec launch;
    CHECK(cuStreamBeginCapture_v2(self->stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL) ==
          CUDA_SUCCESS);
    OK(ncclRedOpCreatePreMulSum(&op, scalar, p.dtype, ncclScalarDevice, self->comm));
    products_call(self, &p, op);
    CHECK(cuStreamEndCapture(self->stream, &graph) == CUDA_SUCCESS);
    CHECK(cuGraphInstantiateWithFlags(&launch, graph, 0) == CUDA_SUCCESS);
    for (int first = 1; first < 4; first++) {
        products_fill(self, &p);
        put(scalar, 0, p.dtype, self->rank + first);
        CHECK(cuGraphLaunch(launch, self->stream) == CUDA_SUCCESS);
        products_check(self, &p, first);
    }
    CHECK(cuGraphExecDestroy(launch) == CUDA_SUCCESS && cuGraphDestroy(graph) == CUDA_SUCCESS);
}

/* As nccl-tests: one thread makes and destroys each rank's sum in the group of the calls. */
static void premultiplied_by_one_thread(void)
{
    struct rank all[RANKS];
    struct products p[RANKS];
    ncclComm_t comms[RANKS];
    OK(ncclCommInitAll(comms, RANKS, NULL));
    for (int r = 0; r < RANKS; r++) {
        device_enter(r);
        all[r] =
            (struct rank){.rank = r, .ranks = RANKS, .comm = comms[r], .stream = stream_create()};
        p[r] = products_make(&all[r], ncclFloat32, false);
        products_fill(&all[r], &p[r]);
    }
    OK(ncclGroupStart());
    for (int r = 0; r < RANKS; r++) {
        float scalar = (float)(r + 1);
        ncclRedOp_t op;
        OK(ncclRedOpCreatePreMulSum(&op, &scalar, ncclFloat32, ncclScalarHostImmediate, comms[r]));
        products_call(&all[r], &p[r], op);
        OK(ncclRedOpDestroy(op, comms[r]));
    }
    OK(ncclGroupEnd());
    for (int r = 0; r < RANKS; r++) {
        device_enter(r);
        products_check(&all[r], &p[r], 1);
    }
    device_free_all();
    for (int r = 0; r < RANKS; r++) {
        device_enter(r);
        OK(ncclCommDestroy(comms[r]));
        CHECK(cuStreamDestroy_v2(all[r].stream) == CUDA_SUCCESS);
    }
}

static void test_premultiplied_apart(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, premultiplied_apart);
    for (int ranks = 2; ranks <= 4; ranks++)
        ranks_run(ranks, true, premultiplied_captured);
    premultiplied_by_one_thread();
}

static void test_premultiplied(void **unused)
{
    (void)unused;
    ranks_run(RANKS, true, premultiplied);
    ranks_run(RANKS, true, premultiplied_integers);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_premultiplied),
        cmocka_unit_test(test_premultiplied_apart),
    };
    harness_setup();
    return cmocka_run_group_tests(tests, NULL, NULL);
}
