/* SPDX-License-Identifier: MIT */
/* A matrix of links as a text, in place of what a machine would say: for tests and odd machines. */
#ifndef TUTTI_TOPOLOGY_FILE_H
#define TUTTI_TOPOLOGY_FILE_H

#include "topology.h"

enum { TOPOLOGY_SOURCE_BYTES = 96, TOPOLOGY_LINKS_MOST = 999 };

/* A device: by its UUID, or by its place on the PCI bus. */
struct topology_device {
    uint8_t uuid[16];
    uint32_t domain;
    uint8_t bus, slot;
    uint8_t is_place; /* rather than a UUID */
    uint8_t pad;
};

/* Where a communicator's matrix comes from. */
struct topology_file {
    struct topology_matrix matrix; /* of the devices, if they are named, else of the ranks */
    int32_t named;
    struct topology_device devices[TUTTI_MAX_RANKS];
    char source[TOPOLOGY_SOURCE_BYTES]; /* the file's path (its end) */
};

/*
 * Reads a text which begins with "tutti-topology 1" and goes on with "ranks N" (1 to 64) and N rows
 * of N counts in rank order: row i holds the links from rank i, a number up to 999 or "?" where it
 * is not known; on the diagonal also "X". "devices ID ID ..." instead of "ranks N" names the
 * devices that rows and columns stand for, in UUIDs ("GPU-01234567-89ab-cdef-0123-456789abcdef")
 * or PCI bus ids ("0000:01:00.0"). Comments are behind '#'. Parses bytes from outside: has a
 * fuzzer. Returns INVALID, naming line and column.
 */
enum tutti_status topology_parse(const char *text, size_t length, const char *source,
                                 struct topology_file *file);
/* The same of a file. Returns INVALID, SYSTEM, NO_MEMORY. */
enum tutti_status topology_file_load(const char *path, struct topology_file *file);

/* False if the text is no PCI bus id: "DOMAIN:BUS:DEVICE.FUNCTION", in hexadecimal digits. */
bool topology_place_read(const char *text, size_t length, struct topology_device *device);

#endif
