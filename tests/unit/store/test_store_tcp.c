/* SPDX-License-Identifier: MIT */
/*
 * tcp://HOST:PORT: the suite with and without a secret, the server's protocol byte by byte, and
 * clients and servers that break the protocol.
 */
#include "store/kind.h"
#include "store/tcp.h"
#include "store_suite.h"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PLENTY_MS = 60000, ENDS_S = 30 };

/* A machine that has neither /etc/hosts nor a server of names: it knows numbers alone. */
static bool knows_no_names;

int __real_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found);
int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found);
int __wrap_getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                       struct addrinfo **found)
{
    struct addrinfo numeric = *hints;
    if (knows_no_names)
        numeric.ai_flags |= AI_NUMERICHOST;
    return __real_getaddrinfo(node, service, &numeric, found);
}

static tutti_store_t *server;
static char url[64];

static void begin(void)
{
    if (tutti_store_open("tcp://localhost:0?server=1", PLENTY_MS, &server) != TUTTI_OK) {
        print_error("%s\n", tutti_last_error());
        abort();
    }
    snprintf(url, sizeof url, "%s", tutti_store_url(server));
}

static void end(void)
{
    tutti_store_close(server);
}

static tutti_store_t *open_one(void)
{
    tutti_store_t *store;
    return tutti_store_open(url, PLENTY_MS, &store) == TUTTI_OK ? store : NULL;
}

static int setup(void **state)
{
    (void)state;
    begin();
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    end();
    return 0;
}

/* ---- a raw client -----------------------------------------------------------------------------
 */

static int dial(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1))};
    int fd = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
    return fd;
}

static void say(int fd, const void *bytes, size_t size)
{
    assert_int_equal(send(fd, bytes, size, MSG_NOSIGNAL), size);
}

/* The next bytes from the server are these. */
static void hear(int fd, const void *bytes, size_t size)
{
    char got[512];
    for (size_t have = 0; have < size;) {
        struct pollfd one = {.fd = fd, .events = POLLIN};
        assert_int_equal(poll(&one, 1, PLENTY_MS), 1);
        ssize_t part = recv(fd, got + have, size - have, 0);
        assert_true(part > 0);
        have += (size_t)part;
    }
    assert_memory_equal(got, bytes, size);
}

/* The server has closed the connection, sending nothing more. */
static void hear_the_end(int fd)
{
    char byte;
    struct pollfd one = {.fd = fd, .events = POLLIN};
    assert_int_equal(poll(&one, 1, PLENTY_MS), 1);
    assert_true(recv(fd, &byte, 1, 0) <= 0);
    close(fd);
}

#define HELLO          "\x00\xce\xf7\x85\x3c"
#define L(n)           n "\0\0\0\0\0\0\0"
#define SAY(fd, text)  say(fd, text, sizeof(text) - 1)
#define HEAR(fd, text) hear(fd, text, sizeof(text) - 1)

static int dial_and_greet(void)
{
    int fd = dial();
    SAY(fd, HELLO "\x0d"
                  "nonc");
    HEAR(fd, "nonc");
    return fd;
}

static void every_opcode_answers_as_pytorchs(void **state)
{
    (void)state;
    int fd = dial_and_greet();
    SAY(fd, "\x01" L("\x02") "/a" L("\x01") "1"); /* set */
    SAY(fd, "\x03" L("\x02") "/a");               /* get */
    HEAR(fd, L("\x01") "1");
    SAY(fd, "\x03" L("\x02") "/?"); /* get what is absent */
    HEAR(fd, L("\0"));
    SAY(fd, "\x02" L("\x02") "/a" L("\x01") "1" L("\x01") "7"); /* compare_set */
    HEAR(fd, L("\x01") "7");
    SAY(fd, "\x04" L("\x02") "/a" L("\x03")); /* add */
    HEAR(fd, L("\x0a"));
    SAY(fd, "\x05" L("\x02") L("\x02") "/a" L("\x02") "/b"); /* check */
    HEAR(fd, "\x01");
    SAY(fd, "\x05" L("\x01") L("\x02") "/a");
    HEAR(fd, "\0");
    SAY(fd, "\x06" L("\x01") L("\x02") "/a"); /* wait */
    HEAR(fd, "\0");
    SAY(fd, "\x07"); /* num_keys */
    HEAR(fd, L("\x01"));
    close(fd);
}

