/* SPDX-License-Identifier: MIT */
/*
 * Gloo over loopback TCP. Variants: "new" (gloo::allreduce), and the older algorithm objects
 * "halving_doubling" and "ring_chunked" on synchronous pairs that poll, which are faster.
 */
#include "rival.h"

#include <chrono>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gloo/allreduce.h>
#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/config.h>
#include <gloo/math.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/prefix_store.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow" /* in C++ a function hides the struct of the same name   \
                                           */
#include <tutti/tutti.h>
#pragma GCC diagnostic pop

namespace
{

/* Uses the tool's store. Gloo's own store would leave files behind. */
class Store : public gloo::rendezvous::Store
{
  public:
    void open(const char *url)
    {
        expect(tutti_store_open(url, limit_ms, &store));
    }
    void set(const std::string &key, const std::vector<char> &value) override
    {
        expect(tutti_store_set(store, key.c_str(), value.data(), value.size()));
    }
    std::vector<char> get(const std::string &key) override
    {
        std::vector<char> value(1 << 16);
        size_t size = 0;

        expect(tutti_store_get(store, key.c_str(), limit_ms, value.data(), value.size(), &size));
        value.resize(size);
        return value;
    }
    void wait(const std::vector<std::string> &keys) override
    {
        for (const std::string &key : keys)
            get(key);
    }
    ~Store() override
    {
        tutti_store_close(store);
    }

  private:
    static constexpr int64_t limit_ms = RIVAL_LIMIT_SECONDS * 1000;
    tutti_store_t *store = nullptr;

    static void expect(enum tutti_status status)
    {
        if (status != TUTTI_OK)
            throw std::runtime_error(tutti_last_error());
    }
};

std::shared_ptr<gloo::transport::Device> device;
std::unique_ptr<Store> store;
std::shared_ptr<gloo::rendezvous::Context> context;
std::unique_ptr<gloo::Algorithm> algorithm;
std::string variant;
int own_rank;
int world_size;

int init(int rank, int size)
{
    own_rank = rank;
    world_size = size;
    variant = rival_env(RIVAL_VARIANT, "new");
    try {
        gloo::transport::tcp::attr attributes;

        store.reset(new Store);
        store->open(rival_env(RIVAL_STORE, ""));
        attributes.iface = "lo";
        device = gloo::transport::tcp::CreateDevice(attributes);
    } catch (const std::exception &error) {
        return rival_error("%s", error.what());
    }
    return 0;
}

const char *version()
{
    static const std::string text = std::to_string(GLOO_VERSION_MAJOR) + "." +
                                    std::to_string(GLOO_VERSION_MINOR) + "." +
                                    std::to_string(GLOO_VERSION_PATCH);
    return text.c_str();
}

/* Synchronous pairs block while they write. With larger messages all ranks would block at once, for
 * ever. */
constexpr size_t max_synchronous_bytes = 8 << 20;

/* Connects all ranks again. A pair's socket buffer keeps the size of its first message, and larger
 * messages would wait for acknowledgements, 40 ms each. */
void connect(bool synchronous)
{
    static int generation;
    gloo::rendezvous::PrefixStore fresh(variant + std::to_string(generation++), *store);

    algorithm.reset();
    context = std::make_shared<gloo::rendezvous::Context>(own_rank, world_size);
    context->setTimeout(std::chrono::seconds(RIVAL_LIMIT_SECONDS));
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
        return rival_error("%s", error.what());
    }
    return 0;
}

int all_reduce(float *buffer, size_t count, int)
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
        return rival_error("%s", error.what());
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

int main()
{
    static const struct rival_engine engine = {
        init, version, nullptr, prepare, {nullptr, all_reduce}, 0, nullptr, nullptr, fini,
    };
    return rival_main(&engine);
}
