/* SPDX-License-Identifier: MIT */
/*
 * What ranks of several hosts have in place of shared memory: packets over the link of their
 * communicator, also between ranks of one host. A packet is a header and, if it has one, a body.
 * The packets of a pair of ranks arrive in order.
 *
 * An announcement goes to the leader, a verdict to all ranks. The receiver writes it into a copy of
 * the sender's control ring (control_ring.h), from which the leader and the engine read it. Packets
 * of messages stay where they are until message.c takes them.
 *
 *     a rank that leaves                the others
 *     END (the cause) to all       ->   END to it: no more packets between the two
 *                                       leader: LEFT (the rank) to all
 *
 * A rank has left once its END has come, and the leader's LEFT: so the verdicts that the rank has
 * followed have come, too. Only the thread that steps the engine calls these functions.
 */
#ifndef TUTTI_PG_WIRE_H
#define TUTTI_PG_WIRE_H

#include "base/layout.h"

#include <stdbool.h>

struct cpu_message;
struct pg_control;
struct pg_wire;
struct tutti_comm;

/* The most bytes of a packet's body. */
enum { PG_WIRE_BYTES = 64 * 1024 };

/* Opens the wire of a communicator of several hosts, and sets control->wire and control->rings. The
 * memory is freed with the communicator's link. Returns NO_MEMORY. */
enum tutti_status pg_wire_open(struct tutti_comm *comm, struct pg_control *control);
/* Tells all ranks that this one leaves because of the rank `cause`. Waits up to a second for the
 * last packets. */
void pg_wire_close(struct pg_wire *wire, int cause);
/* Makes progress. Returns whether there was an event. */
bool pg_wire_poll(struct pg_wire *wire);
/* Whether the communicator has failed. Asks the store at times. `busy`: the rank has operations. */
bool pg_wire_has_failed(struct pg_wire *wire, bool busy);

/* Whether a packet for the rank has a place. One for a rank that has left always has one, and is
 * dropped. */
bool pg_wire_has_place(const struct pg_wire *wire, int to);
/* These return false and do nothing if there is no place. */
bool pg_wire_announce(struct pg_wire *wire, const struct layout_announcement *announcement,
                      size_t bytes);
bool pg_wire_post(struct pg_wire *wire, int to, const struct layout_verdict *verdict, size_t bytes);
bool pg_wire_message_send(struct pg_wire *wire, int to, const struct cpu_message *message,
                          const void *data, size_t bytes);
/* As cpu_message_next(), cpu_message_data() and cpu_message_taken(). */
bool pg_wire_message_next(const struct pg_wire *wire, int from, struct cpu_message *message);
const void *pg_wire_message_data(const struct pg_wire *wire, int from);
void pg_wire_message_taken(struct pg_wire *wire, int from);

#endif
