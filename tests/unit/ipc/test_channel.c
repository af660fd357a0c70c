/* SPDX-License-Identifier: MIT */
/*
 * Descriptors between ranks, and how a rank notices a peer's death. Each case runs among threads
 * and among processes where possible.
 */
#include "channel_ranks.h"

#include "base/error.h"
#include "ipc/directory.h"

#include <fcntl.h>
#include <inttypes.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>

/* ---- descriptors ---------------------------------------------------------------------------- */

static int pass_everything(struct group *group, int rank)
{
    struct channel *channel;
    GROUP_CHECK(open_channel(group, rank, &channel) == TUTTI_OK);
    for (int round = 0; round < 3; round++)
        GROUP_CHECK(notes_pass(channel, rank, group->size));
    /* Until all are done a peer's leaving would be taken for its death. */
    group_raise(group, 0);
    GROUP_CHECK(group_await(group, 0, group->size));
    channel_close(channel);
    return 0;
}

static void everything_arrives(void **state)
{
    (void)state;
    for (int size = 1; size <= 5; size++)
        run_both(size, pass_everything);
}

static int meet(struct group *group, int rank)
{
    struct channel *channel;
    GROUP_CHECK(open_channel(group, rank, &channel) == TUTTI_OK);
    group_raise(group, 0);
    GROUP_CHECK(group_await(group, 0, group->size));
    channel_close(channel);
    return 0;
}

static void sixty_four_processes_meet(void **state)
{
    (void)state;
    struct group *group = group_create(64);
    assert_int_equal(group_run_processes(group, meet), 0);
    group_destroy(group);
    assert_int_equal(count_entries(directory), 2);
}

/* Ranks 0 and 2, and 1 and 3, know each other. */
static int meet_by_halves(struct group *group, int rank)
{
    struct channel_config config = config_of(group, rank);
    config.peers = rank_set_of(rank ^ 2);
    struct channel *channel;
    GROUP_CHECK(open_with(group, &config, &channel) == TUTTI_OK);
    int note = make_note(rank), fd;
    GROUP_CHECK(channel_send_fd(channel, rank ^ 2, note, GROUP_TIMEOUT_MS) == TUTTI_OK);
    GROUP_CHECK(channel_recv_fd(channel, rank ^ 2, &fd, GROUP_TIMEOUT_MS) == TUTTI_OK);
    GROUP_CHECK(read_note(fd) == (rank ^ 2));
    GROUP_CHECK(channel_send_fd(channel, rank ^ 1, note, 0) == TUTTI_ERR_INVALID);
    GROUP_CHECK(channel_send_fd(channel, rank, note, 0) == TUTTI_ERR_INVALID);
    GROUP_CHECK(channel_send_fd(channel, -1, note, 0) == TUTTI_ERR_INVALID);
    GROUP_CHECK(channel_recv_fd(channel, 4, &fd, 0) == TUTTI_ERR_INVALID && fd == -1);
    GROUP_CHECK(channel_peer_alive(channel, rank ^ 1) && channel_peer_alive(channel, 99));
    close(note);
    group_raise(group, 0);
    GROUP_CHECK(group_await(group, 0, 4));
    channel_close(channel);
    return 0;
}

static void only_peers_are_connected(void **state)
{
    (void)state;
    run_both(4, meet_by_halves);
}

/* A packet without a descriptor ends the peer's wait. */
static int send_nothing(struct group *group, int rank)
{
    struct channel *channel;
    int fd, note = make_note(rank);
    GROUP_CHECK(open_channel(group, rank, &channel) == TUTTI_OK);
    if (rank == 0) {
        GROUP_CHECK(channel_send_fd(channel, 1, -1, GROUP_TIMEOUT_MS) == TUTTI_OK);
        GROUP_CHECK(channel_send_fd(channel, 1, note, GROUP_TIMEOUT_MS) == TUTTI_OK);
    } else {
        GROUP_CHECK(channel_recv_fd(channel, 0, &fd, GROUP_TIMEOUT_MS) == TUTTI_ERR_SYSTEM);
        GROUP_CHECK(fd == -1 && strstr(tutti_last_error(), "rank 0 sent no descriptor"));
        GROUP_CHECK(channel_recv_fd(channel, 0, &fd, GROUP_TIMEOUT_MS) == TUTTI_OK);
        GROUP_CHECK(read_note(fd) == 0);
    }
    close(note);
    group_raise(group, 0);
    GROUP_CHECK(group_await(group, 0, 2));
    channel_close(channel);
    return 0;
}

