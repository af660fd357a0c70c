/* SPDX-License-Identifier: MIT */
/*
 * A stand-in for libnvidia-ml. Devices are 0000:10:00.0 and on, as in the stand-in for libcuda.
 * TUTTI_STANDIN_LINKS draws each device's links, devices parted by commas: a digit is a link to
 * that device, 's' one to a switch, '-' one that is down. "ss,ss" are two devices on a switch.
 * TUTTI_STANDIN_NVML_FAIL names a function that fails.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FAILURE = 999, NOT_SUPPORTED = 3, FIRST_BUS = 0x10, TYPE_GPU = 0, TYPE_SWITCH = 2 };

struct pci {
    char legacy[16];
    unsigned domain, bus, device, ids, subsystem;
    char text[32];
};

const char *nvmlErrorString(int result);
int nvmlInit_v2(void);
int nvmlShutdown(void);
int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device);
int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci);
int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *active);
int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct pci *pci);
int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type);

static char devices[64]; /* a handle is an address in it */

static int fails(const char *function)
{
    const char *name = getenv("TUTTI_STANDIN_NVML_FAIL");
    return name && strcmp(name, function) == 0;
}

/* What the link is; 0 if there is none. */
static char link_of(const void *device, unsigned link)
{
    const char *text = getenv("TUTTI_STANDIN_LINKS");
    for (long skip = (const char *)device - devices; text && skip > 0; skip--)
        text = (text = strchr(text, ',')) ? text + 1 : NULL;
    return text && link < strcspn(text, ",") ? text[link] : 0;
}

const char *nvmlErrorString(int result)
{
    return result == FAILURE ? "Stand-in failed" : "Not found";
}

int nvmlInit_v2(void)
{
    return fails(__func__) ? FAILURE : 0;
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, void **device)
{
    unsigned domain, bus;
    if (sscanf(bus_id, "%x:%x:", &domain, &bus) != 2 || domain || bus < FIRST_BUS)
        return NOT_SUPPORTED;
    *device = &devices[bus - FIRST_BUS];
    return fails(__func__) ? FAILURE : 0;
}

static void place(long index, struct pci *pci)
{
    *pci = (struct pci){.bus = FIRST_BUS + (unsigned)index};
}

int nvmlDeviceGetPciInfo_v3(void *device, struct pci *pci)
{
    place((char *)device - devices, pci);
    return fails(__func__) ? FAILURE : 0;
}

int nvmlDeviceGetNvLinkState(void *device, unsigned link, int *active)
{
    char what = link_of(device, link);
    *active = what != '-';
    return what ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(void *device, unsigned link, struct pci *pci)
{
    char what = link_of(device, link);
    place(what == 's' ? 48 : what - '0', pci);
    return 0;
}

int nvmlDeviceGetNvLinkRemoteDeviceType(void *device, unsigned link, int *type)
{
    *type = link_of(device, link) == 's' ? TYPE_SWITCH : TYPE_GPU;
    return 0;
}
