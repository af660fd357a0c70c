/* SPDX-License-Identifier: MIT */
/* Symmetric memory. Part of tutti.h, whose conventions hold. */
#ifndef TUTTI_SYMMETRIC_H
#define TUTTI_SYMMETRIC_H

#include "tutti/tutti.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- memory that every rank has mapped ------------------------------------------------------- */

/*
 * Symmetric memory is an allocation of one size on each rank of a group, in host memory or on the
 * ranks' CUDA devices, which each of them maps. The ranks are processes of one machine, threads of
 * one process, or both. The memory has no name in any file system: it travels as a descriptor, and
 * the kernel frees it when its last user ends. Collectives take it as operands, in host memory
 * without a copy (see TUTTI_CALL_NO_ZERO_COPY), on CUDA also by copy engines (see
 * TUTTI_CALL_COPY_ENGINE).
 *
 * The default time-out is 600 s, unless TUTTI_TIMEOUT_MS was set when the group was registered. No
 * other call may use a buffer while it is freed. A child of fork() does not inherit the memory: its
 * calls on a group or buffer of its parent return INVALID. It may register its own group.
 */
typedef struct tutti_symmetric_group tutti_symm_group_t;

/* One rank's view of an allocation after the rendezvous. The arrays and the addresses in them are
 * valid in this process until the free. */
struct tutti_symm_info {
    size_t struct_size;
    int rank;
    int world_size;
    size_t buffer_bytes;          /* of each rank's buffer, as allocated */
    size_t signal_pad_bytes;      /* of each rank's signal pad, at least 2048 */
    void *const *buffers;         /* an address of each rank's, in rank order */
    uint32_t *const *signal_pads; /* an address of each rank's, in rank order */
    int channels;                 /* barrier, put and wait use channels 0 to channels - 1 */
    enum tutti_device device;     /* that the addresses belong to */
    /* Copies of the two tables in device memory, for kernels; NULL on CPU. */
    void *const *device_buffers;
    uint32_t *const *device_signal_pads;
};

/*
 * Registers a group of 1 to 64 ranks. Local. The name has 1 to 63 bytes and is equal on all ranks.
 * A process registers a name only once for each rank; after the destroy, or a crash, a new group
 * may use the name on the same store.
 *
 * - [in] store: the ranks meet there at the group's first rendezvous. Borrowed until that has
 *   ended, or the destroy
 * - [out] group: destroy it with tutti_symm_group_destroy()
 *
 * Returns INVALID (also if the name is already registered), NO_MEMORY, SYSTEM.
 */
TUTTI_API enum tutti_status tutti_symm_group(const char *name, int rank, int world_size,
                                             tutti_store_t *store, tutti_symm_group_t **group);
/* Frees the group and its allocations as tutti_symm_free() does. Local; takes NULL. Peers' waits
 * for this rank get PEER_DEAD. */
TUTTI_API void tutti_symm_group_destroy(tutti_symm_group_t *group);
/*
 * Allocates `bytes` bytes (more than 0) of zeroed memory to share, aligned to 4096 bytes, and a
 * signal pad. Local. All pages are allocated at once, so a machine without enough memory gives an
 * error here and no signal later. A process has at most 1024 such buffers.
 *
 * - [in] device: with CUDA, the device whose context is current in the calling thread. The memory
 *   is in whole device pages (2 MiB). The group has at most 8 ranks, each on its own device. The
 *   context must outlive the buffer
 * - [out] buffer: an address on that device; free it with tutti_symm_free() or with its group.
 *   Collectives of a CUDA communicator accept it like any memory of the device; those of a CPU
 *   communicator refuse memory of a device
 *
 * Returns INVALID, NO_MEMORY (the message names the limit), SYSTEM, CUDA, DECLINED (on CUDA: built
 * without kernels; no driver, device or current context; device too old; too many ranks).
 *
 * Example: ranks write to their neighbours; examples/symmetric.c is a complete program:
 *
 *     int64_t count = 1000;
 *     void *buffer, *theirs;
 *
 *     tutti_symm_alloc(group, TUTTI_DEVICE_CPU, count * sizeof(float), &buffer);
 *     tutti_symm_rendezvous(buffer, 0, NULL);
 *     tutti_symm_buffer(buffer, right, &count, 1, TUTTI_FLOAT32, 0, &theirs);
 *     memcpy(theirs, mine, count * sizeof(float)); // the right neighbour's
 *     tutti_symm_put_signal(buffer, right, 0, 0, TUTTI_STREAM_DEFAULT);
 *     tutti_symm_wait_signal(buffer, left, 0, 0, TUTTI_STREAM_DEFAULT);
 *     // buffer now has the left neighbour's data
 */
TUTTI_API enum tutti_status tutti_symm_alloc(tutti_symm_group_t *group, enum tutti_device device,
                                             size_t bytes, void **buffer);
/*
 * Frees this rank's allocation and its views of the peers' allocations. Local; takes NULL. Peers
 * keep their views; their waits for this rank get PEER_DEAD. On CUDA, calls under way on streams
 * get 0.1 s to end, then their waits are ended. The caller first waits for launched graphs of such
 * calls. A graph may be launched again after the free; its calls do nothing. It holds the device's
 * memory until it is destroyed and the process then creates or destroys a communicator or
 * allocation. Returns INVALID.
 */
