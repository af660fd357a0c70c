/* SPDX-License-Identifier: MIT */
/*
 * Connections of strangers to the port of a tcp store: they do not use up the descriptors of the
 * process that serves the store, and its own clients are served.
 */
#include "tutti/tutti.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

enum { PLENTY_MS = 60000 };

static tutti_store_t *server;
static char url[64];

/* A child process and how to tell it to go on. */
struct child {
    pid_t pid;
    int tell;
};

/* Runs fn, which hears the parent at the descriptor, in a process whose limit of descriptors is the
 * highest that it may have. */
static struct child child_start(int (*fn)(int heard))
{
    struct rlimit limit;
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        close(ends[1]);
        getrlimit(RLIMIT_NOFILE, &limit);
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
        _exit(fn(ends[0]));
    }
    close(ends[0]);
    return (struct child){pid, ends[1]};
}

static int child_end(struct child *child)
{
    int how = -1;
    close(child->tell);
    waitpid(child->pid, &how, 0);
    return how;
}

/* A thousand connections that say nothing; each that the server closes is dialed again, until the
 * parent closes its end. */
static int crowd(int heard)
{
    enum { MANY = 1000 };
    static int fds[MANY];
    struct pollfd parent = {.fd = heard, .events = POLLIN};
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1))};
    memset(fds, -1, sizeof fds);
    do
        for (int i = 0; i < MANY; i++) {
            char byte;
            if (fds[i] >= 0 && recv(fds[i], &byte, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN)
                continue;
            close(fds[i]);
            fds[i] = socket(AF_INET, SOCK_STREAM, 0);
            if (fds[i] < 0 || connect(fds[i], (struct sockaddr *)&address, sizeof address) != 0)
                return 1;
        }
    while (poll(&parent, 1, 5) == 0);
    return 0;
}

static enum tutti_status join_and_leave(tutti_store_t *store, int rank)
{
    const struct tutti_comm_options options = {.struct_size = sizeof options,
                                               .timeout_ms = PLENTY_MS};
    tutti_comm_t *comm;
    enum tutti_status status = tutti_comm_create(store, rank, 2, &options, &comm);
    if (status == TUTTI_OK)
        status = tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT);
    tutti_comm_destroy(comm);
    return status;
}

static int second_rank(int heard)
{
    char byte;
    if (read(heard, &byte, 1) != 1)
        return 1;
    tutti_store_t *store;
    enum tutti_status status = tutti_store_open(url, PLENTY_MS, &store);
    if (status == TUTTI_OK)
        status = join_and_leave(store, 1);
    if (status != TUTTI_OK)
        print_error("rank 1: %s\n", tutti_last_error());
    tutti_store_close(store);
    return status != TUTTI_OK;
}

/* Of a process that may have `most` descriptors and uses so many of them. */
static void strangers_leave_room_with(int most, int used)
{
    struct rlimit before, limit;
    int fds[1024], count = 0;
    assert_int_equal(tutti_store_open("tcp://localhost:0?server=1", PLENTY_MS, &server), TUTTI_OK);
    snprintf(url, sizeof url, "%s", tutti_store_url(server));
    struct child rank = child_start(second_rank), strangers = child_start(crowd);
    getrlimit(RLIMIT_NOFILE, &before);
    limit = before;
    limit.rlim_cur = (rlim_t)most;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    while (count == 0 || fds[count - 1] < used - 1)
        assert_true((fds[count++] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0);
    for (int i = 0; i < 2000; i++)
        assert_int_equal(tutti_store_add(server, "count", 1, NULL), TUTTI_OK);
    assert_int_equal(write(rank.tell, "", 1), 1);
    enum tutti_status status = join_and_leave(server, 0);
    if (status != TUTTI_OK)
        print_error("rank 0: %s\n", tutti_last_error());
    int rank_ended = child_end(&rank), strangers_ended = child_end(&strangers);
    while (count > 0)
        close(fds[--count]);
    setrlimit(RLIMIT_NOFILE, &before);
    tutti_store_close(server);
    assert_int_equal(status, TUTTI_OK);
    assert_int_equal(rank_ended, 0);
    assert_int_equal(strangers_ended, 0);
}

/* A meeting finds the descriptors that it needs, and good clients are served. */
static void a_thousand_strangers_leave_room_for_a_meeting(void **state)
{
    (void)state;
    strangers_leave_room_with(256, 0);
    strangers_leave_room_with(1024, 760);
    setenv("TUTTI_STORE_SECRET", "a shared secret", 1);
    strangers_leave_room_with(256, 0);
    unsetenv("TUTTI_STORE_SECRET");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_thousand_strangers_leave_room_for_a_meeting),
    };
    unsetenv("TUTTI_STORE_SECRET");
    return cmocka_run_group_tests(tests, NULL, NULL);
}
