/* SPDX-License-Identifier: MIT */
/* Which option set a time-out. It travels in the fault of a TIMEOUT: `seen.parameter` is one of
 * these, `seen.count` the time-out in milliseconds. If a device waited for a rank that is a thread
 * of the same process, `seen.parameter` also has the bit TIMEOUT_OF_THREAD. */
#ifndef TUTTI_TIMEOUT_SOURCE_H
#define TUTTI_TIMEOUT_SOURCE_H

enum timeout_source {
    TIMEOUT_UNKNOWN,
    TIMEOUT_OF_CALL,
    TIMEOUT_OF_COMM,
    TIMEOUT_OF_ENVIRONMENT,
    TIMEOUT_OF_DEFAULT,
    TIMEOUT_OF_THREAD = 0x100,
};

#endif
