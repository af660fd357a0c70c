/* SPDX-License-Identifier: MIT */
/*
 * Segments that the ranks of a communicator give each other. Threads of one process share a mapping
 * of a segment of the host's memory, which goes with its last holder. Other ranks get a descriptor.
 */
#ifndef TUTTI_SEGMENTS_H
#define TUTTI_SEGMENTS_H

#include "ipc/segment.h"
#include "peers/peers.h"

/* As segment_create(); the caller holds the segment. [out] id: by which a thread joins it; no other
 * segment of this process has it. */
enum tutti_status segments_create(const char *label, size_t bytes, struct segment *segment, int *fd,
                                  uint64_t *id);
/* Maps the segment of another rank as segment_map_part() does. A thread of this process holds the
 * rank's mapping instead; returns PEER_DEAD if the rank has given it up. */
enum tutti_status segments_join(const struct peers *peers, int rank, int fd, uint64_t id,
                                size_t bytes, size_t part, void **base);
/* Adds a holder to a segment of this process. */
void segments_hold(void *base);
/* Ends a hold, or a mapping of `bytes` bytes of another process's segment. */
void segments_leave(void *base, size_t bytes);

/* Maps a rank's segment. fd: the caller closes it. */
typedef enum tutti_status segments_map_fn(void *context, int rank, int fd);

/*
 * Collective. Sends this rank's descriptor to the ranks of other processes, and maps the segment of
 * each other rank. It goes on after a failure, so that no descriptor stays on the way and no peer
 * waits for one. A fault of any rank, and an abort, end its waits. Returns the first failure. The
 * ranks then agree on that (store/status_agree.h); before they have, no rank closes its descriptor
 * or frees its segment.
 *
 * [in] fds  by rank: the descriptor of its segment as its own process numbers it; -1: none.
 *           Threads of one process use the number itself.
 */
enum tutti_status segments_exchange(struct peers *peers, const int *fds, segments_map_fn *map,
                                    void *context, int64_t deadline);

#endif
