/* SPDX-License-Identifier: MIT */
/*
 * The CPU's operations among ranks, and messages of a process group. A communicator on another
 * device has such a group where its hosts run operations for it.
 */
#ifndef TUTTI_CPU_GROUP_H
#define TUTTI_CPU_GROUP_H

#include "coll/backend.h"
#include "cpu/transport/team.h" /* threads that share one rank's work */
#include "peers/peers.h"

struct cpu_group;

/* No state of a running operation (struct algorithm) is larger. */
enum { CPU_STATE_BYTES = 8 * 1024 };

/* Returns empty peers, with room for a group that begins with them; NULL if there is no memory. */
struct peers *cpu_group_create(void);
/* Collective. The peers were made by cpu_group_create(), are open, and have arenas of
 * cpu_group_arena_bytes(). `rules`: borrowed until the close of the peers, with which the group
 * ends. After a failure of any rank close them. */
enum tutti_status cpu_group_open(const struct backend_opening *opening,
                                 const struct choice_rules *rules, struct cpu_group **group);
/* Collective, behind cpu_group_open(): whether long blocks are copied from one process's memory to
 * another's. Returns DECLINED if they are to and the kernel refuses. */
enum tutti_status cpu_group_open_direct(struct cpu_group *group,
                                        const struct backend_opening *opening);
/* Bytes of each arena of such a group. */
size_t cpu_group_arena_bytes(const struct backend_opening *opening,
                             const struct choice_rules *rules);
/* The fewest bytes that an arena may have, and the most that a group uses. */
size_t cpu_group_least_arena(int ranks);
size_t cpu_group_most_arena(void);

/* A message of a process group to another rank. Messages of a pair arrive in order. Only the caller
 * of operations sends and takes them. */
struct cpu_message {
    uint64_t kind; /* these three are the process group's own; kind: below 2^63 */
    uint64_t id;
    uint64_t signature;
    uint32_t parameter;
};

/* The most bytes that a message may have. */
size_t cpu_message_most(const struct cpu_group *group);
/* Sends a message. Returns false and does nothing if four messages wait for the peer already. */
bool cpu_message_send(struct cpu_group *group, int to, const struct cpu_message *message,
                      const void *data, size_t bytes);
/* Returns the next message from a rank; false if there is none, or if a collective's message comes
 * first.
 */
bool cpu_message_next(struct cpu_group *group, int from, struct cpu_message *message);
/* The data of that message, which must have been sent with `bytes` bytes. */
const void *cpu_message_data(struct cpu_group *group, int from, size_t bytes);
/* Frees the place of that message: it has been read. */
void cpu_message_taken(struct cpu_group *group, int from);
/* How many messages of that rank this rank has read, those of collectives among them. */
uint64_t cpu_messages_read(const struct cpu_group *group, int from);
/* Sets the function that a collective calls when a process group's message comes before its own.
 * take() returns false if there is no message, or no memory for it. The collective then calls it
 * again until its deadline, and ends with NO_MEMORY. */
void cpu_group_set_messages(struct cpu_group *group, bool (*take)(void *context, int from),
                            void *context);

/* The threads that share a rank's work in zero-copy operations; the caller owns them. NULL: none.
 */
struct cpu_team **cpu_group_team(struct cpu_group *group);

/* struct backend's run_more(): under the previous operation's announcement. In a v-form a rank
 * without further elements of any block does not take part; in any other collective all ranks have
 * the same number of parts. */
enum tutti_status cpu_run_more(void *group, struct request *request);
/* struct algorithm's `run`: a barrier of all ranks, or of request->subset, this rank among them. */
enum tutti_status cpu_barrier(void *group, struct request *request, tutti_stream_t stream);

#endif