static void a_missing_descriptor_is_an_error(void **state)
{
    (void)state;
    run_both(2, send_nothing);
}

/* ---- lateness and death --------------------------------------------------------------------- */

static int late(struct group *group, int rank)
{
    struct channel *channel;
    GROUP_CHECK(open_channel(group, rank, &channel) == TUTTI_OK);
    if (rank == 0) {
        int fd;
        GROUP_CHECK(channel_recv_fd(channel, 2, &fd, 30) == TUTTI_ERR_TIMEOUT && fd == -1);
        GROUP_CHECK(strstr(tutti_last_error(), "rank 2 did not send"));
        GROUP_CHECK(channel_recv_fd(channel, 1, &fd, 0) == TUTTI_ERR_TIMEOUT);
        GROUP_CHECK(channel_peer_alive(channel, 1) && channel_peer_alive(channel, 2));
    }
    group_raise(group, 0);
    GROUP_CHECK(group_await(group, 0, 3));
    channel_close(channel);
    return 0;
}

static void lateness_is_named(void **state)
{
    (void)state;
    run_both(3, late);
}

/* Rank 1 announces a socket but does not connect on. */
static int absent(struct group *group, int rank)
{
    struct channel_config config = config_of(group, rank);
    struct channel *channel;
    if (rank == 1) {
        config.timeout_ms = 1; /* gives up at once: rank 0's nonce is another */
        config.nonce[15] ^= 1;
        GROUP_CHECK(open_with(group, &config, &channel) != TUTTI_OK && !channel);
        return 0;
    }
    config.timeout_ms = 300;
    GROUP_CHECK(open_with(group, &config, &channel) == TUTTI_ERR_TIMEOUT && !channel);
    GROUP_CHECK(strstr(tutti_last_error(), "rank 1 did not connect"));
    return 0;
}

static void wrong_nonce_does_not_connect(void **state)
{
    (void)state;
    int before = count_entries("/proc/self/fd");
    struct group *group = group_create(2);
    threads = true;
    assert_int_equal(group_run_threads(group, absent), 0);
    threads = false;
    group_destroy(group);
    assert_int_equal(count_entries("/proc/self/fd"), before);
    assert_int_equal(count_entries(directory), 2);
}

/* Rank 1 is killed by rank 0 while a child of its own still holds its sockets. */
static int killed(struct group *group, int rank)
{
    struct channel *channel;
    GROUP_CHECK(open_channel(group, rank, &channel) == TUTTI_OK);
    if (rank == 1) {
        /* A clone without the handlers of fork(): it inherits and keeps the sockets. */
        pid_t child = (pid_t)syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0);
        if (child == 0) {
            group_raise(group, 2);
            group_await(group, 1, group->size - 1);
            _exit(0);
        }
        int note = make_note(1);
        GROUP_CHECK(channel_send_fd(channel, 0, note, GROUP_TIMEOUT_MS) == TUTTI_OK);
        __atomic_store_n(&group->flags[3], getpid(), __ATOMIC_RELEASE);
        group_raise(group, 0);
        pause();
        return 1;
    }
    GROUP_CHECK(channel_peer_alive(channel, 1));
    group_raise(group, 0); /* all have opened */
    GROUP_CHECK(group_await(group, 0, group->size) && group_await(group, 2, 1));
    if (rank == 0)
        kill(__atomic_load_n(&group->flags[3], __ATOMIC_ACQUIRE), SIGKILL);
    int fd;
    if (rank != 0) {
        GROUP_CHECK(channel_recv_fd(channel, 1, &fd, GROUP_TIMEOUT_MS) == TUTTI_ERR_PEER_DEAD);
        GROUP_CHECK(strstr(tutti_last_error(), "rank 1 has ended"));
    }
    GROUP_CHECK(dies_within(channel, 1, GROUP_TIMEOUT_MS));
    if (rank == 0) { /* what was sent before the death still arrives */
        GROUP_CHECK(channel_recv_fd(channel, 1, &fd, GROUP_TIMEOUT_MS) == TUTTI_OK);
        GROUP_CHECK(read_note(fd) == 1);
        GROUP_CHECK(channel_recv_fd(channel, 1, &fd, GROUP_TIMEOUT_MS) == TUTTI_ERR_PEER_DEAD);
    }
    group_raise(group, 1);
    GROUP_CHECK(group_await(group, 1, group->size - 1));
    channel_close(channel);
    return 0;
}

