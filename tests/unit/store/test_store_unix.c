/* SPDX-License-Identifier: MIT */
/* A tcp store on a Unix socket, as ids have it: what every store must do, who is refused, what is
 * left of it, and a server that takes no connection. */
#include "store/tcp.h"
#include "store_suite.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/un.h>
#include <sys/wait.h>

#include <cmocka.h>

enum { PLENTY_MS = 60000, SHORT_MS = 200, NOBODY = 65534 };

static const char secret[] = "known to the ranks alone";
static tutti_store_t *server;
static char name[64];

static enum tutti_status open_with(const char *told, bool serves, int64_t timeout_ms,
                                   tutti_store_t **store)
{
    struct store_url url = {.kind = STORE_TCP, .is_unix = true, .server = serves};
    const struct tcp_options options = {
        .secret = told, .connect_ms = timeout_ms, .timeout_ms = timeout_ms, .is_up = true};
    snprintf(url.text, sizeof url.text, "%s", name);
    return tcp_open_with(&url, &options, store);
}

static void begin(void)
{
    static int count;
    snprintf(name, sizeof name, "tutti-test-%d-%d", getpid(), count++);
    if (open_with(secret, true, PLENTY_MS, &server) != TUTTI_OK) {
        print_error("%s\n", tutti_last_error());
        abort();
    }
}

static void end(void)
{
    tutti_store_close(server);
}

static tutti_store_t *open_one(void)
{
    tutti_store_t *store;
    return open_with(secret, false, PLENTY_MS, &store) == TUTTI_OK ? store : NULL;
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

/* Whether any socket of this network namespace has the name. */
static bool is_listed(void)
{
    FILE *list = fopen("/proc/net/unix", "r");
    char line[256], end[80];
    bool found = false;
    assert_non_null(list);
    snprintf(end, sizeof end, "@%s\n", name);
    while (fgets(line, sizeof line, list))
        found |= strstr(line, end) != NULL;
    fclose(list);
    return found;
}

/* 0, or the first step that went wrong. As another user, if this process may become one. */
static int strange(void)
{
    tutti_store_t *store = NULL;
    if (geteuid() == 0 && setresuid(NOBODY, NOBODY, NOBODY) != 0)
        return 1;
    if (open_with("another", false, PLENTY_MS, &store) != TUTTI_ERR_INVALID ||
        !strstr(tutti_last_error(), "another secret"))
        return 2;
    if (open_with(NULL, false, PLENTY_MS, &store) != TUTTI_ERR_INVALID ||
        !strstr(tutti_last_error(), "wants a secret"))
        return 3;
    return open_with(secret, true, PLENTY_MS, &store) == TUTTI_ERR_SYSTEM && /* the name is taken */
                   strstr(tutti_last_error(), "EADDRINUSE")
               ? 0
               : 4;
}

static void strangers_are_refused(void **state)
{
    int how;
    (void)state;
    const pid_t pid = fork();
    if (pid == 0)
        _exit(strange());
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_int_equal(how, 0);
    tutti_store_t *store = open_one();
    assert_non_null(store);
    tutti_store_close(store);
}

/* Another process has the name that the store had: a client notices by the secret. */
static void a_name_that_another_has_is_noticed(void **state)
{
    tutti_store_t *store, *other;
    (void)state;
    begin();
    end();
    assert_int_equal(open_with("another", true, PLENTY_MS, &other), TUTTI_OK);
    assert_int_equal(open_with(secret, false, PLENTY_MS, &store), TUTTI_ERR_INVALID);
    tutti_store_close(other);
}

static void nothing_is_left(void **state)
{
    tutti_store_t *store, *client;
    int pipes[2];
    char byte;
    (void)state;
    begin();
    assert_true(is_listed());
    assert_null(tutti_store_url(server));
    end();
    assert_false(is_listed());
    assert_int_equal(open_with(secret, false, PLENTY_MS, &store), TUTTI_ERR_SYSTEM);
    assert_non_null(strstr(tutti_last_error(), name));

    assert_int_equal(pipe(pipes), 0); /* a server that is killed */
    const pid_t pid = fork();
    if (pid == 0) {
        begin();
        (void)!write(pipes[1], name, sizeof name);
        pause();
    }
    assert_int_equal(read(pipes[0], name, sizeof name), sizeof name);
    assert_non_null(client = open_one());
    assert_true(kill(pid, SIGKILL) == 0 && waitpid(pid, NULL, 0) == pid);
    assert_int_equal(tutti_store_get(client, "k", PLENTY_MS, &byte, 1, NULL), TUTTI_ERR_SYSTEM);
    assert_false(is_listed());
    tutti_store_close(client);
    close(pipes[0]);
    close(pipes[1]);
}

/* A socket whose queue is full, as that of a process that is stopped. */
static void a_full_queue_is_waited_for(void **state)
{
    tutti_store_t *store;
    (void)state;
    snprintf(name, sizeof name, "tutti-test-%d-full", getpid());
    const struct sockaddr_storage address = tcp_unix_address(name);
    const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int first = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(listener, (const struct sockaddr *)&address, tcp_address_bytes(&address)),
                     0);
    assert_int_equal(listen(listener, 0), 0);
    assert_int_equal(connect(first, (const struct sockaddr *)&address, tcp_address_bytes(&address)),
                     0);
    assert_int_equal(open_with(secret, false, SHORT_MS, &store), TUTTI_ERR_TIMEOUT);
    assert_non_null(strstr(tutti_last_error(), "did not take a connection in time"));
    close(first);
    close(listener);
}

int main(void)
{
    static const struct suite_kind kind = {begin, open_one, end, true};
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(strangers_are_refused, setup, teardown),
        cmocka_unit_test(a_name_that_another_has_is_noticed),
        cmocka_unit_test(nothing_is_left),
        cmocka_unit_test(a_full_queue_is_waited_for),
    };
    unsetenv("TUTTI_STORE_SECRET");
    return store_suite_run("tcp on a Unix socket", &kind) +
           cmocka_run_group_tests(tests, NULL, NULL);
}
