/* SPDX-License-Identifier: MIT */
/* What the server does with the bytes of its clients, apart from sockets. A space is the contents,
 * a session is one client. One thread uses both. */
#ifndef TUTTI_STORE_TCP_SESSION_H
#define TUTTI_STORE_TCP_SESSION_H

#include "store/buffer.h"
#include "store/map.h"
#include "store/tcp_request.h"

/* What a space holds at most: contents, queues and the sessions' buffers together. A client that
 * asks for more is cut off. */
#define TCP_SPACE_BYTES ((size_t)1 << 30)
/* What one reply holds at most. */
#define TCP_REPLY_BYTES ((size_t)64 * 1024 * 1024)

struct tcp_session;
struct tcp_will;

struct tcp_space {
    struct map values;
    struct map queues;
    size_t buffered_bytes; /* of the sessions */
    const char *secret;    /* NULL is none */
    struct tcp_session *sessions;
};

struct tcp_session {
    struct tcp_space *space;
    enum tcp_session_state {
        SESSION_NEW,
        SESSION_UNPROVEN,
        SESSION_CHALLENGED,
        SESSION_OPEN,
        SESSION_CLOSING
    } state;
    struct buffer in, out;
    struct tcp_will *wills; /* in their order */
    size_t will_bytes;
    size_t counted_bytes; /* of buffers and wills, as added to the space's */
    struct tcp_request request;
    bool is_waiting; /* the request is a WAIT, WAIT_GET or BARRIER, and lies at the front of `in` */
    size_t next_key; /* of the request: the first that is missing */
    struct tcp_session *next; /* of the space */
    uint8_t client_nonce[TCP_NONCE_BYTES], server_nonce[TCP_NONCE_BYTES];
};

void tcp_space_fini(struct tcp_space *space);

void tcp_session_init(struct tcp_session *session, struct tcp_space *space);
void tcp_session_fini(struct tcp_session *session);

/* Where the next bytes from the client go: room for *size of them; NULL when there is no memory. */
uint8_t *tcp_session_room(struct tcp_session *session, size_t *size);
/* `size` bytes have been put there: serves the requests that are complete. Other sessions, whose
 * waits these end, get output too. False if the connection must be closed now; in state
 * SESSION_CLOSING, once the output has been sent. */
bool tcp_session_feed(struct tcp_session *session, size_t size);
/* The client has closed the connection: its wills are carried out. Other sessions, whose waits
 * these end, get output. */
void tcp_session_bequeath(struct tcp_session *session);
/* `size` bytes of the output have been sent. */
void tcp_session_sent(struct tcp_session *session, size_t size);

#endif
