/* SPDX-License-Identifier: MIT */
/* tutti_store_get() at a server that only knows PyTorch's requests, where a key is deleted between
 * the client's wait and its read. The server here follows a script. */
#include "store/tcp_request.h"
#include "tutti/tutti.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

enum { PLENTY_MS = 60000, SHORT_MS = 200 };

/* A request that is expected, and the bytes that answer it. */
struct step {
    enum tcp_op op;
    const char *reply;
    size_t size;
};
#define STEP(op, reply)                                                                            \
    {                                                                                              \
        TCP_##op, reply, sizeof reply - 1                                                          \
    }
#define L(n) n "\0\0\0\0\0\0\0" /* a length */

static int listener;
static char url[64];

/* Serves one client until its end; NULL if that sent what the script says. */
static void *follow(void *script)
{
    uint8_t bytes[512];
    size_t size = 0;
    const int fd = accept(listener, NULL, NULL);
    struct tcp_request request = {0};
    for (const struct step *step = script; step->reply;) {
        const ssize_t got = recv(fd, bytes + size, sizeof bytes - size, 0);
        if (got <= 0)
            return "the client has gone";
        size += (size_t)got;
        while (step->reply && size && tcp_request_parse(&request, bytes, size) == TCP_DONE) {
            if (request.op != step->op)
                return "another request";
            /* a PING is answered by its word */
            send(fd, step->op == TCP_PING ? (const void *)&request.word : step->reply, step->size,
                 MSG_NOSIGNAL);
            size -= request.bytes;
            memmove(bytes, bytes + request.bytes, size);
            tcp_request_reset(&request);
            step++;
        }
    }
    (void)!recv(fd, bytes, sizeof bytes, 0); /* the end, or the request of a wait given up */
    close(fd);
    return NULL;
}

static void get(struct step *script, int64_t timeout_ms, enum tutti_status expected,
                const char *value)
{
    char got[16] = "";
    size_t size = 0;
    void *wrong;
    pthread_t thread;
    tutti_store_t *store;
    pthread_create(&thread, NULL, follow, script);
    assert_int_equal(tutti_store_open(url, PLENTY_MS, &store), TUTTI_OK);
    assert_int_equal(tutti_store_get(store, "k", timeout_ms, got, sizeof got, &size), expected);
    tutti_store_close(store);
    pthread_join(thread, &wrong);
    assert_null(wrong);
    assert_int_equal(size, strlen(value));
    assert_memory_equal(got, value, size);
}

static void a_key_that_comes_back_is_read(void **state)
{
    struct step script[] = {STEP(VALIDATE, ""),
                            STEP(PING, "1234"),
                            STEP(WAIT, "\0"),
                            STEP(MULTI_GET, L("\0")),
                            STEP(COMPARE_SET, L("\1") "-"),
                            STEP(WAIT, "\0"),
                            STEP(MULTI_GET, L("\3") "new"),
                            {0}};
    (void)state;
    get(script, PLENTY_MS, TUTTI_OK, "new");
}

static void a_key_that_stays_away_is_missing(void **state)
{
    struct step script[] = {STEP(VALIDATE, ""),
                            STEP(PING, "1234"),
                            STEP(WAIT, "\0"),
                            STEP(MULTI_GET, L("\0")),
                            STEP(COMPARE_SET, L("\1") "-"),
                            STEP(WAIT, ""),
                            {0}};
    (void)state;
    get(script, SHORT_MS, TUTTI_ERR_TIMEOUT, "");
    assert_non_null(strstr(tutti_last_error(), "does not exist"));
}

static void an_empty_value_is_a_value(void **state)
{
    struct step script[] = {STEP(VALIDATE, ""),       STEP(PING, "1234"),         STEP(WAIT, "\0"),
                            STEP(MULTI_GET, L("\0")), STEP(COMPARE_SET, L("\0")), {0}};
    (void)state;
    get(script, PLENTY_MS, TUTTI_OK, "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_key_that_comes_back_is_read),
        cmocka_unit_test(a_key_that_stays_away_is_missing),
        cmocka_unit_test(an_empty_value_is_a_value),
    };
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    unsetenv("TUTTI_STORE_SECRET");
    listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(listener, (struct sockaddr *)&address, sizeof address) != 0 ||
        listen(listener, 8) != 0 || getsockname(listener, (struct sockaddr *)&address, &size) != 0)
        return 1;
    snprintf(url, sizeof url, "tcp://127.0.0.1:%u", ntohs(address.sin_port));
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    close(listener);
    return failed;
}
