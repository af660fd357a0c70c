/* SPDX-License-Identifier: MIT */
/* Physical memory of a device or of the host that travels as a descriptor, and its mappings. */
#ifndef TUTTI_CUDA_MEMORY_H
#define TUTTI_CUDA_MEMORY_H

#include "cuda/driver/driver.h"
#include "ipc/segment.h"

#include <stddef.h>

/* One mapped allocation: this rank's, or a peer's as this device sees it. */
struct cuda_memory {
    CUdeviceptr base;       /* 0 when not mapped */
    size_t bytes;           /* whole, rounded up to the granularity */
    struct segment segment; /* the segment, if it is host memory */
};

/*
 * Creates physical memory on `device`, maps it read-write for that device, exports it. The memory
 * lives as long as any process has a mapping or a descriptor of it.
 * [out] fd  close-on-exec; the caller's to close
 * Returns NO_MEMORY (with the bytes asked for and those free), CUDA, SYSTEM.
 */
enum tutti_status cuda_memory_create(const struct cuda_driver *driver, CUdevice device,
                                     size_t bytes, struct cuda_memory *memory, int *fd);
/* Maps a peer's exported memory for `device`. fd stays the caller's. Returns CUDA (if peer access
 * is the cause, with what the two devices lack), INVALID (not an exported allocation). */
enum tutti_status cuda_memory_map(const struct cuda_driver *driver, CUdevice device, int fd,
                                  size_t bytes, struct cuda_memory *memory);
/* The same for host memory: a sealed segment that the device of the current context maps. Return
 * NO_MEMORY, CUDA, SYSTEM; INVALID for any other descriptor. */
enum tutti_status cuda_memory_create_host(const struct cuda_driver *driver, size_t bytes,
                                          struct cuda_memory *memory, int *fd);
enum tutti_status cuda_memory_map_host(const struct cuda_driver *driver, int fd, size_t bytes,
                                       struct cuda_memory *memory);
/* Also takes memory that is not mapped. No kernel may use it. */
void cuda_memory_unmap(const struct cuda_driver *driver, struct cuda_memory *memory);

#endif