static void the_rest_answers_too(void **state)
{
    (void)state;
    int fd = dial_and_greet();
    SAY(fd, "\x09" L("\x02") "/a" L("\x02") "xy"); /* append */
    SAY(fd, "\x09" L("\x02") "/a" L("\x01") "z");
    SAY(fd, "\x0b" L("\x01") L("\x02") "/b" L("\x01") "v");  /* multi_set */
    SAY(fd, "\x0a" L("\x02") L("\x02") "/a" L("\x02") "/b"); /* multi_get */
    HEAR(fd, L("\x03") "xyz" L("\x01") "v");
    SAY(fd, "\x0a" L("\0"));
    SAY(fd, "\x08" L("\x02") "/a"); /* delete */
    HEAR(fd, L("\x01"));
    SAY(fd, "\x08" L("\x02") "/a");
    HEAR(fd, L("\0"));
    SAY(fd, "\x10" L("\x02") "/q"); /* queue_len */
    HEAR(fd, L("\0"));
    SAY(fd, "\x0f" L("\x02") "/q"); /* queue_pop */
    HEAR(fd, L("\0"));
    SAY(fd, "\x0e" L("\x02") "/q" L("\x02") "q1"); /* queue_push */
    SAY(fd, "\x0e" L("\x02") "/q" L("\0"));
    SAY(fd, "\x06" L("\x01") L("\x02") "/q"); /* a queue is there */
    HEAR(fd, "\0");
    SAY(fd, "\x0f" L("\x02") "/q");
    HEAR(fd, L("\x02") L("\x02") "q1");
    SAY(fd, "\x0f" L("\x02") "/q");
    HEAR(fd, L("\x01") L("\0"));
    SAY(fd, "\x12" L("\x02") "/r" L("\x01")); /* barrier of one */
    HEAR(fd, "\0");
    SAY(fd, "\x06" L("\x01") L("\x02") "/w"
                                       "\x0c"); /* wait, cancel_wait */
    HEAR(fd, "\x01");
    SAY(fd, "\x0c");
    HEAR(fd, "\x01");
    SAY(fd, "\x08" L("\x02") "/r"
                             "\x11"); /* list_keys */
    HEAR(fd, L("\x01") L("\x01") L("\x02") "/b");
    close(fd);
}

static void waits_end_when_the_last_key_comes(void **state)
{
    (void)state;
    int waiter = dial_and_greet(), other = dial_and_greet(), third = dial_and_greet();
    SAY(waiter, "\x06" L("\x03") L("\x02") "/a" L("\x02") "/b" L("\x02") "/a");
    SAY(other, "\x01" L("\x02") "/a" L("\0"));
    SAY(other, "\x04" L("\x02") "/b" L("\x01"));
    HEAR(other, L("\x01"));
    HEAR(waiter, "\0");
    /* The keys come in any order. */
    SAY(waiter, "\x06" L("\x03") L("\x02") "/m" L("\x02") "/n" L("\x02") "/o");
    SAY(other, "\x01" L("\x02") "/o" L("\0"));
    SAY(other, "\x01" L("\x02") "/m" L("\0"));
    SAY(other, "\x04" L("\x02") "/n" L("\x01"));
    HEAR(other, L("\x01"));
    HEAR(waiter, "\0");
    /* A barrier of two, a wait for a queue; two wait, one push wakes one. */
    SAY(waiter, "\x12" L("\x02") "/r" L("\x02"));
    SAY(other, "\x12" L("\x02") "/r" L("\x02"));
    HEAR(waiter, "\0");
    HEAR(other, "\0");
    SAY(waiter, "\x06" L("\x01") L("\x02") "/q");
    SAY(third, "\x0e" L("\x02") "/q" L("\x01") "x");
    HEAR(waiter, "\0");
    /* A waiter that goes away is forgotten. */
    SAY(waiter, "\x06" L("\x01") L("\x02") "/z");
    close(waiter);
    SAY(other, "\x06" L("\x01") L("\x02") "/z");
    SAY(third, "\x01" L("\x02") "/z" L("\0"));
    HEAR(other, "\0");
    close(other);
    close(third);
}

