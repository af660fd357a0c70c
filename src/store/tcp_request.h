/* SPDX-License-Identifier: MIT */
/* Makes requests, and parses them while their bytes arrive, each byte once. */
#ifndef TUTTI_STORE_TCP_REQUEST_H
#define TUTTI_STORE_TCP_REQUEST_H

#include "store/buffer.h"
#include "store/kind.h"
#include "store/tcp.h"

/* What one request may hold in all. */
#define TCP_REQUEST_BYTES ((size_t)16 * 1024 * 1024 + 64 * 1024)

struct tcp_field {
    size_t offset; /* from the request's first byte */
    size_t bytes;
};

/* All zero is ready for a request. */
struct tcp_request {
    uint8_t op;
    size_t bytes;             /* of the request that are understood; all of them when DONE */
    struct tcp_field *fields; /* keys, values and nonces in order */
    size_t count, capacity;
    int64_t number;        /* the i */
    uint32_t word;         /* the w */
    const char *arguments; /* that are still to come; NULL before the opcode */
    const char *group;     /* what is repeated */
    uint64_t repeats;      /* how often it still comes */
};

enum tcp_parse { TCP_MORE, TCP_DONE, TCP_BAD };

/* data is the request from its first byte, as far as it has arrived: more than in the last call. */
enum tcp_parse tcp_request_parse(struct tcp_request *request, const uint8_t *data, size_t size);
/* Makes it ready for the next request. */
void tcp_request_reset(struct tcp_request *request);

/* A call's request. `waits`: a GET that waits for its keys. */
struct buffer tcp_request_make(const struct store_call *call, enum store_op op, bool waits);

#endif
