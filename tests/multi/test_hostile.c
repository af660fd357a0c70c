/* SPDX-License-Identifier: MIT */
/*
 * Hostile neighbours: processes of another user, some of them in namespaces of their own, go for
 * the ranks' processes, their private directory, the store's file, and the port of a store with a
 * secret, while communicators come and go there. They get nothing, and the ranks do not notice.
 * (Who knows the socket and the nonce: tests/unit/test_channel. Parsers: tests/fuzz.)
 *
 * Skipped unless it runs as root, who alone can become somebody else.
 */
#include "ranks.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { SIZE = 3, NOBODY = 65534, LIVES = 12, OPERATIONS = 60, FLOOD = 500 };
enum { BUSY, STOP, ATTACKED }; /* flags */

static char directory[64];    /* TUTTI_DIR */
static char file[72];         /* of a store, where everybody may make files */
static char socket_path[128]; /* somebody listens there, as a rank does */

/* ---- the ranks ------------------------------------------------------------------------------- */

static int live(struct ranks *ranks, int rank, tutti_store_t *store)
{
    bool intruded = true;
    const char *keys[] = {"intruder"};
    ranks_raise(ranks, BUSY);
    for (int life = 0; life < LIVES; life++) {
        tutti_comm_t *comm;
        RANKS_CHECK(ranks_join(ranks, rank, store, NULL, &comm) == TUTTI_OK);
        for (int i = 0; i < OPERATIONS; i++) {
            float x = (float)(rank + i), sum;
            RANKS_CHECK(tutti_all_reduce(&x, &sum, 1, TUTTI_FLOAT32, TUTTI_SUM, comm,
                                         TUTTI_STREAM_DEFAULT) == TUTTI_OK);
            RANKS_CHECK(sum == (float)(SIZE * i + SIZE * (SIZE - 1) / 2));
        }
        /* They are at it all the time. */
        RANKS_CHECK(ranks_await(ranks, ATTACKED, (uint32_t)life + 1));
        RANKS_CHECK(tutti_barrier(comm, NULL, 0, TUTTI_STREAM_DEFAULT) == TUTTI_OK);
        tutti_comm_destroy(comm);
    }
    RANKS_CHECK(tutti_store_check(store, keys, 1, &intruded) == TUTTI_OK && !intruded);
    return 0;
}

/* ---- what a neighbour tries ------------------------------------------------------------------ */

static int breaches; /* the attacking process's own */

static void expect(bool safe, const char *what)
{
    if (safe)
        return;
    breaches++;
    fprintf(stderr, "hostile: %s (%s)\n", what, strerror(errno));
}

static void expect_closed(const char *path)
{
    expect(open(path, O_RDONLY) < 0 && open(path, O_WRONLY) < 0 && open(path, O_RDWR) < 0, path);
}

/* Reads, writes, stops, takes descriptors of. */
static void attack_process(pid_t pid)
{
    char path[64], byte = 0;
    struct iovec own = {&byte, 1}, theirs = {&breaches, 1}; /* an address that is there */
    expect(process_vm_readv(pid, &own, 1, &theirs, 1, 0) < 0, "read a rank's memory");
    expect(process_vm_writev(pid, &own, 1, &theirs, 1, 0) < 0, "wrote a rank's memory");
    expect(kill(pid, SIGSTOP) < 0, "stopped a rank");
    expect(ptrace(PTRACE_SEIZE, pid, 0, 0) < 0, "traces a rank");
    snprintf(path, sizeof path, "/proc/%d/mem", pid);
    expect_closed(path);
    snprintf(path, sizeof path, "/proc/%d/fd", pid);
    expect_closed(path);
    snprintf(path, sizeof path, "/proc/%d/map_files", pid);
    expect_closed(path);
    int pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    for (int fd = 0; fd < 32 && pidfd >= 0; fd++)
        expect(syscall(SYS_pidfd_getfd, pidfd, fd, 0) < 0, "took a rank's descriptor");
    if (pidfd >= 0)
        close(pidfd);
}

static void attack_files(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char path[160];
    expect(!opendir(directory), "lists the directory");
    snprintf(path, sizeof path, "%s/so-0123456789abcdef", directory);
    expect(open(path, O_CREAT | O_RDWR, 0600) < 0, "makes a file in the directory");
    expect(rename(directory, "/tmp/tutti-hostile-moved") < 0, "moves the directory");
    expect(rmdir(directory) < 0 && chmod(directory, 0777) < 0, "opens the directory");
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    memcpy(address.sun_path, socket_path, strlen(socket_path) + 1);
    expect(connect(fd, (struct sockaddr *)&address, sizeof address) < 0, "connects to a rank");
    close(fd);
    expect_closed(file);
    expect(truncate(file, 0) < 0 && unlink(file) < 0 && chmod(file, 0666) < 0,
           "changes the store's file");
}

/* ---- the store's port ------------------------------------------------------------------------ */

