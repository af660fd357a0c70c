/* SPDX-License-Identifier: MIT */
/* Wills: what a tcp store sets when a client's process ends, and what a client learns of the end of
 * its server. */
#include "base/deadline.h"
#include "store/store.h"
#include "store/tcp.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PLENTY_MS = 60000 };

static tutti_store_t *server;
static char url[64];

static int setup(void **state)
{
    (void)state;
    if (tutti_store_open("tcp://localhost:0?server=1", PLENTY_MS, &server) != TUTTI_OK)
        abort();
    snprintf(url, sizeof url, "%s", tutti_store_url(server));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    tutti_store_close(server);
    return 0;
}

static bool has(const char *key)
{
    bool there = false;
    assert_int_equal(store_has(server, key, &there), TUTTI_OK);
    return there;
}

/* The value of a key, which may have to be waited for, is this. */
static void assert_value(const char *key, const char *value)
{
    char got[16] = "";
    size_t size = 0;
    assert_int_equal(tutti_store_get(server, key, PLENTY_MS, got, sizeof got - 1, &size), TUTTI_OK);
    assert_string_equal(got, value);
}

/* Runs `act` in a process with a handle of its own, and returns once that process has ended. */
static void run_apart(void (*act)(tutti_store_t *store))
{
    const pid_t child = fork();
    int how;
    if (child == 0) {
        tutti_store_t *store;
        if (tutti_store_open(url, PLENTY_MS, &store) != TUTTI_OK)
            _exit(1);
        act(store);
        _exit(1); /* it should have ended */
    }
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFSIGNALED(how) && WTERMSIG(how) == SIGKILL);
}

static void die(void)
{
    raise(SIGKILL);
}

static void will_and_die(tutti_store_t *store)
{
    if (store_will(store, "taken", "2", 1) == TUTTI_OK &&
        store_will(store, "first", "1", 1) == TUTTI_OK &&
        store_will(store, "last", "3", 1) == TUTTI_OK)
        die();
}

static void a_killed_process_leaves_its_wills(void **state)
{
    (void)state;
    assert_int_equal(tutti_store_set(server, "taken", "before", 6), TUTTI_OK);
    run_apart(will_and_die);
    assert_value("last", "3");
    assert_true(has("first")); /* all at once */
    assert_value("taken", "before");
}

static void take_back_and_die(tutti_store_t *store)
{
    tutti_store_t *view;
    if (tutti_store_prefix(store, "mine", &view) != TUTTI_OK ||
        store_will(store, "kept", "1", 1) != TUTTI_OK ||
        store_will(view, "a", "1", 1) != TUTTI_OK || store_will(view, "b", "1", 1) != TUTTI_OK)
        return;
    store_wills_end(view, "");
    if (store_will(view, "c", "1", 1) == TUTTI_OK)
        die();
}

static void a_will_may_be_taken_back(void **state)
{
    (void)state;
    run_apart(take_back_and_die);
    assert_value("mine/c", "1");
    assert_value("kept", "1");
    assert_false(has("mine/a") || has("mine/b"));
}

/* A child of the dead process lives on, with copies of all its descriptors. */
static void die_as_a_parent(tutti_store_t *store)
{
    if (store_will(store, "orphan", "1", 1) != TUTTI_OK)
        return;
    const pid_t child = fork();
    if (child == 0) {
        sleep(60);
        _exit(0);
    }
    if (tutti_store_set(store, "child", &child, sizeof child) == TUTTI_OK)
        die();
}

static void a_child_does_not_hold_the_line(void **state)
{
    pid_t child;
    size_t size;
    (void)state;
    run_apart(die_as_a_parent);
    assert_value("orphan", "1");
    assert_int_equal(tutti_store_get(server, "child", 0, &child, sizeof child, &size), TUTTI_OK);
    assert_int_equal(kill(child, SIGKILL), 0);
}

static void say(int fd, const char *text, size_t size)
{
    assert_int_equal(send(fd, text, size, MSG_NOSIGNAL), size);
}

/* A connection that the network breaks tells nothing of its process. */
static void a_broken_connection_leaves_nothing(void **state)
{
    static const char will[] = "\xcb"
                               "\x02\0\0\0\0\0\0\0/x"
                               "\x01\0\0\0\0\0\0\0"
                               "1";
    const struct linger at_once = {.l_onoff = 1, .l_linger = 0};
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    (void)state;
    address.sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1));
    for (int breaks = 1; breaks >= 0; breaks--) {
        char answer[5];
        const int fd = socket(AF_INET, SOCK_STREAM, 0);
        assert_int_equal(connect(fd, (struct sockaddr *)&address, sizeof address), 0);
        say(fd, "\x00\xce\xf7\x85\x3c\x0dnonc", 10);
        say(fd, will, sizeof will - 1);
        assert_int_equal(recv(fd, answer, sizeof answer, MSG_WAITALL), sizeof answer);
        if (breaks)
            setsockopt(fd, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
        close(fd);
        if (!breaks)
            assert_value("x", "1"); /* the server has served the break before */
        else
            assert_false(has("x"));
    }
}

/* Serves until a command comes, then ends without a word, or in order. */
static pid_t serve_apart(int *command, bool in_order)
{
    int commands[2], answers[2];
    assert_true(pipe(commands) == 0 && pipe(answers) == 0);
    const pid_t child = fork();
    if (child == 0) {
        tutti_store_t *store;
        char byte;
        prctl(PR_SET_PDEATHSIG, SIGKILL); /* of a test that fails */
        if (tutti_store_open("tcp://localhost:0?server=1", PLENTY_MS, &store) != TUTTI_OK)
            _exit(1);
        snprintf(url, sizeof url, "%s", tutti_store_url(store));
        if (write(answers[1], url, sizeof url) != sizeof url || read(commands[0], &byte, 1) != 1)
            _exit(1);
        if (!in_order)
            die();
        tutti_store_close(store);
        _exit(0);
    }
    assert_int_equal(read(answers[0], url, sizeof url), sizeof url);
    close(answers[0]);
    close(answers[1]);
    close(commands[0]);
    *command = commands[1];
    return child;
}

