/* SPDX-License-Identifier: MIT */
/* One process, which asks all its sockets in turn. Bytes wait in a queue until they are due. */
#include "relay.h"

#include "base/deadline.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { PAIRS = 64, CHUNK_BYTES = 4096 };

/* Bytes that were read together. No bytes: the end of the direction. */
struct chunk {
    struct chunk *next;
    int64_t due;
    size_t bytes, sent;
    char data[CHUNK_BYTES];
};

/* fds[0] is the client's. queues[i] goes to fds[i]. */
struct pair {
    int fds[2]; /* -1: none */
    struct chunk *queues[2];
    int ended[2]; /* fds[i] has sent its end */
};

static int tcp_socket(void)
{
    int on = 1;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        abort();
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

static struct sockaddr_in address_of(uint16_t port)
{
    return (struct sockaddr_in){
        .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK), .sin_port = htons(port)};
}

static void pair_close(struct pair *pair)
{
    for (int i = 0; i < 2; i++) {
        for (struct chunk *next, *chunk = pair->queues[i]; chunk; chunk = next) {
            next = chunk->next;
            free(chunk);
        }
        close(pair->fds[i]);
    }
    *pair = (struct pair){.fds = {-1, -1}};
}

static void take_client(struct pair *pairs, int listener, uint16_t target, uint32_t mode)
{
    const struct sockaddr_in to = address_of(target);
    const int fd = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
    struct pair *pair = pairs;
    while (pair < pairs + PAIRS && pair->fds[0] >= 0)
        pair++;
    if (fd < 0 || pair == pairs + PAIRS || mode == RELAY_CLOSED) {
        close(fd);
        return;
    }
    *pair = (struct pair){.fds = {fd, tcp_socket()}};
    if (connect(pair->fds[1], (const struct sockaddr *)&to, sizeof to) < 0)
        pair_close(pair);
}

/* Reads from one side for the other. False if the connection is broken. */
static int take_bytes(struct pair *pair, int from, int64_t due)
{
    struct chunk **last = &pair->queues[!from], *chunk = calloc(1, sizeof *chunk);
    if (!chunk)
        abort();
    const ssize_t bytes = recv(pair->fds[from], chunk->data, CHUNK_BYTES, MSG_DONTWAIT);
    chunk->due = due;
    chunk->bytes = bytes > 0 ? (size_t)bytes : 0;
    pair->ended[from] |= bytes == 0;
    while (*last)
        last = &(*last)->next;
    *last = chunk;
    return bytes >= 0;
}

/* Sends what is due. False if the connection is over. */
static int pass_on(struct pair *pair, int to)
{
    for (struct chunk *chunk; (chunk = pair->queues[to]) && deadline_passed(chunk->due);) {
        if (!chunk->bytes)
            return 0;
        const ssize_t sent = send(pair->fds[to], chunk->data + chunk->sent,
                                  chunk->bytes - chunk->sent, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (sent <= 0)
            return 1; /* it takes no more now; a broken one shows when it is read */
        chunk->sent += (size_t)sent;
        if (chunk->sent < chunk->bytes)
            return 1;
        pair->queues[to] = chunk->next;
        free(chunk);
    }
    return 1;
}

static void serve_pair(const struct relay *relay, struct pair *pair, uint32_t mode)
{
    const int64_t due =
        deadline_now() + (int64_t)__atomic_load_n(&relay->delay_us, __ATOMIC_SEQ_CST) * 1000;
    int alive = mode != RELAY_CLOSED;
    for (int i = 0; i < 2 && alive && mode == RELAY_WHOLE; i++) {
        struct pollfd one = {.fd = pair->fds[i], .events = POLLIN};
        if (!pair->ended[i] && poll(&one, 1, 0) > 0)
            alive = take_bytes(pair, i, due);
    }
    for (int i = 0; i < 2 && alive && mode == RELAY_WHOLE; i++)
        alive = pass_on(pair, i);
    if (!alive)
        pair_close(pair);
}

static void serve(const struct relay *relay, int listener, uint16_t target)
{
    static struct pair pairs[PAIRS];
    for (int i = 0; i < PAIRS; i++)
        pairs[i] = (struct pair){.fds = {-1, -1}};
    for (;;) {
        const uint32_t mode = __atomic_load_n(&relay->mode, __ATOMIC_SEQ_CST);
        struct pollfd one = {.fd = listener, .events = POLLIN};
        if (poll(&one, 1, 1) > 0)
            take_client(pairs, listener, target, mode);
        for (int i = 0; i < PAIRS; i++)
            if (pairs[i].fds[0] >= 0)
                serve_pair(relay, &pairs[i], mode);
    }
}

struct relay *relay_start(uint16_t target)
{
    struct relay *relay =
        mmap(NULL, sizeof *relay, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct sockaddr_in address = address_of(0);
    socklen_t size = sizeof address;
    const int listener = tcp_socket();
    if (relay == MAP_FAILED || bind(listener, (struct sockaddr *)&address, size) < 0 ||
        listen(listener, PAIRS) < 0 ||
        getsockname(listener, (struct sockaddr *)&address, &size) < 0)
        abort();
    relay->port = ntohs(address.sin_port);
    const pid_t process = fork();
    if (process < 0)
        abort();
    if (process == 0)
        serve(relay, listener, target);
    relay->process = process;
    close(listener);
    return relay;
}

void relay_end(struct relay *relay)
{
    kill(relay->process, SIGKILL);
    waitpid(relay->process, NULL, 0);
    munmap(relay, sizeof *relay);
}
