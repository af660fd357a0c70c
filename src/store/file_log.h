/* SPDX-License-Identifier: MIT */
/* The records of a FileStore, apart from the file that holds them. */
#ifndef TUTTI_STORE_FILE_LOG_H
#define TUTTI_STORE_FILE_LOG_H

#include "store/map.h"

/* A longer key in a record that is not whole says that the file is something else. */
#define FILE_LOG_KEY_BYTES ((uint32_t)64 * 1024)

enum file_log_result {
    FILE_LOG_WHOLE,   /* every byte belonged to a record */
    FILE_LOG_CUT,     /* the last record lacks its end */
    FILE_LOG_FOREIGN, /* this is no FileStore's log */
    FILE_LOG_NO_MEMORY,
};

/* Applies the whole records at the start of data to the map; *used is their length. */
enum file_log_result file_log_apply(struct map *map, const uint8_t *data, size_t size,
                                    size_t *used);
/* Whether a FileStore writes such keys: "/...", "-/...", or one of its own. */
bool file_log_key_known(const uint8_t *key, size_t bytes);

#endif