/* The server says so only to a client that asks. */
static void a_get_may_wait_at_the_server(void **state)
{
    (void)state;
    int waiter = dial(), other = dial_and_greet();
    SAY(waiter, HELLO "\x0d"
                      "tttu");
    HEAR(waiter, "tttu");
    SAY(waiter, "\x0d"
                "ttut");
    HEAR(waiter, "utut");
    SAY(waiter, "\xca" L("\x02") L("\x02") "/a" L("\x02") "/b"); /* wait_get */
    SAY(other, "\x01" L("\x02") "/b" L("\x01") "2");
    SAY(other, "\x01" L("\x02") "/a" L("\x03") "one");
    HEAR(waiter, L("\x03") "one" L("\x01") "2");
    SAY(waiter, "\xca" L("\x01") L("\x02") "/b");
    HEAR(waiter, L("\x01") "2");
    close(waiter);
    close(other);
}

/* Each ends its own connection and nobody else's. */
static void broken_clients_are_cut_off(void **state)
{
#define ROW(text)                                                                                  \
    {                                                                                              \
        text, sizeof(text) - 1                                                                     \
    }
    static const struct {
        const char *bytes;
        size_t size;
    } rows[] = {
        ROW("GET / HTTP/1.1\r\n\r\n"),
        ROW("\x0d"),                                         /* no introduction */
        ROW("\x00wrong"),                                    /* another magic */
        ROW(HELLO HELLO),                                    /* twice */
        ROW(HELLO "\x13"),                                   /* no such opcode */
        ROW(HELLO "\xff"),                                   /* nor this */
        ROW(HELLO "\x01\x01\x20\0\0\0\0\0\0"),               /* a key of 8 KiB + 1 */
        ROW(HELLO "\x03\xff\xff\xff\xff\xff\xff\xff\xff"),   /* 2^64 - 1 */
        ROW(HELLO "\x01" L("\x01") "k\x01\0\x80\0\0\0\0\0"), /* a value of 8 MiB + 1 */
        ROW(HELLO "\x06\xff\xff\xff\xff\0\0\0\0"),           /* 2^32 keys */
        ROW(HELLO "\x01" L("\x01") "k" L("\x01") "x\x04" L("\x01") "k" L("\x01")), /* add to text */
        ROW(HELLO "\x06" L("\x01") L("\x01") "?\x07"), /* a question while waiting */
        ROW(HELLO "\xc9"
                  "0123456789abcdef0123456789abcdef"), /* a proof that was not asked for */
    };
#undef ROW
    (void)state;
    tutti_store_t *store = open_one();
    assert_non_null(store);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        int fd = dial();
        say(fd, rows[i].bytes, rows[i].size);
        hear_the_end(fd);
        assert_int_equal(tutti_store_set(store, "alive", "", 0), TUTTI_OK);
    }
    tutti_store_close(store);
}

