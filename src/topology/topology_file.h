/* SPDX-License-Identifier: MIT */
/* Reads a matrix of links from a text file. The matrix replaces what the machine reports: for
 * tests, and for machines that report it wrong. */
#ifndef TUTTI_TOPOLOGY_FILE_H
#define TUTTI_TOPOLOGY_FILE_H

#include "topology/topology.h"

enum { TOPOLOGY_SOURCE_BYTES = 96, TOPOLOGY_LINKS_MOST = 999 };

/* Identifies a device by its UUID or by its PCI bus id. */
struct topology_device {
    uint8_t uuid[16];
    uint32_t domain;
    uint8_t bus, slot;
    uint8_t is_bus_id; /* 1: domain, bus and slot are set; 0: uuid is set */
    uint8_t pad;
};

/* The contents of a topology file. */
struct topology_file {
    struct topology_matrix matrix; /* between the devices if `named`, else between the ranks */
    int32_t named;                 /* 1: the file has a line "devices ..." */
    struct topology_device devices[TUTTI_MAX_RANKS];
    char source[TOPOLOGY_SOURCE_BYTES]; /* the file's path; only its end if it is longer */
};

/*
 * Parse a text of these lines; '#' starts a comment:
 *   tutti-topology 1
 *   ranks N             1 to 64. Or: "devices ID ID ...", one ID for each row: a UUID
 *                       ("GPU-01234567-89ab-cdef-0123-456789abcdef") or a PCI bus id
 *                       ("0000:01:00.0")
 *   N rows of N counts  row i has the links from rank (or device) i: 0 to 999, or "?" where the
 *                       count is unknown. The diagonal may be "X"
 * The bytes come from outside, so this parser has a fuzzer. Returns INVALID; the message names the
 * line and the column.
 */
enum tutti_status topology_parse(const char *text, size_t length, const char *source,
                                 struct topology_file *file);
/* Read and parse a file. Returns INVALID, SYSTEM, NO_MEMORY. */
enum tutti_status topology_file_load(const char *path, struct topology_file *file);

/* Parse a PCI bus id, "DOMAIN:BUS:DEVICE.FUNCTION" in hexadecimal digits. Return false if the text
 * is something else. */
bool topology_bus_id_read(const char *text, size_t length, struct topology_device *device);

#endif