static int dial(const char *url)
{
    struct sockaddr_in address = {.sin_family = AF_INET,
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK),
                                  .sin_port = htons((uint16_t)atoi(strrchr(url, ':') + 1))};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct timeval limit = {.tv_sec = 5};
    setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    if (connect(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

/* Says that much, and is told nothing but what a stranger is told. */
static void attack_port_with(const char *url, const char *bytes, size_t size, bool answered)
{
    char answer[256];
    int fd = dial(url);
    if (fd < 0)
        return;
    (void)!send(fd, bytes, size, MSG_NOSIGNAL);
    ssize_t got = recv(fd, answer, sizeof answer, 0);
    expect(got <= 0 || answered, "was answered by the store");
    if (got > 0)
        expect(recv(fd, answer, sizeof answer, 0) <= 0, "was let into the store");
    close(fd);
}

static void attack_port(const char *url)
{
#define HELLO "\x00\xce\xf7\x85\x3c"
#define L(n)  n "\0\0\0\0\0\0\0"
#define ROW(t, a)                                                                                  \
    {                                                                                              \
        t, sizeof(t) - 1, a                                                                        \
    }
    static const struct {
        const char *bytes;
        size_t size;
        bool answered;
    } rows[] = {
        ROW("GET / HTTP/1.1\r\n\r\n", false),
        ROW(HELLO "\x0d"
                  "ping",
            true), /* as PyTorch's clients: the complement, and the end */
        ROW(HELLO "\x01" L("\x09") "/intruder" L("\x01") "x", false), /* set */
        ROW(HELLO "\x07", false),                                     /* how many keys? */
        ROW(HELLO "\x11", false),                                     /* which ones? */
        ROW(HELLO "\x01\xff\xff\xff\xff\xff\xff\xff\x7f", false),     /* huge lengths */
        ROW(HELLO "\x05\xff\xff\xff\xff\xff\xff\xff\xff", false),
        ROW(HELLO "\xc9"
                  "0123456789abcdef0123456789abcdef",
            false), /* a proof of nothing */
    };
#undef ROW
#undef L
#undef HELLO
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        attack_port_with(url, rows[i].bytes, rows[i].size, rows[i].answered);
}

/* Silent connections, and those that say a byte now and then: as many as a process may have. */
static void flood_port(const char *url, int *fds)
{
    for (int i = 0; i < FLOOD; i++) {
        if (fds[i] >= 0 && i % 2 == 0 && send(fds[i], "\0", 1, MSG_NOSIGNAL) == 1)
            continue;
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = dial(url);
    }
}

/* ---- a neighbour ----------------------------------------------------------------------------- */

/* Nobody, without groups and privileges; if so wished root of namespaces of his own. */
static bool become_nobody(bool apart)
{
    if (setgroups(0, NULL) != 0 || setresgid(NOBODY, NOBODY, NOBODY) != 0 ||
        setresuid(NOBODY, NOBODY, NOBODY) != 0)
        return false;
    return !apart || unshare(CLONE_NEWUSER | CLONE_NEWNET | CLONE_NEWNS | CLONE_NEWPID |
                             CLONE_NEWIPC | CLONE_NEWUTS) == 0;
}

static bool is_stopped(struct ranks *ranks)
{
    return __atomic_load_n(&ranks->flags[STOP], __ATOMIC_ACQUIRE);
}

static int attack(struct ranks *ranks, bool apart)
{
    const bool port = strncmp(ranks->url, "tcp:", 4) == 0;
    int fds[FLOOD];
    memset(fds, -1, sizeof fds);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (!become_nobody(apart))
        return apart ? 77 : 1;
    while (!ranks_await(ranks, BUSY, SIZE))
        ;
    while (!is_stopped(ranks)) {
        for (int r = 0; r < SIZE; r++)
            if (ranks->pids[r] > 0)
                attack_process(ranks->pids[r]);
        attack_files();
        if (port) {
            attack_port(ranks->url);
            flood_port(ranks->url, fds);
        }
        ranks_raise(ranks, ATTACKED);
        usleep(2000);
    }
    return breaches ? 1 : 0;
}

static int attack_end(pid_t child, const char *who)
{
    int how = 0;
    while (waitpid(child, &how, 0) < 0 && errno == EINTR)
        ;
    if (WIFEXITED(how) && WEXITSTATUS(how) == 77)
        printf("namespaces are not permitted here: %s stayed away\n", who);
    else if (how != 0)
        return printf("failed: %s\n", who) > 0;
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static int run(const char *title, const char *url)
{
    struct ranks *ranks = ranks_create(SIZE, SIZE, 0);
    pid_t children[2];
    if (url)
        snprintf(ranks->url, sizeof ranks->url, "%s", url);
    fflush(NULL);
    for (int i = 0; i < 2; i++) {
        children[i] = fork();
        if (children[i] == 0)
            _exit(attack(ranks, i == 1));
    }
    int failures = ranks_run(ranks, live);
    ranks_raise(ranks, STOP);
    failures += attack_end(children[0], "nobody");
    failures += attack_end(children[1], "nobody, in namespaces of his own");
    printf("%s: attacked %u times%s\n", title, ranks->flags[ATTACKED], failures ? ", FAILED" : "");
    ranks_destroy(ranks);
    return failures;
}

/* A socket in the directory, as a rank has one while it meets others. */
static int listen_there(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(socket_path, sizeof address.sun_path, "%s/so-hostile", directory);
    memcpy(address.sun_path, socket_path, strlen(socket_path) + 1);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) != 0 || listen(fd, 8) != 0)
        return -1;
    return fd;
}

int main(void)
{
    char url[80];
    int skip = ranks_skip_cuda("what is attacked has no device");
    if (skip)
        return skip;
    if (geteuid() != 0) {
        puts("skipped: needs root, to become another user");
        return 77;
    }
    strcpy(directory, "/tmp/tutti-hostile-XXXXXX");
    if (!mkdtemp(directory) || setenv("TUTTI_DIR", directory, 1) != 0)
        return 1;
    snprintf(file, sizeof file, "%s-store", directory);
    snprintf(url, sizeof url, "file:%s", file);
    int fd = listen_there();
    if (fd < 0)
        return 1;
    int failures = run("file", url);
    setenv("TUTTI_STORE_SECRET", "known to the ranks alone", 1);
    failures += run("tcp with a secret", NULL);
    close(fd);
    unlink(file);
    unlink(socket_path);
    if (rmdir(directory) != 0)
        failures += printf("left behind in %s\n", directory) > 0;
    return failures ? 1 : 0;
}
