/* SPDX-License-Identifier: MIT */
/* Bytes that grow at the end. A failed allocation is remembered, so callers check it once, at the
 * end. */
#ifndef TUTTI_STORE_BUFFER_H
#define TUTTI_STORE_BUFFER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* All zero is an empty buffer. */
struct buffer {
    uint8_t *data;
    size_t size;
    size_t capacity;
    bool failed;
};

void buffer_fini(struct buffer *buffer);
/* Room for `bytes` more at data + size; NULL, and failed, when there is no memory. */
uint8_t *buffer_reserve(struct buffer *buffer, size_t bytes);
void buffer_put(struct buffer *buffer, const void *data, size_t bytes);
/* Removes bytes from the front. */
void buffer_drop(struct buffer *buffer, size_t bytes);

static inline void buffer_put_u8(struct buffer *buffer, uint8_t value)
{
    buffer_put(buffer, &value, sizeof value);
}

static inline void buffer_put_u32(struct buffer *buffer, uint32_t value)
{
    buffer_put(buffer, &value, sizeof value);
}

static inline void buffer_put_u64(struct buffer *buffer, uint64_t value)
{
    buffer_put(buffer, &value, sizeof value);
}

/* A u64 length and the bytes. */
static inline void buffer_put_string(struct buffer *buffer, const void *data, size_t bytes)
{
    buffer_put_u64(buffer, bytes);
    buffer_put(buffer, data, bytes);
}

#endif