static void slow_and_silent_clients_block_nobody(void **state)
{
    enum { CLIENTS = 40 };
    static const char half[] = HELLO "\x01" L("\x04") "/k";
    int fds[CLIENTS];
    (void)state;
    tutti_store_t *store = open_one();
    assert_non_null(store);
    for (int i = 0; i < CLIENTS; i++) {
        fds[i] = dial();
        say(fds[i], half, i % sizeof half);
    }
    /* One byte at a time is a request as well. */
    int slow = dial();
    static const char whole[] = HELLO "\x01" L("\x05") "/slow" L("\x02") "ok";
    for (size_t i = 0; i < sizeof whole - 1; i++) {
        say(slow, whole + i, 1);
        assert_int_equal(tutti_store_add(store, "count", 1, NULL), TUTTI_OK);
    }
    char value[2];
    assert_int_equal(tutti_store_get(store, "slow", PLENTY_MS, value, 2, NULL), TUTTI_OK);
    close(slow);
    for (int i = 0; i < CLIENTS; i++)
        close(fds[i]);
    tutti_store_close(store);
}

enum { CROSSINGS = 200 };

static void *set_slowly(void *store)
{
    char key[32];
    for (int i = 0; i < CROSSINGS; i++) {
        snprintf(key, sizeof key, "cross-%d", i);
        usleep(700);
        if (tutti_store_set(store, key, &i, sizeof i) != TUTTI_OK)
            break; /* and the test waits in vain */
    }
    return NULL;
}

/* The end of a wait and the key that it waited for may cross: the answer to the wait is never taken
 * for the next request's reply. */
static void a_late_wait_disturbs_no_other_call(void **state)
{
    pthread_t thread;
    int64_t asked = 0, count = 0;
    (void)state;
    tutti_store_t *store = open_one();
    assert_non_null(store);
    assert_int_equal(pthread_create(&thread, NULL, set_slowly, server), 0);
    for (int i = 0; i < CROSSINGS; i++) {
        char text[32];
        const char *key = text;
        enum tutti_status status;
        snprintf(text, sizeof text, "cross-%d", i);
        while ((status = tutti_store_wait(store, &key, 1, 1)) == TUTTI_ERR_TIMEOUT) {
            assert_true(asked < PLENTY_MS);
            assert_int_equal(tutti_store_add(store, "count", 1, &count), TUTTI_OK);
            assert_int_equal(count, ++asked);
        }
        int value = -1;
        assert_int_equal(status, TUTTI_OK);
        assert_int_equal(tutti_store_get(store, key, PLENTY_MS, &value, sizeof value, NULL), 0);
        assert_int_equal(value, i);
    }
    pthread_join(thread, NULL);
    tutti_store_close(store);
}

/* More than the server keeps: the first give way, and a client that introduces itself is let in. */
static void many_strangers_keep_nobody_out(void **state)
{
    enum { MANY = 400 };
    int fds[MANY], before = dial_and_greet();
    (void)state;
    for (int i = 0; i < MANY; i++)
        fds[i] = dial();
    tutti_store_t *store = open_one();
    for (int i = 0; i < 20; i++)
        assert_int_equal(tutti_store_add(store, "count", 1, NULL), TUTTI_OK);
    hear_the_end(fds[0]);
    SAY(before, "\x07"); /* is still there */
    assert_int_equal(recv(before, (char[8]){0}, 8, MSG_WAITALL), 8);
    for (int i = 1; i < MANY; i++)
        close(fds[i]);
    close(before);
    tutti_store_close(store);
}

/* Asks for far more than the sockets hold and does not read: the server keeps one reply and stops
 * reading, others go on. */
static void a_client_that_does_not_read_is_not_read(void **state)
{
    size_t bytes = (size_t)4 << 20;
    char *value = calloc(1, bytes);
    (void)state;
    tutti_store_t *store = open_one();
    assert_int_equal(tutti_store_set(store, "large", value, bytes), TUTTI_OK);
    int fd = dial_and_greet();
    for (int i = 0; i < 8; i++)
        SAY(fd, "\x03" L("\x06") "/large");
    for (int i = 0; i < 100; i++)
        assert_int_equal(tutti_store_add(store, "count", 1, NULL), TUTTI_OK);
    /* Once it reads, all comes. */
    for (size_t left = 8 * (bytes + 8); left > 0;) {
        ssize_t part = recv(fd, value, bytes < left ? bytes : left, 0);
        assert_true(part > 0);
        left -= (size_t)part;
    }
    close(fd);
    free(value);
    tutti_store_close(store);
}

