/* SPDX-License-Identifier: MIT */
#include "store/tcp_session.h"

#include "ipc/random.h"

#include <stdlib.h>
#include <string.h>

enum { READ_BYTES = 64 * 1024 };

/* One key that one session waits for: in the list of that key, in the array of that session. */
struct waiter {
    struct tcp_session *session;
    struct map_entry *entry; /* of space->waiting, its value is the head; NULL once fulfilled */
    struct waiter *next, *previous;
};

/* What is waited for, before the key in space->waiting: the same key may be waited for as a value
 * and as a barrier. */
enum waiting_for { FOR_KEY = 'k', FOR_BARRIER = 'b' };

struct queue {
    int64_t count;
    struct item {
        struct item *next;
        size_t bytes;
        uint8_t value[];
    } * first, *last;
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

/* ---- waiting ----------------------------------------------------------------------------------
 */

static void head_load(const struct map_entry *entry, struct waiter **head)
{
    memcpy(head, entry->value, sizeof *head);
}

static void head_store(struct map_entry *entry, struct waiter *head)
{
    memcpy(entry->value, &head, sizeof head);
}

static size_t waiting_key(enum waiting_for what, struct text key, uint8_t *joined)
{
    joined[0] = (uint8_t)what;
    memcpy(joined + 1, key.data, key.bytes);
    return key.bytes + 1;
}

/* Takes a waiter off its list, and the list off the map once it is empty. */
static void waiter_unlink(struct tcp_space *space, struct waiter *waiter)
{
    struct map_entry *entry = waiter->entry;
    if (!entry)
        return;
    waiter->entry = NULL;
    if (waiter->next)
        waiter->next->previous = waiter->previous;
    if (waiter->previous)
        waiter->previous->next = waiter->next;
    else if (waiter->next)
        head_store(entry, waiter->next);
    else
        map_erase(&space->waiting, entry->key, entry->key_bytes);
}

static void stop_waiting(struct tcp_session *session)
{
    for (size_t i = 0; i < session->waiter_count; i++)
        waiter_unlink(session->space, &session->waiters[i]);
    free(session->waiters);
    session->waiters = NULL;
    session->waiter_count = session->awaited = 0;
}

static bool start_waiting(struct tcp_session *session, size_t most)
{
    session->waiters = calloc(most, sizeof *session->waiters);
    return session->waiters != NULL;
}

static bool wait_for(struct tcp_session *session, enum waiting_for what, struct text key)
{
    uint8_t joined[TCP_KEY_BYTES + 1];
    size_t bytes = waiting_key(what, key, joined);
    struct waiter *waiter = &session->waiters[session->waiter_count], *head = NULL;
    struct map_entry *entry = map_find(&session->space->waiting, joined, bytes);
    if (!entry)
        entry = map_set(&session->space->waiting, joined, bytes, &head, sizeof head);
    if (!entry)
        return false;
    head_load(entry, &head);
    *waiter = (struct waiter){.session = session, .entry = entry, .next = head};
    if (head)
        head->previous = waiter;
    head_store(entry, waiter);
    session->waiter_count++;
    session->awaited++;
    return true;
}

static void mark_ready(struct tcp_session *session)
{
    if (session->is_ready)
        return;
    session->is_ready = true;
    session->next_ready = session->space->ready;
    session->space->ready = session;
}

/* Tells those who wait for a key that it is there; `one` stops at the first whose wait is over. */
static void wake(struct tcp_space *space, enum waiting_for what, struct text key, bool one)
{
    uint8_t joined[TCP_KEY_BYTES + 1];
    size_t bytes = waiting_key(what, key, joined);
    struct map_entry *entry;
    while ((entry = map_find(&space->waiting, joined, bytes))) {
        struct waiter *waiter;
        head_load(entry, &waiter);
        struct tcp_session *session = waiter->session;
        waiter_unlink(space, waiter);
        if (--session->awaited > 0)
            continue;
        stop_waiting(session);
        buffer_put_u8(&session->out, TCP_STOP_WAITING);
        mark_ready(session);
        if (one)
            return;
    }
}

/* ---- contents ---------------------------------------------------------------------------------
 */

static bool fits(const struct tcp_space *space, size_t bytes)
{
    return space->values.bytes + space->buffered_bytes + bytes <= TCP_SPACE_BYTES;
}

static bool put_value(struct tcp_space *space, struct text key, struct text value)
{
    if (!fits(space, key.bytes + value.bytes) ||
        !map_set(&space->values, key.data, key.bytes, value.data, value.bytes))
        return false;
    wake(space, FOR_KEY, key, false);
    return true;
}

static bool exists(const struct tcp_space *space, struct text key)
{
    return map_find(&space->values, key.data, key.bytes) ||
           map_find(&space->queues, key.data, key.bytes);
}

/* Adds to a counter kept as text; false if it is no number or would overflow. */
static bool add_value(struct tcp_space *space, struct text key, int64_t amount, int64_t *sum)
{
    char text[MAP_NUMBER_BYTES];
    size_t bytes = map_sum(map_find(&space->values, key.data, key.bytes), amount, sum, text);
    return bytes > 0 && fits(space, key.bytes + bytes) &&
           map_set(&space->values, key.data, key.bytes, text, bytes);
}

static struct queue *queue_of(const struct tcp_space *space, struct text key)
{
    struct map_entry *entry = map_find(&space->queues, key.data, key.bytes);
    return entry ? (struct queue *)(void *)entry->value : NULL;
}

static void queue_drop_first(struct tcp_space *space, struct queue *queue)
{
    struct item *item = queue->first;
    queue->first = item->next;
    queue->count--;
    space->buffered_bytes -= sizeof *item + item->bytes;
    free(item);
}

/* ---- one handler an opcode: false closes the connection ----------------------------------------
 */

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
    bool right = hmac_equal(proof, field(session, 0).data);
    buffer_put_u8(&session->out, right ? TCP_AUTH_GOES_ON : TCP_AUTH_REFUSED);
    session->state = right ? SESSION_OPEN : SESSION_CLOSING;
    return true;
}