static void death_is_noticed_behind_a_child(void **state)
{
    (void)state;
    struct group *group = group_create(3);
    assert_int_equal(group_run_processes(group, killed), 0);
    group_destroy(group);
}

/* Rank 2 of 3, which goes no further, as the process `pid`. */
static bool announce(struct group *group, pid_t pid)
{
    struct channel_address address, all[3];
    struct channel *channel;
    bool announced = listen_as(2, &channel, &address) == TUTTI_OK;
    if (pid != address.process.pid)
        address.process.start = 0; /* not known */
    address.process.pid = pid;
    announced &= exchange(group, 2, &address, all) == TUTTI_OK;
    channel_close(channel);
    return announced;
}

static int killed_while_opening(struct group *group, int rank)
{
    struct channel *channel;
    if (rank == 2) {
        GROUP_CHECK(announce(group, getpid()));
        usleep(20000);
        raise(SIGKILL);
    }
    GROUP_CHECK(open_channel(group, rank, &channel) == TUTTI_ERR_PEER_DEAD && !channel);
    return 0;
}

/* Of rank 2's process nothing is left by the time that the others have its number. */
static int ended_before_it_is_watched(struct group *group, int rank)
{
    struct channel *channel;
    if (rank == 2) {
        pid_t child = fork();
        if (child == 0)
            _exit(0);
        GROUP_CHECK(waitpid(child, NULL, 0) == child && announce(group, child));
        return 0;
    }
    GROUP_CHECK(open_channel(group, rank, &channel) == TUTTI_ERR_PEER_DEAD && !channel);
    return 0;
}

/* Ends the process once it has accepted somebody, whose socket has no name. */
static void *kill_when_connected(void *unused)
{
    enum { DESCRIPTORS = 64 };
    struct sockaddr_un peer;
    for (int fd = 3;; fd = fd + 1 < DESCRIPTORS ? fd + 1 : 3) {
        socklen_t length = sizeof peer;
        if (getpeername(fd, (struct sockaddr *)&peer, &length) == 0 &&
            length == sizeof(sa_family_t))
            raise(SIGKILL);
        if (fd == 3)
            usleep(1000);
    }
    return unused;
}

/* Rank 0, to which rank 1 is connected; rank 2 is late. */
static int killed_when_connected(struct group *group, int rank)
{
    struct channel *channel;
    pthread_t killer;
    if (rank == 2) {
        GROUP_CHECK(announce(group, getpid()));
        GROUP_CHECK(group_await(group, 0, 1));
        return 0;
    }
    if (rank == 0)
        GROUP_CHECK(pthread_create(&killer, NULL, kill_when_connected, NULL) == 0);
    struct channel_config config = config_of(group, rank);
    config.timeout_ms = GROUP_TIMEOUT_MS / 2;
    enum tutti_status status = open_with(group, &config, &channel);
    group_raise(group, 0);
    GROUP_CHECK(status == TUTTI_ERR_PEER_DEAD && !channel);
    GROUP_CHECK(strstr(tutti_last_error(), "rank 0 ended"));
    return 0;
}

static void run_killed(group_fn *fn)
{
    struct group *group = group_create(3);
    assert_int_equal(group_run_processes(group, fn), 0);
    group_destroy(group);
}

static void death_while_opening_is_noticed(void **state)
{
    (void)state;
    run_killed(killed_while_opening);
    run_killed(ended_before_it_is_watched);
    assert_int_equal(count_entries(directory), 2);
}

static void death_of_who_is_connected_is_noticed(void **state)
{
    (void)state;
    run_killed(killed_when_connected);
    assert_int_equal(directory_open(directory, true), TUTTI_OK); /* sweeps what the dead one left */
    assert_int_equal(count_entries(directory), 2);
}