/* ---- secrets ----------------------------------------------------------------------------------
 */

static void begin_secretly(void)
{
    setenv("TUTTI_STORE_SECRET", "a shared secret", 1);
    begin();
}

static void end_secretly(void)
{
    end();
    unsetenv("TUTTI_STORE_SECRET");
}

static void expect_refusal(const char *secret)
{
    tutti_store_t *store;
    if (secret)
        setenv("TUTTI_STORE_SECRET", secret, 1);
    else
        unsetenv("TUTTI_STORE_SECRET");
    assert_int_equal(tutti_store_open(url, PLENTY_MS, &store), TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "TUTTI_STORE_SECRET"));
}

static void secrets_must_agree(void **state)
{
    (void)state;
    begin();
    expect_refusal("only mine");
    unsetenv("TUTTI_STORE_SECRET");
    end();
    begin_secretly();
    expect_refusal(NULL);
    expect_refusal("another");
    /* What is no introduction gets nothing out of it. */
    int fd = dial();
    SAY(fd, HELLO "\x07");
    hear_the_end(fd);
    fd = dial();
    SAY(fd, HELLO "\xc9"
                  "0123456789abcdef0123456789abcdef");
    hear_the_end(fd);
    end_secretly();
}

static void a_wrong_proof_is_refused(void **state)
{
    char reply[1 + 2 * 32];
    (void)state;
    begin_secretly();
    int fd = dial();
    SAY(fd, HELLO "\xc8"
                  "0123456789abcdef0123456789abcdef");
    assert_int_equal(recv(fd, reply, sizeof reply, MSG_WAITALL), sizeof reply);
    assert_int_equal(reply[0], 0);
    SAY(fd, "\xc9"
            "0123456789abcdef0123456789abcdef");
    HEAR(fd, "\x01");
    hear_the_end(fd);
    end_secretly();
}

/* ---- servers that are none --------------------------------------------------------------------
 */

struct impostor {
    int listener;
    const char *answer; /* to whatever comes */
    size_t size;
};

static void *impostor_main(void *argument)
{
    struct impostor *impostor = argument;
    char bytes[256];
    for (;;) {
        int fd = accept(impostor->listener, NULL, NULL);
        if (fd < 0)
            return NULL;
        if (recv(fd, bytes, sizeof bytes, 0) > 9)
            send(fd, bytes + 6, 4, MSG_NOSIGNAL); /* the ping's nonce */
        while (recv(fd, bytes, sizeof bytes, 0) > 0 && impostor->size)
            send(fd, impostor->answer, impostor->size, MSG_NOSIGNAL);
        close(fd);
    }
}

static void hostile_replies_do_no_harm(void **state)
{
    static const char huge[] = "\0\xff\xff\xff\xff\xff\xff\xff\xff";
    struct impostor impostor = {.answer = huge, .size = sizeof huge - 1};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    pthread_t thread;
    tutti_store_t *store;
    char value[16];
    const char *key = "k";
    size_t length;
    (void)state;
    impostor.listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(impostor.listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(impostor.listener, 8), 0);
    getsockname(impostor.listener, (struct sockaddr *)&address, &size);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%u", ntohs(address.sin_port));
    pthread_create(&thread, NULL, impostor_main, &impostor);

    assert_int_equal(tutti_store_open(url, 5000, &store), TUTTI_OK);
    assert_int_equal(tutti_store_get(store, key, 5000, value, sizeof value, &length),
                     TUTTI_ERR_SYSTEM);
    assert_int_equal(tutti_store_compare_set(store, key, "", 0, "", 0, value, 16, &length),
                     TUTTI_ERR_SYSTEM);
    tutti_store_close(store);
    shutdown(impostor.listener, SHUT_RDWR);
    pthread_join(thread, NULL);
    close(impostor.listener);
}