static bool serve_set(struct tcp_session *session)
{
    return put_value(session->space, field(session, 0), field(session, 1));
}

/* The value that the key has afterwards; what was expected where it has none. */
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

/* An absent key has an empty value here: who must know asks CHECK or WAIT first. */
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
    wake(session->space, FOR_KEY, key, false);
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

static bool serve_wait(struct tcp_session *session)
{
    for (size_t i = 0; i < session->request.count; i++) {
        struct text key = field(session, i);
        if (exists(session->space, key))
            continue;
        if (!session->waiters && !start_waiting(session, session->request.count - i))
            return false;
        if (!wait_for(session, FOR_KEY, key))
            return false;
    }
    if (session->awaited == 0)
        buffer_put_u8(&session->out, TCP_STOP_WAITING);
    return true;
}

static bool serve_cancel_wait(struct tcp_session *session)
{
    stop_waiting(session);
    buffer_put_u8(&session->out, TCP_WAIT_CANCELED);
    return true;
}

/* Counts those who came under the key; the last one releases all. */
static bool serve_barrier(struct tcp_session *session)
{
    struct tcp_space *space = session->space;
    struct text key = field(session, 0);
    int64_t count;
    if (!add_value(space, key, 1, &count))
        return false;
    wake(space, FOR_KEY, key, false);
    if (count < session->request.number)
        return start_waiting(session, 1) && wait_for(session, FOR_BARRIER, key);
    buffer_put_u8(&session->out, TCP_STOP_WAITING);
    wake(space, FOR_BARRIER, key, false);
    return true;
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
    wake(space, FOR_KEY, key, false);
    return true;
}

