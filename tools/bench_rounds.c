/* SPDX-License-Identifier: MIT */
#include "bench_rounds.h"

#include "gpu.h"
#include "tool.h"

#include <stdio.h>

static bool is_gpu(const struct rounds *rounds)
{
    return rounds->base.engine->device == TUTTI_DEVICE_CUDA;
}

static bool takes_part(struct rounds *rounds, int contestant)
{
    const struct bench_engine *engine = rounds->base.engine;
    return !engine->takes_part || engine->takes_part(&rounds->base, contestant);
}

/* ---- calls ----------------------------------------------------------------------------------- */

bool rounds_synchronize(struct rounds *rounds)
{
    struct measure *base = &rounds->base;
    struct tutti_fault fault = {.struct_size = sizeof fault};
    const bool ok = !is_gpu(rounds) || gpu_stream_synchronize(rounds->streams[0]);
    enum tutti_status status = tutti_comm_status(base->comm, &fault);
    for (int i = 0; i < BENCH_TUNINGS && rounds->others[i] && !status; i++)
        status = tutti_comm_status(rounds->others[i], &fault);
    if (status) {
        tutti_fault_format(&fault, base->message, sizeof base->message);
        base->status = status;
    }
    return ok && !status;
}

static bool enqueue(struct rounds *rounds, int contestant, tutti_stream_t stream, int i)
{
    return rounds->base.engine->enqueue(&rounds->base, contestant, stream, i);
}

/* A batch of operations. The streams alternate; the first one begins and ends the batch. */
static bool enqueue_batch(struct rounds *rounds, int contestant)
{
    const int streams = rounds->base.config->streams;
    tutti_stream_t first = rounds->streams[0];
    bool ok = streams == 1 || gpu_event_record(rounds->forked, first);
    for (int i = 1; i < streams && ok; i++)
        ok = gpu_event_await(rounds->forked, rounds->streams[i]);
    for (int i = 0; i < rounds->batch && ok; i++)
        ok = enqueue(rounds, contestant, rounds->streams[i % streams], i);
    for (int i = 1; i < streams && ok; i++)
        ok = gpu_event_record(rounds->joined[i], rounds->streams[i]) &&
             gpu_event_await(rounds->joined[i], first);
    return ok;
}

/* The first launch of a graph that is not on the device uploads it, and may wait for kernels that
 * wait for this rank. So the upload has ended before the ranks meet. */
static bool capture(struct rounds *rounds, int contestant)
{
    if (!gpu_capture_begin(rounds->streams[0]))
        return false;
    bool ok = enqueue_batch(rounds, contestant) ||
              measure_fail(&rounds->base, TUTTI_ERR_CUDA, "%s", library_error());
    rounds->graphs[contestant] = gpu_capture_end(rounds->streams[0]);
    return ok && rounds->graphs[contestant] && rounds_synchronize(rounds);
}

static void forget_graphs(struct rounds *rounds)
{
    for (int i = 0; i < BENCH_SERIES; i++) {
        gpu_graph_destroy(rounds->graphs[i]);
        rounds->graphs[i] = NULL;
    }
}

bool rounds_launch(struct rounds *rounds, int contestant)
{
    void *graph = rounds->graphs[contestant];
    return graph ? gpu_graph_launch(graph, rounds->streams[0]) : enqueue_batch(rounds, contestant);
}

/* ---- time ------------------------------------------------------------------------------------ */

static bool time_round(struct rounds *rounds, int contestant, double *us, double *host_us)
{
    struct measure *base = &rounds->base;
    tutti_stream_t stream = rounds->streams[0];
    if ((base->engine->restore && !base->engine->restore(base, contestant)) ||
        !measure_meet(base) || (is_gpu(rounds) && !gpu_event_record(rounds->begin, stream)))
        return false;
    const double start = clock_seconds();
    bool ok = rounds_launch(rounds, contestant);
    const double host = (clock_seconds() - start) * 1e6;
    *us = host;
    if (ok && is_gpu(rounds))
        ok = gpu_event_record(rounds->end, stream) && rounds_synchronize(rounds) &&
             gpu_event_elapsed(rounds->begin, rounds->end, us);
    *us /= rounds->batch;
    *host_us = host / rounds->batch;
    return ok;
}