static void a_silent_server_ends_in_a_time_out(void **state)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    tutti_store_t *store;
    (void)state;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    getsockname(listener, (struct sockaddr *)&address, &size);
    snprintf(url, sizeof url, "tcp://127.0.0.1:%u", ntohs(address.sin_port));
    /* Nobody listens, then somebody who says nothing. */
    assert_int_equal(tutti_store_open(url, 20, &store), TUTTI_ERR_TIMEOUT);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(tutti_store_open(url, 20, &store), TUTTI_ERR_TIMEOUT);
    close(listener);
}

/* ---- addresses and joining --------------------------------------------------------------------
 */

static void urls_are_parsed(void **state)
{
    static const char *const wrong[] = {
        "",
        "tcp:",
        "tcp://",
        "tcp://host",
        "tcp://:1",
        "tcp://h:65536",
        "tcp://h:-1",
        "tcp://h:1x",
        "tcp://h:0",
        "tcp://h:1?",
        "tcp://h:1?server=2",
        "tcp://h:1?world_size=0",
        "tcp://h:1?color=red",
        "tcp://h:1?rank=0",
        "tcp://h:1?world_size=2&rank=2",
        "tcp://h:1?world_size=2&rank=-1",
        "tcp://h:1?bind=::",
        "tcp://[::1:1",
        "tcp://[]:1",
        "udp://h:1",
        "memory:",
        "file:",
        "file:/x?world_size=0",
        "file:/x?world_size=two",
        "file:/x?rank=1&world_size=2",
        "file:/x?world_size=2&rank=1",
        "env:x",
    };
    struct store_url parsed;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        if (store_url_parse(wrong[i], &parsed) != TUTTI_ERR_INVALID)
            fail_msg("accepted %s", wrong[i]);
    assert_int_equal(store_url_parse("tcp://[::1]:0?server=1&bind=::&world_size=4", &parsed),
                     TUTTI_OK);
    assert_string_equal(parsed.text, "::1");
    assert_string_equal(parsed.bind, "::");
    assert_int_equal(parsed.port, 0);
    assert_int_equal(parsed.world_size, 4);
    assert_int_equal(parsed.rank, -1);
    assert_true(parsed.server);
    assert_int_equal(store_url_parse("tcp://h:1?rank=3&world_size=4", &parsed), TUTTI_OK);
    assert_int_equal(parsed.rank, 3);
    assert_int_equal(store_url_parse("file:/x?y?world_size=3", &parsed), TUTTI_OK);
    assert_string_equal(parsed.text, "/x?y");
    assert_int_equal(parsed.world_size, 3);
    assert_int_equal(store_url_parse("file:/why?", &parsed), TUTTI_OK);
    assert_string_equal(parsed.text, "/why?");
}

static int join_one(void *context, int index)
{
    tutti_store_t *store;
    char text[128];
    (void)context;
    snprintf(text, sizeof text, "tcp://127.0.0.1:%s?world_size=3%s", url,
             index == 0 ? "&server=1" : "");
    if (tutti_store_open(text, PLENTY_MS, &store) != TUTTI_OK)
        return 1;
    struct tutti_exchanger exchanger = {
        .struct_size = sizeof exchanger, .store = store, .prefix = "p", .rank = index, .size = 3};
    int failed = tutti_exchanger_barrier(&exchanger, PLENTY_MS) != TUTTI_OK;
    tutti_store_close(store);
    return failed;
}

/* Clients come before or after the server; the server's close waits for theirs. */
static void ranks_join_and_leave(void **state)
{
    (void)state;
    begin();
    snprintf(url, sizeof url, "%s", strrchr(tutti_store_url(server), ':') + 1);
    end();
    for (int i = 0; i < 5; i++)
        assert_int_equal(suite_processes(3, join_one, NULL), 0);
}

