/* SPDX-License-Identifier: MIT */
/*
 * The bytes of PyTorch's TCPStore protocol, and of our extension to it.
 *
 * A request is one opcode byte and its arguments in the byte order of the machine; a string is a
 * u64 length and its bytes. A client first sends VALIDATE and, to see that the server answers,
 * PING. Keys of users begin with "/"; "init/" counts the ranks that have joined. VALIDATE, SET,
 * APPEND, MULTI_SET and QUEUE_PUSH have no reply.
 * PyTorch 2.13's client sends the requests 0 to 18; Tutti's sends those from 200 on, too.
 *
 * WAIT_GET is a WAIT whose reply is that of a MULTI_GET of its keys. A client sends it if the
 * server has answered a PING of TCP_ASK by TCP_ASK + 1. Any other server answers TCP_ASK.
 *
 * With a shared secret (TUTTI_STORE_SECRET) the client sends AUTH in place of PING, and each side
 * proves that it knows the secret without showing it:
 *   client  VALIDATE magic, AUTH client_nonce
 *   server  u8 0, server_nonce, HMAC(secret, "tutti store server" client_nonce server_nonce)
 *           (or u8 1: no secret here; the connection closes)
 *   client  PROOF HMAC(secret, "tutti store client" client_nonce server_nonce)
 *   server  u8 0 (or u8 1: wrong; the connection closes)
 * A server with a secret answers the PING of a client without one with the complement of its nonce
 * and closes. The proofs cover the meeting, not the traffic after it.
 */
#ifndef TUTTI_STORE_TCP_H
#define TUTTI_STORE_TCP_H

#include "store/hmac.h"
#include "store/kind.h"

#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define TCP_MAGIC        UINT32_C(0x3C85F7CE)
#define TCP_ASK          UINT32_C(0x74757474) /* no process number, which PyTorch's client sends */
#define TCP_JOIN_KEY     "init/"     /* the one key of PyTorch's clients without a leading "/" */
#define TCP_OPEN_KEY     "init/open" /* while a server of ours waits for ranks to join */
#define TCP_OPEN_WAITING "waiting"   /* its value until the server gives up */

enum { TCP_NONCE_BYTES = 32 };

/*
 * WILL leaves a value for the end of the connection: if the client's process ends, however it does,
 * the server sets the key, unless it is there. Wills are carried out in their order, all at once.
 * WILL_END takes back those whose keys begin with `k`. Both have one byte as their reply. A
 * connection that breaks (the network's error, the server's limits) leaves nothing: its client may
 * live. A server that is closed sends one more byte to each client with a will, before it closes
 * the connection. One that is killed sends none.
 */

/*
 * X(NAME, opcode, arguments): w a u32, i an i64, k a key, v a value, n 32 bytes; * a u64 count, and
 * what follows as many times.
 */
#define TCP_OP_MAP(X)                                                                              \
    X(VALIDATE, 0, "w")                                                                            \
    X(SET, 1, "kv")                                                                                \
    X(COMPARE_SET, 2, "kvv")                                                                       \
    X(GET, 3, "k")                                                                                 \
    X(ADD, 4, "ki")                                                                                \
    X(CHECK, 5, "*k")                                                                              \
    X(WAIT, 6, "*k")                                                                               \
    X(NUM_KEYS, 7, "")                                                                             \
    X(DELETE, 8, "k")                                                                              \
    X(APPEND, 9, "kv")                                                                             \
    X(MULTI_GET, 10, "*k")                                                                         \
    X(MULTI_SET, 11, "*kv")                                                                        \
    X(CANCEL_WAIT, 12, "")                                                                         \
    X(PING, 13, "w")                                                                               \
    X(QUEUE_PUSH, 14, "kv")                                                                        \
    X(QUEUE_POP, 15, "k")                                                                          \
    X(QUEUE_LEN, 16, "k")                                                                          \
    X(LIST_KEYS, 17, "")                                                                           \
    X(BARRIER, 18, "ki")                                                                           \
    X(AUTH, 200, "n")                                                                              \
    X(PROOF, 201, "n")                                                                             \
    X(WAIT_GET, 202, "*k")                                                                         \
    X(WILL, 203, "kv")                                                                             \
    X(WILL_END, 204, "k")

enum tcp_op {
#define TCP_OP_ENUM(name, code, arguments) TCP_##name = code,
    TCP_OP_MAP(TCP_OP_ENUM)
#undef TCP_OP_ENUM
};

enum tcp_check { TCP_READY = 0, TCP_NOT_READY = 1 };
enum tcp_wait { TCP_STOP_WAITING = 0, TCP_WAIT_CANCELED = 1 };
enum tcp_auth { TCP_AUTH_GOES_ON = 0, TCP_AUTH_REFUSED = 1 };

