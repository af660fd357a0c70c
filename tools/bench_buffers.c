/* SPDX-License-Identifier: MIT */
#include "bench_buffers.h"

#include <stdlib.h>
#include <string.h>

enum { GUARD_BYTES = 64, GUARD = 0x5a, ALIGNMENT = 4096 };

static size_t stride_of(size_t bytes)
{
    return (bytes + 2 * GUARD_BYTES - 1) / GUARD_BYTES * GUARD_BYTES;
}

static size_t slots_of(const struct bench_buffers *buffers, size_t bytes)
{
    size_t slots = 1;
    while (buffers->cold && slots * stride_of(bytes) < 2 * buffers->cache_bytes)
        slots *= 2;
    return slots;
}

static size_t arena_bytes(const struct bench_buffers *buffers, const struct bench_config *config)
{
    size_t most = 0;
    for (int i = 0; i < config->row_count; i++) {
        size_t bytes = config->rows[i].bytes;
        size_t need = slots_of(buffers, bytes) * stride_of(bytes);
        most = need > most ? need : most;
    }
    return (GUARD_BYTES + most + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
}

static enum tutti_status allocate(struct bench_buffers *buffers, size_t bytes, int64_t timeout_ms,
                                  void **memory)
{
    if (!buffers->group) {
        *memory = aligned_alloc(ALIGNMENT, bytes);
        return *memory ? TUTTI_OK : TUTTI_ERR_NO_MEMORY;
    }
    enum tutti_status status = tutti_symm_alloc(buffers->group, TUTTI_DEVICE_CPU, bytes, memory);
    return status ? status : tutti_symm_rendezvous(*memory, timeout_ms, NULL);
}

enum tutti_status bench_buffers_init(struct bench_buffers *buffers,
                                     const struct bench_config *config, int rank,
                                     tutti_store_t *store)
{
    *buffers = (struct bench_buffers){
        .cold = config->cold, .cache_bytes = config->placement.cache_bytes, .slots = 1};
    size_t bytes = arena_bytes(buffers, config);
    enum tutti_status status = TUTTI_OK;
    void *memory = NULL;
    if (config->symmetric)
        status = tutti_symm_group("bench", rank, config->ranks, store, &buffers->group);
    if (!status)
        status = allocate(buffers, 2 * bytes, config->timeout_ms, &memory);
    buffers->send = memory;
    if (status)
        return status;
    buffers->recv = buffers->send + bytes;
    memset(memory, 0, 2 * bytes);
    return TUTTI_OK;
}

void bench_buffers_shape(struct bench_buffers *buffers, size_t send_bytes, size_t recv_bytes)
{
    size_t bytes = send_bytes > recv_bytes ? send_bytes : recv_bytes;
    buffers->send_bytes = send_bytes;
    buffers->recv_bytes = recv_bytes;
    buffers->stride = stride_of(bytes);
    buffers->slots = slots_of(buffers, bytes);
}

/* With an odd multiplier all slots, whose number is a power of two, are visited before one is
 * visited again. */
static size_t slot_offset(const struct bench_buffers *buffers, size_t i)
{
    return GUARD_BYTES + (i * 2654435761u & (buffers->slots - 1)) * buffers->stride;
}

void *bench_buffers_send(const struct bench_buffers *buffers, size_t i)
{
    return buffers->send + slot_offset(buffers, i);
}

void *bench_buffers_recv(const struct bench_buffers *buffers, size_t i)
{
    return buffers->recv + slot_offset(buffers, i);
}

void bench_buffers_guard(struct bench_buffers *buffers)
{
    memset(buffers->send, GUARD, GUARD_BYTES + buffers->stride);
    memset(buffers->recv, GUARD, GUARD_BYTES + buffers->stride);
}

static uint64_t count_changed(const char *bytes, size_t count)
{
    uint64_t changed = 0;
    for (size_t i = 0; i < count; i++)
        changed += bytes[i] != GUARD;
    return changed;
}

uint64_t bench_buffers_damage(const struct bench_buffers *buffers)
{
    const char *send = buffers->send, *recv = buffers->recv;
    const size_t send_end = GUARD_BYTES + buffers->send_bytes;
    const size_t recv_end = GUARD_BYTES + buffers->recv_bytes;
    const size_t end = GUARD_BYTES + buffers->stride;
    return count_changed(send, GUARD_BYTES) + count_changed(send + send_end, end - send_end) +
           count_changed(recv, GUARD_BYTES) + count_changed(recv + recv_end, end - recv_end);
}

void bench_buffers_chill(const struct bench_buffers *buffers)
{
    if (!buffers->cold)
        return;
    size_t bytes = 2 * buffers->cache_bytes;
    volatile char *other = calloc(1, bytes ? bytes : 1);
    for (size_t i = 0; other && i < bytes; i += 64)
        other[i] = 1;
    free((void *)(uintptr_t)other);
}

void bench_buffers_fini(struct bench_buffers *buffers)
{
    if (buffers->group)
        tutti_symm_group_destroy(buffers->group); /* also frees the arenas */
    else
        free(buffers->send);
    *buffers = (struct bench_buffers){0};
}