static int closed_by_peer(struct group *group, int rank)
{
    struct channel *channel;
    GROUP_CHECK(open_channel(group, rank, &channel) == TUTTI_OK);
    if (rank == 0) {
        int fd, note = make_note(0);
        GROUP_CHECK(dies_within(channel, 1, GROUP_TIMEOUT_MS));
        GROUP_CHECK(channel_recv_fd(channel, 1, &fd, GROUP_TIMEOUT_MS) == TUTTI_ERR_PEER_DEAD);
        GROUP_CHECK(channel_send_fd(channel, 1, note, GROUP_TIMEOUT_MS) == TUTTI_ERR_PEER_DEAD);
        close(note);
    }
    channel_close(channel);
    return 0;
}

static void closing_is_seen_as_death(void **state)
{
    (void)state;
    run_both(2, closed_by_peer);
}

/* ---- intruders ------------------------------------------------------------------------------ */

/* A packet as in link.h. */
struct hello {
    uint32_t magic, version, kind, from, to;
    char nonce[CHANNEL_NONCE_BYTES];
};

/* Connects to every socket in the directory, once, and says `hello` (or nothing). */
static int intrude(int *sockets, int capacity, const struct hello *hello, size_t bytes)
{
    int count = 0;
    DIR *folder = opendir(directory);
    const struct dirent *entry;
    while ((entry = readdir(folder)) && count < capacity) {
        struct sockaddr_un address = {.sun_family = AF_UNIX};
        if (strncmp(entry->d_name, "so-", 3) != 0)
            continue;
        snprintf(address.sun_path, sizeof address.sun_path, "%s/%.40s", directory, entry->d_name);
        int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        if (connect(fd, (struct sockaddr *)&address, sizeof address) != 0) {
            close(fd);
            continue;
        }
        if (bytes && send(fd, hello, bytes, MSG_NOSIGNAL) != (ssize_t)bytes)
            abort();
        sockets[count++] = fd;
    }
    closedir(folder);
    return count;
}

/* Rank 0 opens; rank 1 is delayed until the intruders have had their turn. */
static int meet_after_intruders(struct group *group, int rank)
{
    enum { ROUNDS = 100 };
    static const struct hello GOOD = {0x74757474, 2, 1, 1, 0, "0123456789abcde"};
    int sockets[2 * ROUNDS], count = 0;
    if (rank == 1) {
        while ((count = intrude(sockets, 1, NULL, 0)) == 0)
            usleep(1000);
        struct hello hellos[8];
        for (int i = 0; i < 8; i++) {
            hellos[i] = GOOD;
            memcpy(hellos[i].nonce, "0123456789abcdef", CHANNEL_NONCE_BYTES);
        }
        hellos[0].nonce[0] ^= 1;
        hellos[1].nonce[15] ^= 1;
        hellos[2].magic = 0;
        hellos[3].version = 1;
        hellos[4].from = 0;          /* the listener itself */
        hellos[5].from = 0x80000001; /* no rank at all */
        hellos[6].to = 1;            /* for somebody else */
        hellos[7].from = 63;         /* beyond the group */
        for (int round = 0; round < ROUNDS; round++) {
            count += intrude(sockets + count, 1, NULL, 0); /* silent */
            if (round % 10)
                continue;
            for (int i = 0; i < 8; i++)
                count += intrude(sockets + count, 1, &hellos[i], sizeof *hellos);
            count += intrude(sockets + count, 1, &hellos[0], 7);
        }
        GROUP_CHECK(count == 1 + ROUNDS + 90);
    }
    struct channel *channel;
    GROUP_CHECK(open_channel(group, rank, &channel) == TUTTI_OK);
    GROUP_CHECK(notes_pass(channel, rank, 2));
    for (int i = 0; i < count; i++)
        close(sockets[i]);
    group_raise(group, 0);
    GROUP_CHECK(group_await(group, 0, 2));
    channel_close(channel);
    return 0;
}

/* Another user who has got hold of the socket, and of the nonce: the kernel's word on who he is
 * does not fit. Returns the child's part: 0 if he was dropped. */
static int foreigner(struct group *group)
{
    struct hello hello = {0x74757474, 2, 1, 1, 0, ""};
    char byte;
    int fd;
    memcpy(hello.nonce, "0123456789abcdef", sizeof hello.nonce);
    if (setresgid(65534, 65534, 65534) != 0 || setresuid(65534, 65534, 65534) != 0)
        return 1;
    if (intrude(&fd, 1, &hello, sizeof hello) != 1)
        return 2;
    group_raise(group, 1);
    return recv(fd, &byte, 1, 0) <= 0 ? 0 : 3;
}

