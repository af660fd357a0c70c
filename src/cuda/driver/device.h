/* SPDX-License-Identifier: MIT */
/* What a rank's device is, and which devices NVLink joins. Shows no CUDA type. */
#ifndef TUTTI_CUDA_DEVICE_H
#define TUTTI_CUDA_DEVICE_H

#include "tutti/tutti.h"

#include <stdint.h>

enum { CUDA_UUID_BYTES = 16, CUDA_DEVICE_NAME_BYTES = 64 };

/* A rank's device, as the other ranks receive it. */
struct cuda_device {
    uint8_t uuid[CUDA_UUID_BYTES]; /* CUDA_VISIBLE_DEVICES changes only the ordinal */
    char name[CUDA_DEVICE_NAME_BYTES];
    int32_t major, minor; /* compute capability */
    int32_t multiprocessors;
    int32_t ordinal;   /* in this process */
    char bus_id[16];   /* on the PCI bus, as CUDA writes it */
    int32_t multicast; /* the device supports NVLink multicast objects, which Tutti does not use */
    int32_t waits;     /* its streams can wait for a word in memory */
};

/* links[r] = links from the rank's device to rank r's: 1 where CUDA reports NVLink to all of them;
 * else the number that NVML counts; else 1 or 0 for peer access. 1 if both ranks have the same
 * device. TOPOLOGY_UNKNOWN_LINKS if nothing is known. *source is a static text. */
void cuda_links(const struct cuda_device *devices, int size, int rank, int16_t *links,
                const char **source);

/* Checks the device of the current context: compute capability 8.0 or newer, memory that can be
 * exported. Local; call it before the store is used. Returns DECLINED (no driver, no kernels in
 * this library, no device, no current context, too old), CUDA. */
enum tutti_status cuda_device_current(struct cuda_device *device);

#endif
