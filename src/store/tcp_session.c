/* SPDX-License-Identifier: MIT */
#include "store/tcp_session.h"

#include "ipc/random.h"

#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 64 * 1024 };

/* What is set when the client's process ends. The bytes are those of the key, then of the value. */
struct tcp_will {
    struct tcp_will *next;
    size_t key_bytes, value_bytes;
    uint8_t bytes[];
};

struct text {
    const uint8_t *data;
    size_t bytes;
};

static struct text field(const struct tcp_session *session, size_t i)
{
    const struct tcp_field *row = &session->request.fields[i];
    return (struct text){session->in.data + row->offset, row->bytes};
}

/* ---- contents -------------------------------------------------------------------------------- */

static bool fits(const struct tcp_space *space, size_t bytes)
{
    return space->values.bytes + space->queues.bytes + space->buffered_bytes + bytes <=
           TCP_SPACE_BYTES;
}

static struct map_entry *find(const struct map *map, struct text key)
{
    return map_find(map, key.data, key.bytes);
}

static bool exists(const struct tcp_space *space, struct text key)
{
    return find(&space->values, key) || find(&space->queues, key);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Looks how far the wait of a session is. A WAIT passes its keys in their order; each
 * must be there when it is looked at. */
static bool wait_is_over(struct tcp_session *session)
{
    const struct tcp_request *request = &session->request;
    int64_t count;
    if (request->op == TCP_BARRIER) {
        char text[MAP_NUMBER_BYTES];
        return map_sum(find(&session->space->values, field(session, 0)), 0, &count, text) &&
               count >= request->number;
    }
    while (session->next_key < request->count &&
           exists(session->space, field(session, session->next_key)))
        session->next_key++;
    return session->next_key == request->count;
}

/* GET, MULTI_GET and WAIT_GET. An absent key has an empty value here. CHECK and WAIT tell the two
 * apart. */
static bool serve_get(struct tcp_session *session)
{
    for (size_t i = 0; i < session->request.count; i++) {
        const struct map_entry *entry = find(&session->space->values, field(session, i));
        const size_t bytes = entry ? entry->value_bytes : 0;
        if (session->out.size + bytes > TCP_REPLY_BYTES)
            return false;
        buffer_put_string(&session->out, entry ? entry->value : NULL, bytes);
    }
    return true;
}

/* The reply at the end of a wait. Returns false if it is too long. */
static bool wait_answer(struct tcp_session *session)
{
    if (session->request.op == TCP_WAIT_GET)
        return serve_get(session);
    buffer_put_u8(&session->out, TCP_STOP_WAITING);
    return true;
}

/* Answers the request, or lets the session wait. */
static bool answer_or_wait(struct tcp_session *session)
{
    session->next_key = 0;
    session->is_waiting = !wait_is_over(session);
    return session->is_waiting || wait_answer(session);
}

static void request_end(struct tcp_session *session)
{
    session->is_waiting = false;
    buffer_drop(&session->in, session->request.bytes);
    tcp_request_reset(&session->request);
}

/* Tells the sessions that wait for a key that it has changed; `one`: ends one wait at most. */
static void wake(struct tcp_space *space, struct text key, bool one)
{
    for (struct tcp_session *session = space->sessions; session; session = session->next) {
        if (!session->is_waiting)
            continue;
        struct text awaited = field(session, session->next_key);
        if (awaited.bytes != key.bytes || memcmp(awaited.data, key.data, key.bytes) != 0 ||
            !wait_is_over(session))
            continue;
        if (!wait_answer(session)) /* the client's call fails */
            buffer_put_u64(&session->out, UINT64_MAX);
        request_end(session);
        if (one)
            return;
    }
}

/* ---- changes --------------------------------------------------------------------------------- */

/* Sets the key, or with `keep` adds to the end of its value. */
static bool put(struct tcp_space *space, struct map *map, struct text key, bool keep,
                struct text value)
{
    const struct map_entry *entry = keep ? find(map, key) : NULL;
    if (!fits(space, key.bytes + value.bytes + (entry ? entry->value_bytes : 0)) ||
        !map_put(map, key.data, key.bytes, keep, value.data, value.bytes))
        return false;
    wake(space, key, map == &space->queues);
    return true;
}

/* Adds to a counter kept as text; false if it is no number or would overflow. */
static bool add_value(struct tcp_space *space, struct text key, int64_t amount, int64_t *sum)
{
    char text[MAP_NUMBER_BYTES];
    size_t bytes = map_sum(find(&space->values, key), amount, sum, text);
    return bytes > 0 &&
           put(space, &space->values, key, false, (struct text){(const uint8_t *)text, bytes});
}

/* ---- one handler an opcode: false closes the connection -------------------------------------- */

static bool serve_validate(struct tcp_session *session)
{
    if (session->state != SESSION_NEW || session->request.word != TCP_MAGIC)
        return false;
    session->state = session->space->secret ? SESSION_UNPROVEN : SESSION_OPEN;
    return true;
}

static bool serve_ping(struct tcp_session *session)
{
    bool open = session->state == SESSION_OPEN;
    const uint32_t nonce = session->request.word;
    buffer_put_u32(&session->out, !open ? ~nonce : nonce == TCP_ASK ? TCP_ASK + 1 : nonce);
    if (!open)
        session->state = SESSION_CLOSING;
    return true;
}

static bool serve_auth(struct tcp_session *session)
{
    uint8_t proof[SHA256_BYTES];
    if (session->state != SESSION_UNPROVEN) {
        buffer_put_u8(&session->out, TCP_AUTH_REFUSED);
        session->state = SESSION_CLOSING;
        return true;
    }
    if (random_fill(session->server_nonce, TCP_NONCE_BYTES) != TUTTI_OK)
        return false;
    memcpy(session->client_nonce, field(session, 0).data, TCP_NONCE_BYTES);
    tcp_proof(session->space->secret, TCP_SERVER_LABEL, session->client_nonce,
              session->server_nonce, proof);
    buffer_put_u8(&session->out, TCP_AUTH_GOES_ON);
    buffer_put(&session->out, session->server_nonce, TCP_NONCE_BYTES);
    buffer_put(&session->out, proof, sizeof proof);
    session->state = SESSION_CHALLENGED;
    return true;
}

static bool serve_proof(struct tcp_session *session)
{
    uint8_t proof[SHA256_BYTES];
    if (session->state != SESSION_CHALLENGED)
        return false;
    tcp_proof(session->space->secret, TCP_CLIENT_LABEL, session->client_nonce,
              session->server_nonce, proof);
    bool right = secret_equal(proof, field(session, 0).data, sizeof proof);
    buffer_put_u8(&session->out, right ? TCP_AUTH_GOES_ON : TCP_AUTH_REFUSED);
    session->state = right ? SESSION_OPEN : SESSION_CLOSING;
    return true;
}

static bool serve_set(struct tcp_session *session)
{
    return put(session->space, &session->space->values, field(session, 0), false,
               field(session, 1));
}

/* Replies with the value that the key has afterwards, or with `expected` if the key is absent. */
static bool serve_compare_set(struct tcp_session *session)
{
    struct tcp_space *space = session->space;
    struct text key = field(session, 0), expected = field(session, 1);
    if (map_entry_is(find(&space->values, key), expected.data, expected.bytes) &&
        !put(space, &space->values, key, false, field(session, 2)))
        return false;
    const struct map_entry *entry = find(&space->values, key);
    buffer_put_string(&session->out, entry ? entry->value : expected.data,
                      entry ? entry->value_bytes : expected.bytes);
    return true;
}

static bool serve_multi_set(struct tcp_session *session)
{
    struct tcp_space *space = session->space;
    bool fine = true;
    for (size_t i = 0; i < session->request.count && fine; i += 2)
        fine = put(space, &space->values, field(session, i), false, field(session, i + 1));
    return fine;
}

static bool serve_add(struct tcp_session *session)
{
    int64_t sum;
    if (!add_value(session->space, field(session, 0), session->request.number, &sum))
        return false;
    buffer_put_u64(&session->out, (uint64_t)sum);
    return true;
}

static bool serve_check(struct tcp_session *session)
{
    bool all = true;
    for (size_t i = 0; i < session->request.count && all; i++)
        all = exists(session->space, field(session, i));
    buffer_put_u8(&session->out, all ? TCP_READY : TCP_NOT_READY);
    return true;
}

/* Answers the cancellation of a wait that is already over. */
static bool serve_cancel_wait(struct tcp_session *session)
{
    buffer_put_u8(&session->out, TCP_WAIT_CANCELED);
    return true;
}

/* Counts the sessions that came to the barrier, under its key. The last one ends all waits. */
static bool serve_barrier(struct tcp_session *session)
{
    int64_t count;
    return add_value(session->space, field(session, 0), 1, &count) && answer_or_wait(session);
}

/* ---- wills ----------------------------------------------------------------------------------- */

static bool serve_will(struct tcp_session *session)
{
    const struct text key = field(session, 0), value = field(session, 1);
    const size_t bytes = sizeof(struct tcp_will) + key.bytes + value.bytes;
    struct tcp_will **last = &session->wills,
                    *will = fits(session->space, bytes) ? malloc(bytes) : NULL;
    if (!will)
        return false;
    *will = (struct tcp_will){.key_bytes = key.bytes, .value_bytes = value.bytes};
    memcpy(will->bytes, key.data, key.bytes);
    memcpy(will->bytes + key.bytes, value.data, value.bytes);
    while (*last)
        last = &(*last)->next;
    *last = will;
    session->will_bytes += bytes;
    buffer_put_u8(&session->out, TCP_READY);
    return true;
}

/* Forgets the wills whose keys begin with the prefix. */
static void wills_forget(struct tcp_session *session, struct text prefix)
{
    for (struct tcp_will *will, **at = &session->wills; (will = *at);) {
        if (will->key_bytes < prefix.bytes ||
            (prefix.bytes && memcmp(will->bytes, prefix.data, prefix.bytes) != 0)) {
            at = &will->next;
            continue;
        }
        *at = will->next;
        session->will_bytes -= sizeof *will + will->key_bytes + will->value_bytes;
        free(will);
    }
}

static bool serve_will_end(struct tcp_session *session)
{
    wills_forget(session, field(session, 0));
    buffer_put_u8(&session->out, TCP_READY);
    return true;
}

void tcp_session_bequeath(struct tcp_session *session)
{
    for (const struct tcp_will *will = session->wills; will; will = will->next) {
        const struct text key = {will->bytes, will->key_bytes};
        const struct text value = {will->bytes + will->key_bytes, will->value_bytes};
        if (!exists(session->space, key)) /* without memory for it nothing is set */
            (void)put(session->space, &session->space->values, key, false, value);
    }
    wills_forget(session, (struct text){NULL, 0});
}

static bool serve_num_keys(struct tcp_session *session)
{
    buffer_put_u64(&session->out, session->space->values.count);
    return true;
}

static bool serve_delete(struct tcp_session *session)
{
    struct text key = field(session, 0);
    buffer_put_u64(&session->out, map_erase(&session->space->values, key.data, key.bytes));
    return true;
}

static bool serve_append(struct tcp_session *session)
{
    return put(session->space, &session->space->values, field(session, 0), true, field(session, 1));
}

/* A queue is a value of its own map: the items, each with its length before it. */
static bool serve_queue_push(struct tcp_session *session)
{
    struct text item = field(session, 1);
    item.data -= sizeof(uint64_t); /* the length as it arrived */
    item.bytes += sizeof(uint64_t);
    return put(session->space, &session->space->queues, field(session, 0), true, item);
}

static bool serve_queue_len(struct tcp_session *session)
{
    const struct map_entry *queue = find(&session->space->queues, field(session, 0));
    uint64_t count = 0, bytes;
    for (size_t at = 0; queue && at < queue->value_bytes; at += sizeof bytes + bytes, count++)
        memcpy(&bytes, queue->value + at, sizeof bytes);
    buffer_put_u64(&session->out, count);
    return true;
}

/* Replies with the number of items, then with the first of them. */
static bool serve_queue_pop(struct tcp_session *session)
{
    struct map *queues = &session->space->queues;
    struct text key = field(session, 0);
    const struct map_entry *queue = find(queues, key);
    uint64_t bytes;
    serve_queue_len(session);
    if (!queue)
        return true;
    memcpy(&bytes, queue->value, sizeof bytes);
    bytes += sizeof bytes;
    buffer_put(&session->out, queue->value, bytes);
    if (bytes == queue->value_bytes)
        return map_erase(queues, key.data, key.bytes);
    return map_put(queues, key.data, key.bytes, false, queue->value + bytes,
                   queue->value_bytes - bytes);
}

static void put_key(const struct map_entry *entry, void *out)
{
    buffer_put_string(out, entry->key, entry->key_bytes);
}

static bool serve_list_keys(struct tcp_session *session)
{
    const struct map *values = &session->space->values;
    if (values->bytes > TCP_REPLY_BYTES)
        return false;
    buffer_put_u64(&session->out, values->count);
    map_walk(values, put_key, &session->out);
    return true;
}

static bool (*const handlers[256])(struct tcp_session *) = {
    [TCP_VALIDATE] = serve_validate,
    [TCP_SET] = serve_set,
    [TCP_COMPARE_SET] = serve_compare_set,
    [TCP_GET] = serve_get,
    [TCP_ADD] = serve_add,
    [TCP_CHECK] = serve_check,
    [TCP_WAIT] = answer_or_wait,
    [TCP_NUM_KEYS] = serve_num_keys,
    [TCP_DELETE] = serve_delete,
    [TCP_APPEND] = serve_append,
    [TCP_MULTI_GET] = serve_get,
    [TCP_MULTI_SET] = serve_multi_set,
    [TCP_CANCEL_WAIT] = serve_cancel_wait,
    [TCP_PING] = serve_ping,
    [TCP_QUEUE_PUSH] = serve_queue_push,
    [TCP_QUEUE_POP] = serve_queue_pop,
    [TCP_QUEUE_LEN] = serve_queue_len,
    [TCP_LIST_KEYS] = serve_list_keys,
    [TCP_BARRIER] = serve_barrier,
    [TCP_AUTH] = serve_auth,
    [TCP_PROOF] = serve_proof,
    [TCP_WAIT_GET] = answer_or_wait,
    [TCP_WILL] = serve_will,
    [TCP_WILL_END] = serve_will_end,
};

/* ---- sessions -------------------------------------------------------------------------------- */

void tcp_proof(const char *secret, const char *label, const uint8_t *client_nonce,
               const uint8_t *server_nonce, uint8_t proof[SHA256_BYTES])
{
    uint8_t message[TCP_LABEL_BYTES + 2 * TCP_NONCE_BYTES];
    memcpy(message, label, TCP_LABEL_BYTES);
    memcpy(message + TCP_LABEL_BYTES, client_nonce, TCP_NONCE_BYTES);
    memcpy(message + TCP_LABEL_BYTES + TCP_NONCE_BYTES, server_nonce, TCP_NONCE_BYTES);
    hmac_sha256(secret, strlen(secret), message, sizeof message, proof);
}

void tcp_space_fini(struct tcp_space *space)
{
    map_fini(&space->queues);
    map_fini(&space->values);
}

void tcp_session_init(struct tcp_session *session, struct tcp_space *space)
{
    *session = (struct tcp_session){.space = space, .next = space->sessions};
    space->sessions = session;
}

void tcp_session_fini(struct tcp_session *session)
{
    struct tcp_session **link = &session->space->sessions;
    while (*link != session)
        link = &(*link)->next;
    *link = session->next;
    session->space->buffered_bytes -= session->counted_bytes;
    tcp_request_reset(&session->request);
    wills_forget(session, (struct text){NULL, 0});
    buffer_fini(&session->in);
    buffer_fini(&session->out);
}

/* Brings the space's sum up to date; false if the buffers do not fit into it. */
static bool count_buffers(struct tcp_session *session)
{
    size_t bytes = session->in.capacity + session->out.capacity + session->will_bytes;
    session->space->buffered_bytes += bytes - session->counted_bytes;
    session->counted_bytes = bytes;
    return !session->out.failed && fits(session->space, 0);
}

uint8_t *tcp_session_room(struct tcp_session *session, size_t *size)
{
    uint8_t *room = buffer_reserve(&session->in, READ_BYTES);
    *size = session->in.capacity - session->in.size;
    return room && count_buffers(session) ? room : NULL;
}

/* Whether a session may send this request. Until it is open, only an introduction is permitted. */
static bool permitted(const struct tcp_session *session, uint8_t op)
{
    switch (session->state) {
    case SESSION_NEW:
        return op == TCP_VALIDATE;
    case SESSION_UNPROVEN:
        return op == TCP_AUTH || op == TCP_PING;
    case SESSION_CHALLENGED:
        return op == TCP_PROOF;
    case SESSION_OPEN:
        return true;
    case SESSION_CLOSING:
        break;
    }
    return false;
}

bool tcp_session_feed(struct tcp_session *session, size_t size)
{
    session->in.size += size;
    while (session->in.size > 0 && session->state != SESSION_CLOSING) {
        if (session->is_waiting) { /* the request of the wait still lies in front */
            if (session->in.size == session->request.bytes)
                break;
            if (session->in.data[session->request.bytes] != TCP_CANCEL_WAIT)
                return false;
            request_end(session);
            continue;
        }
        if (!permitted(session, session->in.data[0]))
            return false;
        enum tcp_parse result =
            tcp_request_parse(&session->request, session->in.data, session->in.size);
        if (result == TCP_MORE)
            break;
        if (result == TCP_BAD || !handlers[session->request.op](session))
            return false;
        if (!session->is_waiting)
            request_end(session);
        if (session->out.size > TCP_REPLY_BYTES)
            return false;
    }
    /* The buffer of a large request is freed. */
    if (session->in.size == 0 && session->in.capacity > 4 * READ_BYTES)
        buffer_fini(&session->in);
    return count_buffers(session);
}

void tcp_session_sent(struct tcp_session *session, size_t size)
{
    buffer_drop(&session->out, size);
    if (session->out.size == 0 && session->out.capacity > 4 * READ_BYTES)
        buffer_fini(&session->out);
    count_buffers(session);
}
