/* SPDX-License-Identifier: MIT */
/*
 * A relay of TCP connections, for tests: what a bad network does to a store. It is a process that
 * listens on loopback, and passes all bytes on to a port of this machine. The control's fields may
 * be changed at any time:
 *
 *     struct relay *relay = relay_start(port of the store);    // before the ranks begin
 *     ... "tcp://127.0.0.1:%u", relay->port ...
 *     relay_set(relay->mode, RELAY_CLOSED);
 *     ...
 *     relay_end(relay);
 */
#ifndef TESTS_RELAY_H
#define TESTS_RELAY_H

#include <stdint.h>
#include <sys/types.h>

enum relay_mode {
    RELAY_WHOLE,
    RELAY_SILENT, /* takes connections and bytes, and passes none on, as a cable that is cut */
    RELAY_CLOSED, /* ends all connections, and each new one at once */
};

/* In memory that children of fork() share. */
struct relay {
    pid_t process;
    uint16_t port;
    uint32_t mode;
    uint32_t delay_us; /* how long bytes take, in each direction */
};

#define relay_set(field, value) __atomic_store_n(&(field), (value), __ATOMIC_SEQ_CST)

/* Ends the test on failure. */
struct relay *relay_start(uint16_t target);
void relay_end(struct relay *relay);

#endif
