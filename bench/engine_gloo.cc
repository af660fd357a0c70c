/* SPDX-License-Identifier: MIT */
/*
 * Gloo over loopback TCP. Variants: "new" (gloo::allreduce), and the older algorithm objects
 * "halving_doubling" and "ring_chunked" on synchronous pairs that poll, which are faster.
 */
#include "worker.h"

#include <chrono>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <sys/stat.h>

#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/transport/tcp/device.h>

namespace
{

std::shared_ptr<gloo::transport::Device> device;
std::unique_ptr<gloo::rendezvous::FileStore> store;
std::shared_ptr<gloo::rendezvous::Context> context;
std::unique_ptr<gloo::Algorithm> algorithm;
std::string variant;
int own_rank;
int world_size;

int init(int *, char ***, int *rank, int *size)
{
    if (bench_env_rank(rank, size) != 0)
        return -1;
    own_rank = *rank;
    world_size = *size;
    variant = bench_env(BENCH_ENV_VARIANT, "new");
    try {
        std::string path = bench_env(BENCH_ENV_STORE, "");
        gloo::transport::tcp::attr attributes;

        mkdir(path.c_str(), 0700); /* by whichever rank comes first */
        store.reset(new gloo::rendezvous::FileStore(path));
        attributes.iface = "lo";
        device = gloo::transport::tcp::CreateDevice(attributes);
    } catch (const std::exception &error) {
        return bench_error("%s", error.what());
    }
    return 0;
}

/* Synchronous pairs block in writing; beyond this, all ranks do so at once, for ever. */
constexpr size_t max_synchronous_bytes = 8 << 20;

/* Connects all ranks anew: a pair's socket buffer keeps the size that its first message asked for,
 * and larger ones then wait for acknowledgements, 40 ms each. */
void connect(bool synchronous)
{
    static int generation;
    gloo::rendezvous::PrefixStore fresh(std::to_string(generation++), *store);

    algorithm.reset();
    context = std::make_shared<gloo::rendezvous::Context>(own_rank, world_size);
    context->setTimeout(std::chrono::seconds(BENCH_COMMAND_LIMIT_S));
    context->connectFullMesh(fresh, device);
    for (int peer = 0; synchronous && peer < world_size; peer++) {
        if (peer != own_rank)
            context->getPair(peer)->setSync(true, true);
    }
}

int prepare(float *buffer, size_t count)
{
    std::vector<float *> buffers{buffer};

    try {
        connect(variant != "new" && count * sizeof(float) <= max_synchronous_bytes);
        if (variant == "halving_doubling")
            algorithm.reset(new gloo::AllreduceHalvingDoubling<float>(context, buffers, count));
        else if (variant == "ring_chunked")
            algorithm.reset(new gloo::AllreduceRingChunked<float>(context, buffers, count));
    } catch (const std::exception &error) {
        return bench_error("%s", error.what());
    }
    return 0;
}

int all_reduce(float *buffer, size_t count)
{
    try {
        if (algorithm) {
            algorithm->run();
        } else {
            gloo::AllreduceOptions options(context);

            options.setOutput(buffer, count);
            options.setReduceFunction(
                static_cast<void (*)(void *, const void *, const void *, size_t)>(
                    &gloo::sum<float>));
            gloo::allreduce(options);
        }
    } catch (const std::exception &error) {
        return bench_error("%s", error.what());
    }
    return 0;
}

void fini()
{
    algorithm.reset();
    context.reset();
    device.reset();
    store.reset();
}

} // namespace

extern "C" const struct bench_engine bench_engine = {
    init, nullptr, prepare, all_reduce, nullptr, fini,
};
