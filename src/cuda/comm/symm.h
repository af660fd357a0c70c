/* SPDX-License-Identifier: MIT */
/*
 * Symmetric memory on devices, for symm/. No CUDA type is visible here.
 */
#ifndef TUTTI_CUDA_SYMM_H
#define TUTTI_CUDA_SYMM_H

#include "cuda/comm/group.h"
#include "cuda/kernels/symm_launch.h"

struct cuda_symm; /* one rank's allocation */

struct cuda_symm_config {
    int rank;
    int size; /* at most CUDA_RANKS */
    size_t pad_offset;
    size_t tail_offset;
    int64_t timeout_ms;  /* of set-up, and of calls that name none */
    struct peers *peers; /* of the same ranks, borrowed; knows which ranks live */
};

/* The failure of a wait on the device, which is final. */
struct cuda_symm_fault {
    enum tutti_status status;
    enum cuda_symm_call call;
    int peer;
    int channel;
    bool raised; /* true: the wait was for the peer's signal; false: for the peer to take the last
                    one */
};

/* Local; on the device of the current context. The memory is zero and exported. fd is the caller's
 * to close. Returns DECLINED, NO_MEMORY, CUDA, SYSTEM. */
enum tutti_status cuda_symm_create(const struct cuda_symm_config *config,
                                   struct cuda_device *device, struct cuda_symm **symm, void **base,
                                   int *fd);
/* Maps a peer's exported memory and reads from it as kernels will. Call it once for each peer.
 * After a failure the allocation can only be destroyed. Returns CUDA, INVALID, NO_MEMORY, TIMEOUT,
 * SYSTEM. */
enum tutti_status cuda_symm_map(struct cuda_symm *symm, int peer, int fd, int64_t deadline);
/* Makes the arrays of all peers' addresses, and watches the peers. [out] buffers: by rank, as this
 * rank's device sees them. [out] device_buffers, device_pads: the arrays, in device memory. Returns
 * CUDA, TIMEOUT, NO_MEMORY. */
enum tutti_status cuda_symm_join(struct cuda_symm *symm, int64_t deadline, void **buffers,
                                 void *const **device_buffers, uint32_t *const **device_pads);

/* Enqueues a barrier, a put or a wait; any thread may call it. timeout_ms 0: the
 * configuration's; negative: none. Returns CUDA. */
enum tutti_status cuda_symm_enqueue(struct cuda_symm *symm, enum cuda_symm_call call, int peer,
                                    int channel, int64_t timeout_ms, tutti_stream_t stream);
/* The fault that a kernel has recorded; false if there is none. One load. */
bool cuda_symm_failed(const struct cuda_symm *symm, struct cuda_symm_fault *fault);

/* Local, with a bound on its time: first ends this rank's kernels and tells those of the peers.
 * What a captured graph still needs lives as long as the graph. Takes NULL. */
void cuda_symm_destroy(struct cuda_symm *symm);

#endif