static void permit(mode_t folder_mode, mode_t socket_mode)
{
    DIR *folder = opendir(directory);
    const struct dirent *entry;
    while ((entry = readdir(folder)))
        if (strncmp(entry->d_name, "so-", 3) == 0)
            assert_int_equal(fchmodat(dirfd(folder), entry->d_name, socket_mode, 0), 0);
    fchmod(dirfd(folder), folder_mode);
    closedir(folder);
}

static int meet_after_foreigner(struct group *group, int rank)
{
    struct channel *channel;
    int how = 0, socket;
    pid_t child = 0;
    if (rank == 1) {
        while (intrude(&socket, 1, NULL, 0) == 0)
            usleep(1000);
        close(socket);
        permit(0755, 0777);
        child = fork();
        if (child == 0)
            _exit(foreigner(group));
        GROUP_CHECK(group_await(group, 1, 1));
        permit(0700, 0755);
    }
    GROUP_CHECK(open_channel(group, rank, &channel) == TUTTI_OK);
    if (rank == 1)
        GROUP_CHECK(waitpid(child, &how, 0) == child && how == 0);
    group_raise(group, 0);
    GROUP_CHECK(group_await(group, 0, 2));
    channel_close(channel);
    return 0;
}

static void another_user_does_not_get_in(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    struct group *group = group_create(2);
    assert_int_equal(group_run_processes(group, meet_after_foreigner), 0);
    group_destroy(group);
}

static void intruders_do_not_matter(void **state)
{
    (void)state;
    run_both(2, meet_after_intruders);
}

/* ---- fork ----------------------------------------------------------------------------------- */

static int fork_while_open(struct group *group, int rank)
{
    struct channel *channel;
    int before = count_entries("/proc/self/fd");
    GROUP_CHECK(open_channel(group, rank, &channel) == TUTTI_OK);
    GROUP_CHECK(count_entries("/proc/self/fd") > before);
    pid_t child = fork();
    if (child == 0) {
        int fd, result = 0;
        if (count_entries("/proc/self/fd") != before)
            result = 1;
        if (channel_recv_fd(channel, 1 - rank, &fd, GROUP_TIMEOUT_MS) != TUTTI_ERR_INVALID)
            result = 2;
        if (!strstr(tutti_last_error(), "parent"))
            result = 3;
        if (channel_send_fd(channel, 1 - rank, 0, GROUP_TIMEOUT_MS) != TUTTI_ERR_INVALID)
            result = 4;
        if (channel_peer_alive(channel, 1 - rank))
            result = 5;
        channel_close(channel);
        _exit(result);
    }
    int how;
    GROUP_CHECK(waitpid(child, &how, 0) == child && WIFEXITED(how));
    GROUP_CHECK(WEXITSTATUS(how) == 0);
    group_raise(group, 0);
    GROUP_CHECK(group_await(group, 0, 2));
    GROUP_CHECK(channel_peer_alive(channel, 1 - rank)); /* the child's closing harmed nobody */
    group_raise(group, 1);
    GROUP_CHECK(group_await(group, 1, 2));
    channel_close(channel);
    return 0;
}

static void child_has_no_descriptors(void **state)
{
    (void)state;
    struct group *group = group_create(2);
    assert_int_equal(group_run_processes(group, fork_while_open), 0);
    group_destroy(group);
}

/* The library's malloc() comes here: the linker's --wrap. */
static _Thread_local bool no_memory;
void *__real_malloc(size_t size);
void *__wrap_malloc(size_t size);
void *__wrap_malloc(size_t size)
{
    errno = ENOMEM;
    return no_memory ? NULL : __real_malloc(size);
}

