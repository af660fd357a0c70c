/* SPDX-License-Identifier: MIT */
/* A window of the stand-in for NVIDIA's library, in the device's memory: as large as in 2.28. */
#ifndef TESTS_NCCL_REAL_WINDOW_H
#define TESTS_NCCL_REAL_WINDOW_H

struct ncclWindow_vidmem {
    void *memory;
    int device_comms; /* how many were made since: NVIDIA's library changes windows then */
    char rest[60];
};

enum { REAL_WINDOW_BYTE = 0x5a }; /* of the rest */

#endif
