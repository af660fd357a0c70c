/* SPDX-License-Identifier: MIT */
#include "store/tcp_request.h"

#include <stdlib.h>
#include <string.h>

static const char *arguments_of(uint8_t op)
{
#define ROW(name, code, arguments) [code] = arguments,
    static const char *const table[256] = {TCP_OP_MAP(ROW)};
#undef ROW
    return table[op];
}

void tcp_request_reset(struct tcp_request *request)
{
    free(request->fields);
    *request = (struct tcp_request){0};
}

static bool add_field(struct tcp_request *request, size_t offset, size_t bytes)
{
    if (request->count == request->capacity) {
        size_t capacity = request->capacity ? request->capacity * 2 : 4;
        struct tcp_field *fields = realloc(request->fields, capacity * sizeof *fields);
        if (!fields)
            return false;
        request->fields = fields;
        request->capacity = capacity;
    }
    request->fields[request->count++] = (struct tcp_field){offset, bytes};
    return true;
}

/* A string: its length, checked before its bytes are awaited. */
static enum tcp_parse parse_string(struct tcp_request *request, const uint8_t *data, size_t size,
                                   size_t most)
{
    uint64_t length;
    size_t start = request->bytes + sizeof length;
    if (size < start)
        return TCP_MORE;
    memcpy(&length, data + request->bytes, sizeof length);
    if (length > most || start + length > TCP_REQUEST_BYTES)
        return TCP_BAD;
    if (size < start + length)
        return TCP_MORE;
    request->bytes = start + length;
    return add_field(request, start, length) ? TCP_DONE : TCP_BAD;
}

static enum tcp_parse parse_plain(struct tcp_request *request, const uint8_t *data, size_t size,
                                  void *to, size_t bytes)
{
    if (size < request->bytes + bytes)
        return TCP_MORE;
    memcpy(to, data + request->bytes, bytes);
    request->bytes += bytes;
    return TCP_DONE;
}

static enum tcp_parse parse_argument(struct tcp_request *request, const uint8_t *data, size_t size)
{
    uint8_t nonce[TCP_NONCE_BYTES];
    enum tcp_parse result = TCP_BAD;
    switch (*request->arguments) {
    case 'k':
        return parse_string(request, data, size, TCP_KEY_BYTES);
    case 'v':
        return parse_string(request, data, size, TCP_VALUE_BYTES);
    case 'i':
        return parse_plain(request, data, size, &request->number, sizeof request->number);
    case 'w':
        return parse_plain(request, data, size, &request->word, sizeof request->word);
    case 'n':
        result = parse_plain(request, data, size, nonce, sizeof nonce);
        if (result == TCP_DONE && !add_field(request, request->bytes - sizeof nonce, sizeof nonce))
            return TCP_BAD;
        return result;
    case '*':
        result = parse_plain(request, data, size, &request->repeats, sizeof request->repeats);
        if (result == TCP_DONE && request->repeats > TCP_MAX_KEYS)
            return TCP_BAD;
        if (result == TCP_DONE)
            request->group = request->arguments + 1;
        return result;
    default:
        return TCP_BAD;
    }
}

enum tcp_parse tcp_request_parse(struct tcp_request *request, const uint8_t *data, size_t size)
{
    if (!request->arguments) {
        if (size == 0)
            return TCP_MORE;
        request->op = data[0];
        request->bytes = 1;
        request->arguments = arguments_of(request->op);
        if (!request->arguments)
            return TCP_BAD;
    }
    while (*request->arguments) {
        bool counted = *request->arguments == '*';
        enum tcp_parse result = parse_argument(request, data, size);
        if (result != TCP_DONE)
            return result;
        request->arguments++;
        if (counted && request->repeats == 0)
            break;
        if (!*request->arguments && request->group && --request->repeats > 0)
            request->arguments = request->group;
    }
    return TCP_DONE;
}