bool rounds_warm_up(struct rounds *rounds, int count)
{
    struct measure *base = &rounds->base;
    double us = 0, host_us = 0;
    forget_graphs(rounds);
    for (int c = 0; c < base->engine->contestants; c++) {
        if (!takes_part(rounds, c))
            continue;
        if (!measure_meet(base) || !enqueue(rounds, c, rounds->streams[0], 0) ||
            !rounds_synchronize(rounds) || !measure_meet(base) ||
            (base->config->graph && !capture(rounds, c)))
            return false;
        for (int i = 0; i < count; i++)
            if (!time_round(rounds, c, c ? &us : &rounds->each_us, &host_us))
                return false;
    }
    return true;
}

struct stats rounds_stats(struct rounds *rounds, int series, int count, bool slowest)
{
    const struct bench_rank *self = rounds->base.self;
    for (int i = 0; i < count; i++) {
        const float *of_rank = self->shared->samples[series][i];
        float us = of_rank[self->rank];
        for (int rank = 0; rank < self->config->ranks && slowest; rank++)
            us = of_rank[rank] > us ? of_rank[rank] : us;
        rounds->values[i] = (double)us;
    }
    return stats_of(rounds->values, (size_t)count);
}

bool rounds_run(struct rounds *rounds, int count, struct bench_timing *timing)
{
    struct measure *base = &rounds->base;
    const int rank = base->self->rank;
    double us = 0, host_us = 0;
    for (int i = 0; i < count; i++)
        for (int c = 0; c < base->engine->contestants; c++) {
            if (!takes_part(rounds, c))
                continue;
            if (!time_round(rounds, c, &us, &host_us))
                return false;
            base->self->shared->samples[c][i][rank] = (float)us;
            if (c == 0)
                base->self->shared->samples[ROUNDS_HOST][i][rank] = (float)host_us;
        }
    if (!measure_meet(base))
        return false;
    const struct stats slowest = rounds_stats(rounds, 0, count, true);
    timing->mean_us = slowest.mean;
    timing->p50_us = slowest.p50;
    timing->p99_us = slowest.p99;
    timing->own_us = rounds_stats(rounds, 0, count, false).p50;
    return true;
}

/* ---- a rank ---------------------------------------------------------------------------------- */

bool rounds_open(struct measure *measure, struct bench_record *ready)
{
    struct rounds *rounds = (struct rounds *)measure;
    struct gpu_facts facts;
    if (!is_gpu(rounds))
        return true;
    if (!gpu_open())
        return false;
    const int count = gpu_count();
    const int device = count && !measure->config->share ? measure->self->rank % count : 0;
    if (count == 0 || !gpu_bind(device) || !gpu_facts(device, &facts))
        return false;
    snprintf(ready->device, sizeof ready->device, "device %d %.20s %.63s", device, facts.bus_id,
             facts.name);
    rounds->begin = gpu_event_create();
    rounds->end = gpu_event_create();
    rounds->forked = gpu_event_create();
    bool ok = rounds->begin && rounds->end && rounds->forked;
    for (int i = 0; i < measure->config->streams && ok; i++)
        ok = gpu_stream_create(&rounds->streams[i]) && (rounds->joined[i] = gpu_event_create());
    return ok;
}

void rounds_release(struct rounds *rounds)
{
    forget_graphs(rounds);
    for (int i = 0; i < BENCH_TUNINGS; i++)
        tutti_comm_destroy(rounds->others[i]);
}

void rounds_close(struct measure *measure)
{
    struct rounds *rounds = (struct rounds *)measure;
    for (int i = 0; i < BENCH_STREAMS; i++) {
        gpu_event_destroy(rounds->joined[i]);
        gpu_stream_destroy(rounds->streams[i]);
    }
    gpu_event_destroy(rounds->forked);
    gpu_event_destroy(rounds->begin);
    gpu_event_destroy(rounds->end);
}
