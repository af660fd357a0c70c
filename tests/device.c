/* SPDX-License-Identifier: MIT */
#include "device.h"

#include "../tools/gpu.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_RANKS = 8 };

bool device_is_cuda(void)
{
    const char *text = getenv("TUTTI_TEST_DEVICE");
    return text && strcmp(text, "cuda") == 0;
}

bool device_is_gpu(void)
{
    return device_is_cuda() && !getenv("TUTTI_CUDA_LIBRARY");
}

int device_count(const char **reason)
{
    static int count = -1;
    static char text[400];
    if (count < 0) {
        count = gpu_probe();
        if (count > 0 && getenv("TUTTI_ALLOW_OVERLAPPING_DEVICES"))
            count = MOST_RANKS;
        snprintf(text, sizeof text, "%s", count ? "" : library_error());
    }
    if (reason)
        *reason = text;
    return count;
}

bool device_is_shared(void)
{
    return device_is_cuda() &&
           (getenv("TUTTI_TEST_HOSTS") ||
            (getenv("TUTTI_ALLOW_OVERLAPPING_DEVICES") && !getenv("TUTTI_ALGO")));
}

bool device_threads_share(int size)
{
    const int gpus = device_is_cuda() ? gpu_probe() : 0;
    return gpus > 0 && size > gpus;
}

bool device_skips_threads(int size)
{
    const bool share = device_threads_share(size);
    const int gpus = share ? gpu_probe() : 0;
    if (share)
        printf("skipped: %d ranks are threads and share %d GPU%s: their calls wait for each other "
               "on the host, and this test has one rank call after another's call has returned\n",
               size, gpus, gpus == 1 ? "" : "s");
    return share;
}

static _Thread_local int bound = -1;

bool device_bind(int rank)
{
    if (bound >= 0)
        return true;
    if (!gpu_open() || gpu_count() == 0 || !gpu_bind(rank % gpu_count())) {
        fprintf(stderr, "device: rank %d has no GPU: %s\n", rank, library_error());
        return false;
    }
    bound = rank % gpu_count();
    return true;
}

int device_bound(void)
{
    return bound;
}