/* No memory, or no directory: the address says so, and nothing is left. */
static void a_rank_that_cannot_listen_says_so(void **state)
{
    struct channel *channel;
    struct channel_address address;
    (void)state;
    int before = count_entries("/proc/self/fd");
    no_memory = true;
    enum tutti_status status = channel_listen(directory, &channel, &address);
    no_memory = false;
    assert_int_equal(status, TUTTI_ERR_NO_MEMORY);
    assert_int_equal(address.status, TUTTI_ERR_NO_MEMORY);
    assert_null(channel);
    assert_non_null(strstr(tutti_last_error(), "cannot allocate a channel"));
    assert_int_equal(channel_listen("/proc/self", &channel, &address), TUTTI_ERR_SYSTEM);
    assert_int_equal(address.status, TUTTI_ERR_SYSTEM);
    assert_non_null(strstr(tutti_last_error(), "/proc/self"));
    assert_null(channel);
    assert_int_equal(count_entries("/proc/self/fd"), before);
}

/* One rank has a failure of its own. */
static int one_has_failed(struct group *group, int rank)
{
    struct channel_config config = config_of(group, rank);
    struct channel *channel;
    if (rank == 1)
        config.local_status = error_set(TUTTI_ERR_NO_MEMORY, "no memory");
    enum tutti_status status = open_with(group, &config, &channel);
    GROUP_CHECK(status == (rank == 1 ? TUTTI_ERR_NO_MEMORY : TUTTI_ERR_PEER_DEAD) && !channel);
    GROUP_CHECK(rank != 1 || strcmp(tutti_last_error(), "no memory") == 0);
    return 0;
}

static void nobody_waits_for_who_has_failed(void **state)
{
    (void)state;
    run_both(3, one_has_failed);
}

/* The last rank listens with its last descriptor. */
static int one_cannot_connect(struct group *group, int rank)
{
    struct channel *channel;
    const bool last = rank == group->size - 1;
    if (last) {
        struct rlimit limit;
        int next = dup(0);
        GROUP_CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
        limit.rlim_cur = (rlim_t)next + 1;
        GROUP_CHECK(close(next) == 0 && setrlimit(RLIMIT_NOFILE, &limit) == 0);
    }
    int64_t began = deadline_now();
    enum tutti_status status = open_channel(group, rank, &channel);
    GROUP_CHECK(status == (last ? TUTTI_ERR_SYSTEM : TUTTI_ERR_PEER_DEAD) && !channel);
    GROUP_CHECK(deadline_now() - began < (int64_t)GROUP_TIMEOUT_MS / 2 * 1000000);
    group_raise(group, 0);
    GROUP_CHECK(group_await(group, 0, group->size)); /* its process lives */
    return 0;
}

static void nobody_waits_for_who_cannot_connect(void **state)
{
    (void)state;
    struct group *group = group_create(3);
    assert_int_equal(group_run_processes(group, one_cannot_connect), 0);
    group_destroy(group);
    assert_int_equal(count_entries(directory), 2);
}

static void wrong_configuration_is_refused(void **state)
{
    (void)state;
    struct channel *channel;
    struct channel_address address;
    struct channel_config config = {.addresses = &address};
    static const int wrong[][2] = {{-1, 2}, {2, 2}, {0, 0}, {0, 65}};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(channel_listen(directory, &channel, &address), TUTTI_OK);
        config.rank = wrong[i][0];
        config.size = wrong[i][1];
        assert_int_equal(channel_open(&channel, &config), TUTTI_ERR_INVALID);
        assert_null(channel);
    }
    channel_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everything_arrives),
        cmocka_unit_test(sixty_four_processes_meet),
        cmocka_unit_test(only_peers_are_connected),
        cmocka_unit_test(a_missing_descriptor_is_an_error),
        cmocka_unit_test(lateness_is_named),
        cmocka_unit_test(wrong_nonce_does_not_connect),
        cmocka_unit_test(death_is_noticed_behind_a_child),
        cmocka_unit_test(death_while_opening_is_noticed),
        cmocka_unit_test(death_of_who_is_connected_is_noticed),
        cmocka_unit_test(closing_is_seen_as_death),
        cmocka_unit_test(another_user_does_not_get_in),
        cmocka_unit_test(intruders_do_not_matter),
        cmocka_unit_test(child_has_no_descriptors),
        cmocka_unit_test(a_rank_that_cannot_listen_says_so),
        cmocka_unit_test(nobody_waits_for_who_has_failed),
        cmocka_unit_test(nobody_waits_for_who_cannot_connect),
        cmocka_unit_test(wrong_configuration_is_refused),
    };
    return cmocka_run_group_tests(tests, make_directory, remove_directory);
}