/* Returns what the client knows once its server has ended. */
static bool server_has_died(bool in_order)
{
    tutti_store_t *store;
    int command;
    const pid_t child = serve_apart(&command, in_order);
    assert_int_equal(tutti_store_open(url, PLENTY_MS, &store), TUTTI_OK);
    assert_false(store->serves || store_server_has_died(store));
    assert_int_equal(store_will(store, "k", "v", 1), TUTTI_OK);
    assert_false(store_server_has_died(store));
    assert_int_equal(write(command, "x", 1), 1);
    assert_int_equal(waitpid(child, NULL, 0), child);
    for (int i = 0; i < PLENTY_MS && !in_order && !store_server_has_died(store); i++)
        usleep(1000);
    const bool died = store_server_has_died(store);
    tutti_store_close(store);
    close(command);
    return died;
}

/* A server that is late with an answer, here to a will that is taken back, keeps the other wills
 * until the client ends. */
static void a_late_server_takes_no_will(void **state)
{
    tutti_store_t *store, *other, *view;
    size_t size;
    int command;
    char value;
    bool there = false;
    (void)state;
    const pid_t child = serve_apart(&command, false);
    assert_int_equal(tutti_store_open(url, PLENTY_MS, &store), TUTTI_OK);
    assert_int_equal(tutti_store_open(url, PLENTY_MS, &other), TUTTI_OK);
    assert_int_equal(tutti_store_prefix(store, "mine", &view), TUTTI_OK);
    assert_int_equal(store_will(view, "k", "v", 1), TUTTI_OK);
    assert_int_equal(store_will(store, "k", "v", 1), TUTTI_OK);
    assert_int_equal(kill(child, SIGSTOP), 0);
    struct tutti_store late = store_bounded(view, deadline_now(), NULL);
    store_wills_end(&late, "");
    assert_int_equal(kill(child, SIGCONT), 0);
    assert_int_equal(store_will(store, "l", "v", 1), TUTTI_OK);
    assert_int_equal(store_has(other, "k", &there), TUTTI_OK);
    assert_false(there || store_server_has_died(store));
    tutti_store_close(view);
    tutti_store_close(store);
    assert_int_equal(tutti_store_get(other, "l", PLENTY_MS, &value, 1, &size), TUTTI_OK);
    assert_int_equal(store_has(other, "k", &there), TUTTI_OK);
    assert_true(there);
    assert_int_equal(store_has(other, "mine/k", &there), TUTTI_OK);
    assert_false(there);
    tutti_store_close(other);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(command);
}

static void a_client_learns_that_its_server_was_killed(void **state)
{
    (void)state;
    assert_true(server_has_died(false));
}

static void a_closed_server_has_not_died(void **state)
{
    (void)state;
    assert_false(server_has_died(true));
}

/* A server of PyTorch's answers like this to all that it is asked here. */
static void other_stores_keep_no_wills(void **state)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    tutti_store_t *store;
    (void)state;
    const int listener = socket(AF_INET, SOCK_STREAM, 0);
    assert_int_equal(bind(listener, (struct sockaddr *)&address, size), 0);
    assert_int_equal(listen(listener, 8), 0);
    assert_int_equal(getsockname(listener, (struct sockaddr *)&address, &size), 0);
    const pid_t child = fork();
    while (child == 0) {
        char hello[10];
        const int fd = accept(listener, NULL, NULL);
        if (recv(fd, hello, sizeof hello, MSG_WAITALL) == sizeof hello)
            say(fd, hello + 6, 4);
    }
    snprintf(url, sizeof url, "tcp://127.0.0.1:%u", ntohs(address.sin_port));
    assert_int_equal(tutti_store_open(url, PLENTY_MS, &store), TUTTI_OK);
    assert_int_equal(store_will(store, "k", "v", 1), TUTTI_ERR_DECLINED);
    assert_false(store_server_has_died(store));
    tutti_store_close(store);
    assert_int_equal(kill(child, SIGKILL), 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    close(listener);
    assert_int_equal(tutti_store_open("memory:wills", 0, &store), TUTTI_OK);
    assert_int_equal(store_will(store, "k", "v", 1), TUTTI_ERR_DECLINED);
    store_wills_end(store, "");
    assert_false(store_server_has_died(store));
    tutti_store_close(store);
}

int main(void)
{
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest plain[] = {
        TEST(a_killed_process_leaves_its_wills),
        TEST(a_will_may_be_taken_back),
        TEST(a_child_does_not_hold_the_line),
        TEST(a_broken_connection_leaves_nothing),
        cmocka_unit_test(a_late_server_takes_no_will),
        cmocka_unit_test(other_stores_keep_no_wills),
        cmocka_unit_test(a_client_learns_that_its_server_was_killed),
        cmocka_unit_test(a_closed_server_has_not_died),
    };
    const struct CMUnitTest secret[] = {
        TEST(a_killed_process_leaves_its_wills),
        TEST(a_will_may_be_taken_back),
        cmocka_unit_test(a_client_learns_that_its_server_was_killed),
    };
#undef TEST
    unsetenv("TUTTI_STORE_SECRET");
    int failures = cmocka_run_group_tests(plain, NULL, NULL);
    setenv("TUTTI_STORE_SECRET", "of the test", 1);
    return failures + cmocka_run_group_tests(secret, NULL, NULL);
}
