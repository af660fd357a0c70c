/* SPDX-License-Identifier: MIT */
/* The links from a rank's device to the devices of the others. */
#include "base/error.h"
#include "base/log.h"
#include "cuda/driver/device.h"
#include "cuda/driver/driver.h"
#include "cuda/driver/nvml.h"
#include "cuda/kernels/launch.h"
#include "topology/topology.h"

#include <string.h>

/* The ordinal of a device in this process; -1 if the process does not see it. */
static int ordinal_of(const struct cuda_driver *driver, const struct cuda_device *device)
{
    int count = 0;
    CUuuid uuid;
    if (driver->device_count(&count) != CUDA_SUCCESS)
        return -1;
    for (int ordinal = 0; ordinal < count; ordinal++)
        if (driver->device_uuid(&uuid, ordinal) == CUDA_SUCCESS &&
            memcmp(&uuid, device->uuid, sizeof uuid) == 0)
            return ordinal;
    return -1;
}

static bool is_same(const struct cuda_device *a, const struct cuda_device *b)
{
    return memcmp(a->uuid, b->uuid, CUDA_UUID_BYTES) == 0;
}

/* A device has native atomics in another device's memory over NVLink only. */
static bool is_nvlinked(const struct cuda_driver *driver, const struct cuda_device *from,
                        const struct cuda_device *to)
{
    int native = 0, ordinal = ordinal_of(driver, to);
    return ordinal >= 0 &&
           driver->device_p2p_attribute(&native, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED,
                                        from->ordinal, ordinal) == CUDA_SUCCESS &&
           native;
}

static bool all_nvlinked(const struct cuda_driver *driver, const struct cuda_device *devices,
                         int size, int rank)
{
    bool all = true;
    for (int r = 0; r < size && all; r++)
        all = is_same(&devices[rank], &devices[r]) ||
              is_nvlinked(driver, &devices[rank], &devices[r]);
    return all;
}

static int16_t peer_access(const struct cuda_driver *driver, const struct cuda_device *from,
                           const struct cuda_device *to)
{
    int can = 0, ordinal = ordinal_of(driver, to);
    if (is_same(from, to))
        return 1;
    if (ordinal < 0 || driver->device_can_access_peer(&can, from->ordinal, ordinal) != CUDA_SUCCESS)
        return TOPOLOGY_UNKNOWN_LINKS;
    return can != 0;
}

void cuda_links(const struct cuda_device *devices, int size, int rank, int16_t *links,
                const char **source)
{
    const struct cuda_driver *driver;
    const char *bus_ids[CUDA_RANKS];
    int counts[CUDA_RANKS * CUDA_RANKS];
    bool open = cuda_driver_open(&driver) == TUTTI_OK;
    /* To initialise NVML takes 110 ms, more than the rest of the set-up. So NVML is used only where
     * its answer matters. */
    if (open && all_nvlinked(driver, devices, size, rank)) {
        *source = "NVLink to all, as CUDA says";
        for (int r = 0; r < size; r++)
            links[r] = r != rank;
        return;
    }
    for (int r = 0; r < CUDA_RANKS; r++)
        bus_ids[r] = devices[r < size ? r : 0].bus_id;
    *source = "NVLinks, counted by NVML";
    if (nvml_links(bus_ids, size, counts) == TUTTI_OK) {
        for (int r = 0; r < size; r++)
            links[r] = r != rank && is_same(&devices[rank], &devices[r])
                           ? 1
                           : (int16_t)counts[rank * size + r];
        return;
    }
    log_write(TUTTI_LOG_INFO, rank, "links cannot be counted (%s): asking for peer access",
              tutti_last_error());
    *source = "peer access";
    for (int r = 0; r < size; r++)
        links[r] = r == rank ? 0
                   : open    ? peer_access(driver, &devices[rank], &devices[r])
                             : TOPOLOGY_UNKNOWN_LINKS;
}
