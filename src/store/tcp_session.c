/* SPDX-License-Identifier: MIT */
#include "store/tcp_session.h"

#include "ipc/random.h"

#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 64 * 1024 };

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

static bool exists(const struct tcp_space *space, struct text key)
{
    return map_find(&space->values, key.data, key.bytes) ||
           map_find(&space->queues, key.data, key.bytes);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Looks how far the WAIT or BARRIER of a session is. A WAIT passes its keys in their order; each
 * must be there when it is looked at. */
static bool wait_is_over(struct tcp_session *session)
{
    const struct tcp_request *request = &session->request;
    int64_t count;
    if (request->op == TCP_BARRIER) {
        struct text key = field(session, 0);
        char text[MAP_NUMBER_BYTES];
        return map_sum(map_find(&session->space->values, key.data, key.bytes), 0, &count, text) &&
               count >= request->number;
    }
    while (session->next_key < request->count &&
           exists(session->space, field(session, session->next_key)))
        session->next_key++;
    return session->next_key == request->count;
}

/* Answers the request, or lets the session wait. */
static bool answer_or_wait(struct tcp_session *session)
{
    session->next_key = 0;
    if (wait_is_over(session)) {
        buffer_put_u8(&session->out, TCP_STOP_WAITING);
        return true;
    }
    session->is_waiting = true;
    session->next = session->space->waiting;
    session->space->waiting = session;
    return true;
}

static void request_end(struct tcp_session *session)
{
    buffer_drop(&session->in, session->request.bytes);
    tcp_request_reset(&session->request);
}

static void stop_waiting(struct tcp_session *session)
{
    struct tcp_session **link = &session->space->waiting;
    if (!session->is_waiting)
        return;
    while (*link != session)
        link = &(*link)->next;
    *link = session->next;
    session->is_waiting = false;
    request_end(session);
}

/* Tells the sessions that wait for a key that it has changed; `one`: ends one wait at most. */
static void wake(struct tcp_space *space, struct text key, bool one)
{
    struct tcp_session *next;
    for (struct tcp_session *session = space->waiting; session; session = next) {
        struct text awaited = field(session, session->next_key);
        next = session->next;
        if (awaited.bytes != key.bytes || memcmp(awaited.data, key.data, key.bytes) != 0 ||
            !wait_is_over(session))
            continue;
        stop_waiting(session);
        buffer_put_u8(&session->out, TCP_STOP_WAITING);
        session->next = space->woken;
        space->woken = session;
        if (one)
            return;
    }
}

/* ---- changes --------------------------------------------------------------------------------- */

static bool put_value(struct tcp_space *space, struct text key, struct text value)
{
    if (!fits(space, key.bytes + value.bytes) ||
        !map_set(&space->values, key.data, key.bytes, value.data, value.bytes))
        return false;
    wake(space, key, false);
    return true;
}

/* Adds to a counter kept as text; false if it is no number or would overflow. */
static bool add_value(struct tcp_space *space, struct text key, int64_t amount, int64_t *sum)
{
    char text[MAP_NUMBER_BYTES];
    size_t bytes = map_sum(map_find(&space->values, key.data, key.bytes), amount, sum, text);
    return bytes > 0 && fits(space, key.bytes + bytes) &&
           map_set(&space->values, key.data, key.bytes, text, bytes);
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
    buffer_put_u32(&session->out, open ? session->request.word : ~session->request.word);
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
    return put_value(session->space, field(session, 0), field(session, 1));
}

/* Replies with the value that the key has afterwards, or with `expected` if the key is absent. */
static bool serve_compare_set(struct tcp_session *session)
{
    struct tcp_space *space = session->space;
    struct text key = field(session, 0), expected = field(session, 1);
    struct map_entry *entry = map_find(&space->values, key.data, key.bytes);
    if (map_entry_is(entry, expected.data, expected.bytes) &&
        !put_value(space, key, field(session, 2)))
        return false;
    entry = map_find(&space->values, key.data, key.bytes);
    if (entry)
        buffer_put_string(&session->out, entry->value, entry->value_bytes);
    else
        buffer_put_string(&session->out, expected.data, expected.bytes);
    return true;
}

/* An absent key has an empty value here. CHECK and WAIT tell the two apart. */
static bool put_reply(struct tcp_session *session, struct text key)
{
    struct map_entry *entry = map_find(&session->space->values, key.data, key.bytes);
    size_t bytes = entry ? entry->value_bytes : 0;
    if (session->out.size + bytes > TCP_REPLY_BYTES)
        return false;
    buffer_put_string(&session->out, entry ? entry->value : NULL, bytes);
    return true;
}

static bool serve_get(struct tcp_session *session)
{
    return put_reply(session, field(session, 0));
}

static bool serve_multi_get(struct tcp_session *session)
{
    bool fine = true;
    for (size_t i = 0; i < session->request.count && fine; i++)
        fine = put_reply(session, field(session, i));
    return fine;
}

static bool serve_multi_set(struct tcp_session *session)
{
    bool fine = true;
    for (size_t i = 0; i < session->request.count && fine; i += 2)
        fine = put_value(session->space, field(session, i), field(session, i + 1));
    return fine;
}

static bool serve_add(struct tcp_session *session)
{
    struct text key = field(session, 0);
    int64_t sum;
    if (!add_value(session->space, key, session->request.number, &sum))
        return false;
    buffer_put_u64(&session->out, (uint64_t)sum);
    wake(session->space, key, false);
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

/* Of a wait that is over. */
static bool serve_cancel_wait(struct tcp_session *session)
{
    buffer_put_u8(&session->out, TCP_WAIT_CANCELED);
    return true;
}

/* Counts the sessions that came to the barrier, under its key. The last one ends all waits. */
static bool serve_barrier(struct tcp_session *session)
{
    struct tcp_space *space = session->space;
    struct text key = field(session, 0);
    int64_t count;
    if (!add_value(space, key, 1, &count))
        return false;
    wake(space, key, false);
    return answer_or_wait(session);
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
    struct tcp_space *space = session->space;
    struct text key = field(session, 0), value = field(session, 1);
    struct map_entry *entry = map_find(&space->values, key.data, key.bytes);
    if (!fits(space, key.bytes + value.bytes + (entry ? entry->value_bytes : 0)) ||
        !map_append(&space->values, key.data, key.bytes, value.data, value.bytes))
        return false;
    wake(space, key, false);
    return true;
}

/* A queue is a value of its own map: a u64 count, and the items as they go into a reply. */
static uint64_t queue_count(const struct map_entry *queue)
{
    uint64_t count = 0;
    if (queue)
        memcpy(&count, queue->value, sizeof count);
    return count;
}

static bool queue_set(struct map *queues, struct text key, uint64_t count, struct text items)
{
    struct buffer queue = {0};
    buffer_put_u64(&queue, count);
    buffer_put(&queue, items.data, items.bytes);
    bool fine = !queue.failed && map_set(queues, key.data, key.bytes, queue.data, queue.size);
    buffer_fini(&queue);
    return fine;
}

static bool serve_queue_push(struct tcp_session *session)
{
    struct tcp_space *space = session->space;
    struct text key = field(session, 0), value = field(session, 1);
    /* The item as it arrived: its length and its bytes. */
    struct text item = {value.data - sizeof(uint64_t), value.bytes + sizeof(uint64_t)};
    struct map_entry *queue = map_find(&space->queues, key.data, key.bytes);
    const uint64_t count = queue_count(queue) + 1;
    if (!fits(space, 2 * sizeof count + key.bytes + value.bytes))
        return false;
    if (!queue) {
        if (!queue_set(&space->queues, key, count, item))
            return false;
    } else {
        queue = map_append(&space->queues, key.data, key.bytes, item.data, item.bytes);
        if (!queue)
            return false;
        memcpy(queue->value, &count, sizeof count);
    }
    wake(space, key, true);
    return true;
}

/* Replies with the number of items, then with the first of them. */
static bool serve_queue_pop(struct tcp_session *session)
{
    struct map *queues = &session->space->queues;
    struct text key = field(session, 0);
    struct map_entry *queue = map_find(queues, key.data, key.bytes);
    const uint64_t count = queue_count(queue);
    uint64_t bytes;
    buffer_put_u64(&session->out, count);
    if (!queue)
        return true;
    const uint8_t *item = queue->value + sizeof count, *end = queue->value + queue->value_bytes;
    memcpy(&bytes, item, sizeof bytes);
    buffer_put_string(&session->out, item + sizeof bytes, bytes);
    item += sizeof bytes + bytes;
    if (count > 1)
        return queue_set(queues, key, count - 1, (struct text){item, (size_t)(end - item)});
    return map_erase(queues, key.data, key.bytes);
}

static bool serve_queue_len(struct tcp_session *session)
{
    struct text key = field(session, 0);
    buffer_put_u64(&session->out,
                   queue_count(map_find(&session->space->queues, key.data, key.bytes)));
    return true;
}

static bool serve_list_keys(struct tcp_session *session)
{
    struct map *values = &session->space->values;
    if (values->bytes > TCP_REPLY_BYTES)
        return false;
    buffer_put_u64(&session->out, values->count);
    for (struct map_entry *entry = map_next(values, NULL); entry; entry = map_next(values, entry))
        buffer_put_string(&session->out, entry->key, entry->key_bytes);
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
    [TCP_MULTI_GET] = serve_multi_get,
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
    *session = (struct tcp_session){.space = space};
}

void tcp_session_fini(struct tcp_session *session)
{
    stop_waiting(session);
    session->space->buffered_bytes -= session->counted_bytes;
    tcp_request_reset(&session->request);
    buffer_fini(&session->in);
    buffer_fini(&session->out);
}

struct tcp_session *tcp_space_next_woken(struct tcp_space *space)
{
    struct tcp_session *session = space->woken;
    if (session)
        space->woken = session->next;
    return session;
}

/* Brings the space's sum up to date; false if the buffers do not fit into it. */
static bool count_buffers(struct tcp_session *session)
{
    size_t bytes = session->in.capacity + session->out.capacity;
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

/* What a session may ask in its state: until it is open, only to be let in. */
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
            stop_waiting(session);
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