static bool serve_queue_push(struct tcp_session *session)
{
    struct tcp_space *space = session->space;
    struct text key = field(session, 0), value = field(session, 1);
    struct item *item = fits(space, sizeof *item + key.bytes + value.bytes)
                            ? malloc(sizeof *item + value.bytes)
                            : NULL;
    if (!item)
        return false;
    *item = (struct item){.bytes = value.bytes};
    memcpy(item->value, value.data, value.bytes);
    if (!queue_of(space, key)) {
        struct queue empty = {0};
        if (!map_set(&space->queues, key.data, key.bytes, &empty, sizeof empty)) {
            free(item);
            return false;
        }
    }
    struct queue *queue = queue_of(space, key);
    *(queue->first ? &queue->last->next : &queue->first) = item;
    queue->last = item;
    queue->count++;
    space->buffered_bytes += sizeof *item + item->bytes;
    wake(space, FOR_KEY, key, true);
    return true;
}

/* How many there were, then the first of them. */
static bool serve_queue_pop(struct tcp_session *session)
{
    struct text key = field(session, 0);
    struct queue *queue = queue_of(session->space, key);
    buffer_put_u64(&session->out, queue ? (uint64_t)queue->count : 0);
    if (!queue)
        return true;
    buffer_put_string(&session->out, queue->first->value, queue->first->bytes);
    queue_drop_first(session->space, queue);
    if (queue->count == 0)
        map_erase(&session->space->queues, key.data, key.bytes);
    return true;
}

static bool serve_queue_len(struct tcp_session *session)
{
    struct queue *queue = queue_of(session->space, field(session, 0));
    buffer_put_u64(&session->out, queue ? (uint64_t)queue->count : 0);
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
    [TCP_WAIT] = serve_wait,
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

/* ---- sessions ---------------------------------------------------------------------------------
 */

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
    struct map_entry *entry = NULL;
    while ((entry = map_next(&space->queues, entry))) {
        struct queue *queue = (struct queue *)(void *)entry->value;
        while (queue->first)
            queue_drop_first(space, queue);
    }
    map_fini(&space->queues);
    map_fini(&space->values);
    map_fini(&space->waiting);
}

void tcp_session_init(struct tcp_session *session, struct tcp_space *space)
{
    *session = (struct tcp_session){.space = space};
}

void tcp_session_fini(struct tcp_session *session)
{
    stop_waiting(session);
    struct tcp_session **link = &session->space->ready;
    while (session->is_ready && *link != session)
        link = &(*link)->next_ready;
    if (session->is_ready)
        *link = session->next_ready;
    session->space->buffered_bytes -= session->counted_bytes;
    tcp_request_reset(&session->request);
    buffer_fini(&session->in);
    buffer_fini(&session->out);
}

struct tcp_session *tcp_space_next_ready(struct tcp_space *space)
{
    struct tcp_session *session = space->ready;
    if (session) {
        space->ready = session->next_ready;
        session->is_ready = false;
    }
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

/* What a session may ask in its state: a stranger nothing but to be let in, a waiting one nothing
 * but to stop. */
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
        return session->awaited == 0 || op == TCP_CANCEL_WAIT;
    case SESSION_CLOSING:
        break;
    }
    return false;
}

bool tcp_session_feed(struct tcp_session *session, size_t size)
{
    session->in.size += size;
    while (session->in.size > 0 && session->state != SESSION_CLOSING) {
        if (!permitted(session, session->in.data[0]))
            return false;
        enum tcp_parse result =
            tcp_request_parse(&session->request, session->in.data, session->in.size);
        if (result == TCP_MORE)
            break;
        if (result == TCP_BAD || !handlers[session->request.op](session))
            return false;
        buffer_drop(&session->in, session->request.bytes);
        tcp_request_reset(&session->request);
        if (session->out.size > TCP_REPLY_BYTES)
            return false;
    }
    /* A large request's buffer is given back. */
    if (session->in.size == 0 && session->in.capacity > 4 * READ_BYTES)
        buffer_fini(&session->in);
    if (session->out.size > 0)
        mark_ready(session);
    return count_buffers(session);
}

void tcp_session_sent(struct tcp_session *session, size_t size)
{
    buffer_drop(&session->out, size);
    if (session->out.size == 0 && session->out.capacity > 4 * READ_BYTES)
        buffer_fini(&session->out);
    count_buffers(session);
}