static void an_absent_rank_does_not_join(void **state)
{
    tutti_store_t *store;
    (void)state;
    assert_int_equal(tutti_store_open("tcp://h:0?server=1&world_size=2", 30, &store),
                     TUTTI_ERR_TIMEOUT);
    assert_non_null(strstr(tutti_last_error(), "1 of 2"));
    assert_int_equal(tutti_store_open("tcp://h:0?server=1&bind=no.such.host.invalid", 30, &store),
                     TUTTI_ERR_INVALID);
}

static void a_port_is_served_once(void **state)
{
    tutti_store_t *store;
    char text[128];
    (void)state;
    snprintf(text, sizeof text, "%s?server=1", url);
    assert_int_equal(tutti_store_open(text, PLENTY_MS, &store), TUTTI_ERR_SYSTEM);
    assert_non_null(strstr(tutti_last_error(), "EADDRINUSE"));
}

static void calls_fail_once_the_server_has_gone(void **state)
{
    (void)state;
    begin();
    tutti_store_t *store = open_one();
    assert_non_null(store);
    assert_int_equal(tutti_store_set(store, "k", "", 0), TUTTI_OK);
    end(); /* lingers, then ends */
    assert_int_equal(tutti_store_set(store, "k", "", 0), TUTTI_ERR_SYSTEM);
    assert_int_equal(tutti_store_get(store, "k", PLENTY_MS, NULL, 0, NULL), TUTTI_ERR_SYSTEM);
    tutti_store_close(store);
}

/* RFC 6761: the name localhost is the loopback, whatever the machine's list of names says. */
static void localhost_needs_no_list_of_names(void **state)
{
    (void)state;
    tutti_store_t *one, *other;
    char text[64];
    knows_no_names = true;
    assert_int_equal(tutti_store_open("tcp://Localhost:0?server=1&bind=localhost", PLENTY_MS, &one),
                     TUTTI_OK);
    const char *port = strrchr(tutti_store_url(one), ':');
    assert_non_null(port);
    snprintf(text, sizeof text, "tcp://localhost%s", port);
    assert_int_equal(tutti_store_open(text, PLENTY_MS, &other), TUTTI_OK);
    assert_int_equal(tutti_store_set(other, "k", "v", 1), TUTTI_OK);
    assert_int_equal(tutti_store_open("tcp://nowhere.invalid:1", PLENTY_MS, &(tutti_store_t *){0}),
                     TUTTI_ERR_INVALID);
    tutti_store_close(other);
    tutti_store_close(one);
    knows_no_names = false;
}

/* The unspecified address of IPv6 serves clients of both families. */
static void one_listener_serves_both_families(void **state)
{
    (void)state;
    tutti_store_t *one, *other;
    char text[64];
    if (tutti_store_open("tcp://[::1]:0?server=1&bind=::", PLENTY_MS, &one) != TUTTI_OK)
        skip(); /* no IPv6 */
    const char *port = strrchr(tutti_store_url(one), ':');
    assert_non_null(port);
    snprintf(text, sizeof text, "tcp://127.0.0.1%s", port);
    assert_int_equal(tutti_store_open(text, PLENTY_MS, &other), TUTTI_OK);
    assert_int_equal(tutti_store_set(other, "k", "v", 1), TUTTI_OK);
    tutti_store_close(other);
    snprintf(text, sizeof text, "tcp://[::1]%s", port);
    assert_int_equal(tutti_store_open(text, PLENTY_MS, &other), TUTTI_OK);
    assert_int_equal(tutti_store_set(other, "k", "v", 1), TUTTI_OK);
    tutti_store_close(other);
    tutti_store_close(one);
}