/* HMAC(secret, label client_nonce server_nonce). The label is that of the side that proves. */
#define TCP_LABEL_BYTES  18
#define TCP_SERVER_LABEL "tutti store server"
#define TCP_CLIENT_LABEL "tutti store client"
void tcp_proof(const char *secret, const char *label, const uint8_t *client_nonce,
               const uint8_t *server_nonce, uint8_t proof[SHA256_BYTES]);

/* A forked child may hold the same socket: then close() alone does not end the connection. */
static inline void tcp_hang_up(int fd)
{
    shutdown(fd, SHUT_RDWR);
    close(fd);
}

/* Copies a secret; NULL or "" is none. False when there is no memory. */
static inline bool tcp_secret_copy(const char *secret, char **copy)
{
    *copy = secret && *secret ? strdup(secret) : NULL;
    return *copy || !secret || !*secret;
}

static inline void tcp_secret_free(char *secret)
{
    if (secret)
        explicit_bzero(secret, strlen(secret));
    free(secret);
}

/* The server: one thread that owns its sockets and contents. */
struct tcp_server;

struct tcp_server_config {
    const char *bind;      /* NULL or "" is loopback */
    uint16_t port;         /* 0 is any free one */
    const char *unix_name; /* not NULL: listens on the Unix socket of this abstract name alone */
    const char *secret;    /* NULL or "" is none; copied */
    bool waits;            /* ranks join: TCP_OPEN_KEY exists from the beginning */
};

/* Returns INVALID, NO_MEMORY, SYSTEM. When it returns, connections are accepted. */
enum tutti_status tcp_server_start(const struct tcp_server_config *config,
                                   struct tcp_server **server);
/* The address at which this process reaches the server; NULL without one. */
const struct sockaddr_storage *tcp_server_address(const struct tcp_server *server);
/* Stops accepting connections, serves the present clients until they have gone, at most linger_ms,
 * and ends the thread. Takes NULL. */
void tcp_server_stop(struct tcp_server *server, int64_t linger_ms);

bool tcp_is_loopback(const struct sockaddr_storage *address);
/* Where the server of a URL listens; "": loopback. A host that is a loopback address is meant
 * literally: no other one reaches it. Any other host is for the clients. */
const char *tcp_bind_host(const struct store_url *url);
/* Of the abstract name, which all processes of this network namespace can use. It has no file, and
 * ends with its socket. */
struct sockaddr_storage tcp_unix_address(const char *name);
/* What of the address the kernel reads. */
socklen_t tcp_address_bytes(const struct sockaddr_storage *address);

/* The server's addresses, at most `most`. INVALID: the host is not known. */
enum tutti_status tcp_resolve(const struct store_url *url, struct sockaddr_storage *addresses,
                              int most, int *count);
/* 0 on a Unix socket. */
uint16_t tcp_port(const struct sockaddr_storage *address);
/* HOST:PORT or @NAME, for messages. served: the own server's address, NULL in a client. */
void tcp_name(const struct store_url *url, const struct sockaddr_storage *served, char *name,
              size_t size);
/* The URL with which another process opens the same store: the host that was given, or the loopback
 * address if this process serves there. malloc'ed; NULL: no memory. */
char *tcp_url(const struct store_url *url, const struct sockaddr_storage *served);

/* The client, with more than a URL can say. */
struct tcp_options {
    const char *secret; /* NULL or "" is none */
    int64_t connect_ms; /* for reaching the server */
    int64_t timeout_ms; /* for joining, and the default of later waits */
    /* A client does not join (SYSTEM) where world_size ranks have joined: that server belongs to
     * the store that they opened before this one. */
    bool exclusive;
    bool is_up; /* the server runs already: a client that cannot reach it does not try again */
    bool *
        has_joined; /* [out] this rank has joined, so it need not try another server; may be NULL */
    /* Called once this process serves, before it waits for others to join; may be NULL. */
    enum tutti_status (*announce)(void *context, uint16_t port);
    void *context;
};

/* How the client runs a call on a store of its own. */
typedef enum tutti_status tcp_serve_fn(void *store, struct store_call *call);

/* This rank joins; waits until all have, or the server has given up. name: the store's, HOST:PORT.
 */
enum tutti_status tcp_join(tcp_serve_fn *serve, void *store, const char *name,
                           const struct store_url *url, const struct tcp_options *options);

enum tutti_status tcp_open_with(const struct store_url *url, const struct tcp_options *options,
                                tutti_store_t **store);

#endif