TUTTI_API enum tutti_status tutti_symm_free(void *buffer);
/*
 * Maps the allocations of all peers. Collective over the group. All ranks call it for their
 * allocations in the same order, one call at a time, with the same kind of device and the same
 * size. A second call for a buffer returns at once. If the kinds or sizes differ (MISMATCH), or two
 * ranks use one device (DECLINED), the group stays usable; after any other failure it stays failed.
 * On CUDA each rank also reads from each peer's memory, so a broken link is found here. There, one
 * thread of the process watches the ranks of other processes.
 *
 * - [in] buffer: an address from tutti_symm_alloc(), here and below
 * - [out] info: may be NULL; the caller sets struct_size
 *
 * Returns INVALID, DECLINED (several hosts; two ranks on one device, by UUID, unless
 * TUTTI_ALLOW_OVERLAPPING_DEVICES is set on all ranks), TIMEOUT (the message names the rank that
 * did not come), PEER_DEAD, MISMATCH (the ranks' sizes or kinds of device differ, or they differ
 * about the group; the message names both values), CONCURRENT (another thread is in a rendezvous of
 * this group), NO_MEMORY, SYSTEM, VERSION, CUDA (also if a peer's memory cannot be mapped).
 */
TUTTI_API enum tutti_status tutti_symm_rendezvous(void *buffer, int64_t timeout_ms,
                                                  struct tutti_symm_info *info);
/*
 * Sets *view to the address of element storage_offset in rank's buffer, after the rendezvous.
 * Checks that a dense tensor of the given sizes fits there. The address is valid until the free.
 *
 * - [in] sizes: `dims` extents, each at least 0; with dims 0 the tensor is one element
 *
 * Returns INVALID (also if an extent is negative or overflows, or the tensor does not fit).
 */
TUTTI_API enum tutti_status tutti_symm_buffer(void *buffer, int rank, const int64_t *sizes,
                                              int dims, enum tutti_dtype dtype,
                                              int64_t storage_offset, void **view);
/* The same for count words of rank's signal pad from word offset. The channels come first, then at
 * least 512 words for the application. The signal of channel c from rank f is word (c * world_size
 * + f) * 16 of the pad of the rank that takes it: 1 while it is raised, else 0. */
TUTTI_API enum tutti_status tutti_symm_signal_pad(void *buffer, int rank, int64_t offset,
                                                  int64_t count, uint32_t **view);
/*
 * *Signals.* A signal pad has several channels, and on each channel one signal from each rank. Use
 * a channel either for barriers or for signals, not for both at once. In host memory
 * tutti_symm_barrier(), tutti_symm_put_signal() and tutti_symm_wait_signal() block, accept
 * TUTTI_STREAM_DEFAULT only, and return TIMEOUT or PEER_DEAD themselves.
 *
 * On CUDA they enqueue on any stream of the buffer's device and return at once; the stream waits.
 * They may be captured in graphs, which may be launched any number of times. Calls on one channel
 * take effect in the order in which streams reach them; Tutti does not order the streams. If a wait
 * ends with TIMEOUT or PEER_DEAD (within 0.1 s of the peer's death or free), the stream goes on
 * without a CUDA error and this rank's buffer fails for good: all waits under way end, later calls
 * and launches of graphs do nothing, and tutti_symm_status() and the three calls return that error.
 * Peers are not notified. The memory and its views stay valid. The time-out counts from the call's
 * first wait. A graph does not store time-out 0: it uses the group's default at each launch.
 */

/* A barrier of all ranks of the group: what a rank wrote before is visible to all after. One caller
 * at a time per channel, and no signal is raised on the channel. Returns INVALID, TIMEOUT,
 * PEER_DEAD, CUDA. After a failure the channel may still have signals of ranks that arrived. */
TUTTI_API enum tutti_status tutti_symm_barrier(void *buffer, int channel, int64_t timeout_ms,
                                               tutti_stream_t stream);
/* Waits until the peer has taken this rank's previous signal on the channel, then raises it.
 * Releases earlier writes. One caller per peer and channel. Returns INVALID, TIMEOUT, PEER_DEAD,
 * CUDA. */
TUTTI_API enum tutti_status tutti_symm_put_signal(void *buffer, int peer, int channel,
                                                  int64_t timeout_ms, tutti_stream_t stream);
/* Waits for the peer's signal on the channel and takes it. Acquires the peer's earlier writes. One
 * caller per peer and channel. Returns INVALID, TIMEOUT, PEER_DEAD, CUDA. */
TUTTI_API enum tutti_status tutti_symm_wait_signal(void *buffer, int peer, int channel,
                                                   int64_t timeout_ms, tutti_stream_t stream);
/* Fills *fault, which may be NULL; the caller sets struct_size. There rank is this rank, peer the
 * awaited rank and expected.parameter the channel. For the message use tutti_last_error(), not
 * tutti_fault_format(). Does not wait. Returns the status with which this rank's buffer has failed,
 * TIMEOUT or PEER_DEAD; OK while it works, and always in host memory; INVALID for an address that
 * is not a buffer's. */
TUTTI_API enum tutti_status tutti_symm_status(void *buffer, struct tutti_fault *fault);

#ifdef __cplusplus
}
#endif

#endif
