/* SPDX-License-Identifier: MIT */
#include "cuda/driver/nvml.h"

#include "base/error.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
    LINKS_MOST = 36,   /* the most links of one device in any generation so far */
    REMOTE_SWITCH = 2, /* NVML_NVLINK_DEVICE_TYPE_SWITCH */
};

typedef int nvml_result; /* nvmlReturn_t; 0 is success */

struct nvml_pci { /* nvmlPciInfo_t */
    char legacy[16];
    unsigned domain, bus, device, ids, subsystem;
    char text[32];
};

/* X(member, symbol, arguments) */
#define NVML_MAP(X)                                                                                \
    X(init, nvmlInit_v2, (void))                                                                   \
    X(shutdown, nvmlShutdown, (void))                                                              \
    X(device, nvmlDeviceGetHandleByPciBusId_v2, (const char *bus_id, void **device))               \
    X(pci, nvmlDeviceGetPciInfo_v3, (void *device, struct nvml_pci *pci))                          \
    X(link_state, nvmlDeviceGetNvLinkState, (void *device, unsigned link, int *active))            \
    X(link_pci, nvmlDeviceGetNvLinkRemotePciInfo_v2,                                               \
      (void *device, unsigned link, struct nvml_pci *pci))                                         \
    X(link_type, nvmlDeviceGetNvLinkRemoteDeviceType, (void *device, unsigned link, int *type))

struct nvml {
    const char *(*error)(nvml_result result);
#define NVML_MEMBER(member, symbol, arguments) nvml_result(*member) arguments;
    NVML_MAP(NVML_MEMBER)
#undef NVML_MEMBER
};

/* One device and where its links end. */
struct nvml_device {
    void *handle;
    struct nvml_pci pci;
    int switched; /* links that end in a switch */
};

static enum tutti_status find_symbols(void *library, const char *file, struct nvml *nvml)
{
    static const struct {
        const char *name;
        size_t offset;
    } symbols[] = {{"nvmlErrorString", offsetof(struct nvml, error)},
#define NVML_SYMBOL(member, symbol, arguments) {#symbol, offsetof(struct nvml, member)},
                   NVML_MAP(NVML_SYMBOL)
#undef NVML_SYMBOL
    };
    for (size_t i = 0; i < sizeof symbols / sizeof *symbols; i++) {
        void *address = dlsym(library, symbols[i].name);
        if (!address)
            return error_set(TUTTI_ERR_DECLINED, "no NVML: %s has no %s: the driver is too old",
                             file, symbols[i].name);
        memcpy((char *)nvml + symbols[i].offset, &address, sizeof address);
    }
    return TUTTI_OK;
}

static enum tutti_status check(const struct nvml *nvml, nvml_result result, const char *call)
{
    return result ? error_set(TUTTI_ERR_SYSTEM, "%s: %s", call, nvml->error(result)) : TUTTI_OK;
}

static enum tutti_status find_device(const struct nvml *nvml, const char *bus_id,
                                     struct nvml_device *device)
{
    enum tutti_status status =
        check(nvml, nvml->device(bus_id, &device->handle), "nvmlDeviceGetHandleByPciBusId");
    if (!status)
        status = check(nvml, nvml->pci(device->handle, &device->pci), "nvmlDeviceGetPciInfo");
    return status;
}

static bool same_address(const struct nvml_pci *a, const struct nvml_pci *b)
{
    return a->domain == b->domain && a->bus == b->bus && a->device == b->device;
}

/* For a device without a link of that number, or without NVLink, NVML returns an error. */
static void count_link(const struct nvml *nvml, struct nvml_device *devices, int from,
                       unsigned link, int count, int *links)
{
    struct nvml_pci remote = {0};
    int active = 0, type = -1;
    void *handle = devices[from].handle;
    if (nvml->link_state(handle, link, &active) || !active)
        return;
    if (nvml->link_type(handle, link, &type) == 0 && type == REMOTE_SWITCH)
        devices[from].switched++;
    else if (nvml->link_pci(handle, link, &remote) == 0)
        for (int to = 0; to < count; to++)
            links[from * count + to] += to != from && same_address(&remote, &devices[to].pci);
}

static void count_links(const struct nvml *nvml, struct nvml_device *devices, int count, int *links)
{
    memset(links, 0, (size_t)count * (size_t)count * sizeof *links);
    for (int from = 0; from < count; from++)
        for (unsigned link = 0; link < LINKS_MOST; link++)
            count_link(nvml, devices, from, link, count, links);
    for (int from = 0; from < count; from++)
        for (int to = 0; to < count; to++)
            if (to != from && devices[to].switched)
                links[from * count + to] += devices[from].switched;
}

static enum tutti_status read_links(const struct nvml *nvml, const char *const *bus_ids, int count,
                                    int *links)
{
    struct nvml_device *devices = calloc((size_t)count, sizeof *devices);
    enum tutti_status status = TUTTI_OK;
    if (!devices)
        return error_set(TUTTI_ERR_NO_MEMORY, "no memory for %d devices", count);
    for (int i = 0; i < count && !status; i++)
        status = find_device(nvml, bus_ids[i], &devices[i]);
    if (!status)
        count_links(nvml, devices, count, links);
    free(devices);
    return status;
}

static enum tutti_status ask_nvml(const char *const *bus_ids, int count, int *links)
{
    const char *file = getenv("TUTTI_NVML_LIBRARY");
    struct nvml nvml;
    file = file && *file ? file : "libnvidia-ml.so.1";
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library)
        return error_set(TUTTI_ERR_DECLINED, "no NVML: %s cannot be opened (%s)", file, dlerror());
    enum tutti_status status = find_symbols(library, file, &nvml);
    if (!status)
        status = check(&nvml, nvml.init(), "nvmlInit");
    if (status)
        goto err_close;
    status = read_links(&nvml, bus_ids, count, links);
    nvml.shutdown();

err_close:
    dlclose(library);
    return status;
}

/* Ranks that are threads call at the same time, and one must not shut NVML down while another one
 * uses it. */
enum tutti_status nvml_links(const char *const *bus_ids, int count, int *links)
{
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&lock);
    enum tutti_status status = ask_nvml(bus_ids, count, links);
    pthread_mutex_unlock(&lock);
    return status;
}
