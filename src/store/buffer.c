/* SPDX-License-Identifier: MIT */
#include "store/buffer.h"

#include <stdlib.h>
#include <string.h>

void buffer_fini(struct buffer *buffer)
{
    free(buffer->data);
    *buffer = (struct buffer){0};
}

uint8_t *buffer_reserve(struct buffer *buffer, size_t bytes)
{
    if (buffer->failed)
        return NULL;
    if (bytes > buffer->capacity - buffer->size) {
        size_t capacity = buffer->capacity ? buffer->capacity : 256;
        while (capacity - buffer->size < bytes)
            capacity *= 2;
        uint8_t *data = realloc(buffer->data, capacity);
        if (!data) {
            buffer->failed = true;
            return NULL;
        }
        buffer->data = data;
        buffer->capacity = capacity;
    }
    return buffer->data + buffer->size;
}

void buffer_put(struct buffer *buffer, const void *data, size_t bytes)
{
    uint8_t *end = buffer_reserve(buffer, bytes);
    if (!end || bytes == 0)
        return;
    memcpy(end, data, bytes);
    buffer->size += bytes;
}

void buffer_drop(struct buffer *buffer, size_t bytes)
{
    buffer->size -= bytes;
    if (buffer->size && bytes)
        memmove(buffer->data, buffer->data + bytes, buffer->size);
}
