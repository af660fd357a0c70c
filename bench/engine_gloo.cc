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
#include <gloo/transport/tcp/device.h>

namespace
{

std::shared_ptr<gloo::rendezvous::Context> context;
std::unique_ptr<gloo::Algorithm> algorithm;
std::string variant;

int init(int *, char ***, int *rank, int *size)
{
    if (bench_env_rank(rank, size) != 0)
        return -1;
    try {
        std::string path = bench_env(BENCH_ENV_STORE, "");
        gloo::transport::tcp::attr attributes;

        variant = bench_env(BENCH_ENV_VARIANT, "new");
        mkdir(path.c_str(), 0700); /* by whichever rank comes first */
        gloo::rendezvous::FileStore store(path);
        attributes.iface = "lo";
        context = std::make_shared<gloo::rendezvous::Context>(*rank, *size);
        context->setTimeout(std::chrono::seconds(BENCH_COMMAND_LIMIT_S));
        auto device = gloo::transport::tcp::CreateDevice(attributes);
        context->connectFullMesh(store, device);
        for (int peer = 0; variant != "new" && peer < *size; peer++) {
            if (peer != *rank)
                context->getPair(peer)->setSync(true, true);
        }
    } catch (const std::exception &error) {
        return bench_error("%s", error.what());
    }
    return 0;
}

int prepare(float *buffer, size_t count)
{
    std::vector<float *> buffers{buffer};

    try {
        algorithm.reset();
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
}

} // namespace

extern "C" const struct bench_engine bench_engine = {
    init, nullptr, prepare, all_reduce, nullptr, fini,
};
