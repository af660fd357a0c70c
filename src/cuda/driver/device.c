/* SPDX-License-Identifier: MIT */
/* The device that a communicator would bind to, and whether it can serve. */
#include "cuda/driver/device.h"
#include "base/error.h"
#include "cuda/driver/driver.h"
#include "cuda/driver/wrappers.h"

#include <assert.h>
#include <string.h>

/* Compute capability 8.0. */
enum { LEAST_MAJOR = 8 };

/* What else a device must support. */
static const struct {
    CUdevice_attribute attribute;
    const char *what;
} needs[] = {
    {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, "unified addresses"},
    {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, "virtual memory management"},
    {CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED,
     "memory that is exported as a descriptor"},
};

static enum tutti_status attribute_get(const struct cuda_driver *driver, CUdevice device,
                                       CUdevice_attribute attribute, int32_t *value)
{
    int found = 0;
    enum tutti_status status = CUDA_CALL(driver, device_attribute, &found, attribute, device);
    *value = found;
    return status;
}

static enum tutti_status device_read(const struct cuda_driver *driver, CUdevice device,
                                     struct cuda_device *out)
{
    const struct {
        CUdevice_attribute attribute;
        int32_t *value;
    } reads[] = {
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, &out->major},
        {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, &out->minor},
        {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, &out->multiprocessors},
        {CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED, &out->multicast},
        {CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS, &out->waits},
    };
    CUuuid uuid;
    static_assert(sizeof uuid == sizeof out->uuid, "uuid");
    out->ordinal = device;
    enum tutti_status status = CUDA_CALL(driver, device_uuid, &uuid, device);
    if (status == TUTTI_OK)
        status = CUDA_CALL(driver, device_name, out->name, sizeof out->name, device);
    if (status == TUTTI_OK)
        status = CUDA_CALL(driver, device_pci_bus_id, out->bus_id, sizeof out->bus_id, device);
    for (size_t i = 0; i < sizeof reads / sizeof *reads && status == TUTTI_OK; i++)
        status = attribute_get(driver, device, reads[i].attribute, reads[i].value);
    if (status == TUTTI_OK)
        memcpy(out->uuid, &uuid, sizeof out->uuid);
    return status;
}

static enum tutti_status device_check(const struct cuda_driver *driver,
                                      const struct cuda_device *device)
{
    if (device->major < LEAST_MAJOR)
        return error_set(TUTTI_ERR_DECLINED,
                         "device %d, %s, has compute capability %d.%d: Tutti needs %d.0 or newer",
                         device->ordinal, device->name, device->major, device->minor, LEAST_MAJOR);
    for (size_t i = 0; i < sizeof needs / sizeof *needs; i++) {
        int32_t able;
        enum tutti_status status =
            attribute_get(driver, device->ordinal, needs[i].attribute, &able);
        if (status != TUTTI_OK)
            return status;
        if (!able)
            return error_set(TUTTI_ERR_DECLINED, "device %d, %s, lacks %s", device->ordinal,
                             device->name, needs[i].what);
    }
    return TUTTI_OK;
}

enum tutti_status cuda_device_current(struct cuda_device *device)
{
    const struct cuda_driver *driver;
    CUcontext context = NULL;
    CUdevice handle;
    memset(device, 0, sizeof *device);
    enum tutti_status status = cuda_driver_open(&driver);
    if (status == TUTTI_OK)
        status = CUDA_CALL(driver, ctx_current, &context);
    if (status == TUTTI_OK && !context)
        status = error_set(TUTTI_ERR_DECLINED,
                           "this thread has no current CUDA context: choose the device first, with "
                           "cudaSetDevice() or cuCtxSetCurrent()");
    if (status == TUTTI_OK)
        status = CUDA_CALL(driver, ctx_device, &handle);
    if (status == TUTTI_OK)
        status = device_read(driver, handle, device);
    return status == TUTTI_OK ? device_check(driver, device) : status;
}