/* A host that is a loopback address is where the server listens, and where others find it. */
static void a_loopback_host_is_where_the_server_listens(void **state)
{
    static const char *const hosts[] = {"127.0.0.2", "[::1]"};
    (void)state;
    for (size_t i = 0; i < sizeof hosts / sizeof *hosts; i++) {
        tutti_store_t *one, *other;
        char text[64];
        snprintf(text, sizeof text, "tcp://%s:0?server=1", hosts[i]);
        if (tutti_store_open(text, PLENTY_MS, &one) && i == 1) /* no IPv6 */
            break;
        snprintf(text, sizeof text, "tcp://%s:", hosts[i]);
        assert_memory_equal(tutti_store_url(one), text, strlen(text));
        assert_int_equal(tutti_store_open(tutti_store_url(one), PLENTY_MS, &other), TUTTI_OK);
        tutti_store_close(other), tutti_store_close(one);
    }
}

/* Of a process with a server: another one asks it to fork. */
static void serve_and_fork(int commands, int answers)
{
    char byte;
    begin();
    if (write(answers, url, sizeof url) != (ssize_t)sizeof url || read(commands, &byte, 1) != 1)
        _exit(1);
    pid_t child = fork();
    alarm(ENDS_S); /* both end, also if the test has failed */
    if (child > 0 && write(answers, &child, sizeof child) != (ssize_t)sizeof child)
        _exit(1);
    pause();
    _exit(0);
}

/* The server's process is killed, and a child that it forked lives. */
static void a_child_does_not_hold_the_servers_connections(void **state)
{
    int commands[2], answers[2];
    tutti_store_t *client;
    pid_t child;
    (void)state;
    assert_true(pipe(commands) == 0 && pipe(answers) == 0);
    const pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0)
        serve_and_fork(commands[0], answers[1]);
    assert_int_equal(read(answers[0], url, sizeof url), sizeof url);
    assert_int_equal(tutti_store_open(url, PLENTY_MS, &client), TUTTI_OK);
    assert_int_equal(tutti_store_set(client, "k", "v", 1), TUTTI_OK);
    assert_int_equal(write(commands[1], "f", 1), 1);
    assert_int_equal(read(answers[0], &child, sizeof child), sizeof child);
    assert_true(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
    assert_int_equal(tutti_store_get(client, "never", 5000, NULL, 0, NULL), TUTTI_ERR_SYSTEM);
    assert_int_equal(kill(child, SIGKILL), 0);
    tutti_store_close(client);
    for (int i = 0; i < 2; i++) {
        close(commands[i]);
        close(answers[i]);
    }
}

int main(void)
{
    static const struct suite_kind plain = {begin, open_one, end, true};
    static const struct suite_kind secret = {begin_secretly, open_one, end_secretly, true};
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(every_opcode_answers_as_pytorchs),
        TEST(the_rest_answers_too),
        TEST(waits_end_when_the_last_key_comes),
        TEST(a_get_may_wait_at_the_server),
        TEST(broken_clients_are_cut_off),
        TEST(slow_and_silent_clients_block_nobody),
        TEST(many_strangers_keep_nobody_out),
        TEST(a_client_that_does_not_read_is_not_read),
        TEST(a_late_wait_disturbs_no_other_call),
        TEST(a_port_is_served_once),
        cmocka_unit_test(secrets_must_agree),
        cmocka_unit_test(a_wrong_proof_is_refused),
        cmocka_unit_test(hostile_replies_do_no_harm),
        cmocka_unit_test(a_silent_server_ends_in_a_time_out),
        cmocka_unit_test(localhost_needs_no_list_of_names),
        cmocka_unit_test(one_listener_serves_both_families),
        cmocka_unit_test(a_loopback_host_is_where_the_server_listens),
        cmocka_unit_test(urls_are_parsed),
        cmocka_unit_test(ranks_join_and_leave),
        cmocka_unit_test(an_absent_rank_does_not_join),
        cmocka_unit_test(calls_fail_once_the_server_has_gone),
        cmocka_unit_test(a_child_does_not_hold_the_servers_connections),
    };
#undef TEST
    unsetenv("TUTTI_STORE_SECRET");
    return store_suite_run("tcp", &plain) + store_suite_run("tcp with a secret", &secret) +
           cmocka_run_group_tests(tests, NULL, NULL);
}
