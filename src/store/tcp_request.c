/* SPDX-License-Identifier: MIT */
#include "store/tcp_request.h"

#include <stdlib.h>
#include <string.h>

static const char *arguments_of(uint8_t op)
{
#define ROW(name, code, arguments) [code] = arguments,
    static const char *const rows[256] = {TCP_OP_MAP(ROW)};
#undef ROW
    return rows[op];
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

/* Takes the next argument: DONE once it has arrived. The length of a string is checked before its
 * bytes are awaited. */
static enum tcp_parse parse_argument(struct tcp_request *request, const uint8_t *data, size_t size)
{
    const char kind = *request->arguments;
    const bool is_string = kind == 'k' || kind == 'v';
    size_t start = request->bytes;
    uint64_t bytes = kind == 'w' ? sizeof request->word : kind == 'n' ? TCP_NONCE_BYTES : 8;
    if (size - start < bytes)
        return TCP_MORE;
    if (is_string) {
        start += sizeof bytes;
        memcpy(&bytes, data + request->bytes, sizeof bytes);
        if (bytes > (kind == 'k' ? STORE_KEY_BYTES + 1 : STORE_VALUE_BYTES) ||
            start + bytes > TCP_REQUEST_BYTES)
            return TCP_BAD;
        if (size - start < bytes)
            return TCP_MORE;
    }
    request->bytes = start + bytes;
    if (is_string || kind == 'n')
        return add_field(request, start, bytes) ? TCP_DONE : TCP_BAD;
    if (kind == 'w')
        memcpy(&request->word, data + start, bytes);
    if (kind == 'i')
        memcpy(&request->number, data + start, bytes);
    if (kind == '*') {
        memcpy(&request->repeats, data + start, bytes);
        request->group = request->arguments + 1;
    }
    return request->repeats > STORE_MAX_KEYS ? TCP_BAD : TCP_DONE;
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

struct buffer tcp_request_make(const struct store_call *call, enum store_op op, bool waits)
{
    static const struct {
        enum tcp_op op;
        bool counted; /* the number of the keys goes before them */
    } rows[] = {
        [STORE_SET] = {TCP_SET, false},       [STORE_GET] = {TCP_MULTI_GET, true},
        [STORE_WAIT] = {TCP_WAIT, true},      [STORE_ADD] = {TCP_ADD, false},
        [STORE_CHECK] = {TCP_CHECK, true},    [STORE_COMPARE_SET] = {TCP_COMPARE_SET, false},
        [STORE_DELETE] = {TCP_DELETE, false}, [STORE_NUM_KEYS] = {TCP_NUM_KEYS, false},
    };
    struct buffer request = {0};
    buffer_put_u8(&request, waits ? TCP_WAIT_GET : (uint8_t)rows[op].op);
    if (rows[op].counted)
        buffer_put_u64(&request, call->count);
    for (size_t i = 0; i < call->count; i++)
        buffer_put_string(&request, call->keys[i], strlen(call->keys[i]));
    if (op == STORE_COMPARE_SET)
        buffer_put_string(&request, call->expected.data, call->expected.size);
    if (op == STORE_COMPARE_SET || op == STORE_SET)
        buffer_put_string(&request, call->value.data, call->value.size);
    if (op == STORE_ADD)
        buffer_put_u64(&request, (uint64_t)call->amount);
    if (op == STORE_SET) { /* has no reply: a reply to PING shows that the value is set */
        buffer_put_u8(&request, TCP_PING);
        buffer_put_u32(&request, 0);
    }
    return request;
}
