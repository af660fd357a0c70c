/* SPDX-License-Identifier: MIT */
/* The private directory: where it is, what is refused, what is swept. */
#include "base/error.h"
#include "ipc/channel.h"
#include "ipc/directory.h"

#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static char base[64];    /* of this program */
static char chosen[256]; /* what TUTTI_DIR says */
static char found[PATH_MAX];

static char *in(const char *folder, const char *name)
{
    static char path[4][PATH_MAX];
    static int next;
    next = (next + 1) % 4;
    snprintf(path[next], sizeof path[next], "%s/%s", folder, name);
    return path[next];
}

static void choose(const char *name)
{
    snprintf(chosen, sizeof chosen, "%s/%s", base, name);
    setenv("TUTTI_DIR", chosen, 1);
}

static void assert_refused(const char *word)
{
    assert_int_not_equal(channel_directory(found, sizeof found, true), TUTTI_OK);
    assert_non_null(strstr(tutti_last_error(), word));
}

static void first_choice_is_tutti_dir(void **state)
{
    (void)state;
    choose("own");
    struct stat info;
    for (int i = 0; i < 2; i++) { /* made, then found */
        assert_int_equal(channel_directory(found, sizeof found, true), TUTTI_OK);
        assert_string_equal(found, chosen);
        assert_int_equal(stat(found, &info), 0);
        assert_int_equal(info.st_mode & 07777, 0700);
    }
    assert_int_equal(rmdir(chosen), 0);
}

static void then_the_runtime_directory_then_tmp(void **state)
{
    (void)state;
    unsetenv("TUTTI_DIR");
    setenv("XDG_RUNTIME_DIR", base, 1);
    assert_int_equal(channel_directory(found, sizeof found, true), TUTTI_OK);
    assert_string_equal(found, in(base, "tutti"));
    assert_int_equal(rmdir(found), 0);

    char expected[64];
    snprintf(expected, sizeof expected, "/tmp/tutti-%u", geteuid());
    setenv("XDG_RUNTIME_DIR", in(base, "absent"), 1);
    assert_int_equal(channel_directory(found, sizeof found, true), TUTTI_OK);
    assert_string_equal(found, expected);
    unsetenv("XDG_RUNTIME_DIR");
    assert_int_equal(channel_directory(found, sizeof found, true), TUTTI_OK);
    assert_string_equal(found, expected);
    /* It stays: others may be using it. */
}

/* After `sudo -E` the variable still names the directory of another user. */
static void another_users_runtime_directory_is_left_alone(void **state)
{
    (void)state;
    const uid_t other = 12345;
    char expected[64];
    const char *foreign = geteuid() == 0 ? in(base, "foreign") : "/tmp";
    snprintf(expected, sizeof expected, "/tmp/tutti-%u", geteuid());
    if (geteuid() == 0) {
        assert_int_equal(mkdir(foreign, 0700), 0);
        assert_int_equal(chown(foreign, other, other), 0);
    }
    unsetenv("TUTTI_DIR");
    setenv("XDG_RUNTIME_DIR", foreign, 1);
    assert_int_equal(channel_directory(found, sizeof found, true), TUTTI_OK);
    assert_string_equal(found, expected);
    unsetenv("XDG_RUNTIME_DIR");
    if (geteuid() == 0)
        assert_int_equal(rmdir(in(base, "foreign")), 0);
}

static void link_is_refused(void **state)
{
    (void)state;
    choose("link");
    assert_int_equal(mkdir(in(base, "real"), 0700), 0);
    assert_int_equal(symlink("real", chosen), 0);
    assert_refused("is a link");
    assert_int_equal(unlink(chosen), 0);
    assert_int_equal(symlink("nowhere", chosen), 0);
    assert_refused("is a link");
    assert_int_equal(access(in(base, "nowhere"), F_OK), -1);
    assert_int_equal(unlink(chosen), 0);
    assert_int_equal(rmdir(in(base, "real")), 0);
}

static void file_is_refused(void **state)
{
    (void)state;
    choose("file");
    close(open(chosen, O_CREAT | O_WRONLY | O_CLOEXEC, 0600));
    assert_refused("no directory");
    assert_int_equal(unlink(chosen), 0);
}

static void open_mode_is_refused(void **state)
{
    (void)state;
    static const mode_t modes[] = {0770, 0701, 0704, 0702, 0755, 0777};
    choose("open");
    assert_int_equal(mkdir(chosen, 0700), 0);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        assert_int_equal(chmod(chosen, modes[i]), 0);
        assert_refused("is open to others");
    }
    assert_int_equal(rmdir(chosen), 0);
}

static void foreign_owner_is_refused(void **state)
{
    (void)state;
    if (geteuid() != 0)
        skip();
    choose("foreign");
    assert_int_equal(mkdir(chosen, 0700), 0);
    assert_int_equal(chown(chosen, 12345, 12345), 0);
    assert_refused("belongs to user 12345");
    assert_int_equal(rmdir(chosen), 0);
}

static void too_long_is_refused(void **state)
{
    (void)state;
    choose("long-long-long-long-long-long-long-long-long-long-long-long-long-long-long-long-long");
    assert_refused("is too long");
    assert_int_equal(access(chosen, F_OK), -1);
    char tiny[4];
    assert_int_equal(channel_directory(tiny, sizeof tiny, true), TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "set TUTTI_DIR to a shorter one"));
}

static void set_age(const char *path, int64_t seconds)
{
    struct timespec times[2] = {{.tv_sec = time(NULL) - seconds}, {.tv_sec = time(NULL) - seconds}};
    assert_int_equal(utimensat(AT_FDCWD, path, times, AT_SYMLINK_NOFOLLOW), 0);
}

static void make_file(const char *name, int64_t age)
{
    int fd = open(in(chosen, name), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    assert_true(fd >= 0);
    close(fd);
    set_age(in(chosen, name), age);
}

static void bind_at(const char *name, int64_t age)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    snprintf(address.sun_path, sizeof address.sun_path, "%.80s/%.20s", chosen, name);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof address), 0);
    close(fd);
    set_age(address.sun_path, age);
}

static bool exists(const char *name)
{
    return access(in(chosen, name), F_OK) == 0;
}

static void what_died_is_swept(void **state)
{
    (void)state;
    struct socket_path dead, alive;
    int fd, listener;
    choose("sweep");
    assert_int_equal(channel_directory(found, sizeof found, true), TUTTI_OK);
    assert_int_equal(directory_listen(chosen, &dead, &fd), TUTTI_OK);
    close(fd);
    assert_int_equal(directory_listen(chosen, &alive, &listener), TUTTI_OK);
    assert_int_equal(directory_listen(chosen, &(struct socket_path){{0}}, &fd), TUTTI_OK);
    close(fd);
    /* bound, not listening: as if its process was killed in between */
    bind_at("so-bound", 0);
    bind_at("bd-old", 4000);
    bind_at("bd-young", 100);
    bind_at("foreign", 4000);
    make_file("job-old", 4000);
    make_file("job-young", 100);
    make_file("so-file", 4000);
    make_file("notes", 4000);

    assert_int_equal(channel_directory(found, sizeof found, true), TUTTI_OK);
    assert_int_equal(access(dead.text, F_OK), -1);
    assert_int_equal(access(alive.text, F_OK), 0);
    assert_false(exists("so-bound"));
    assert_false(exists("bd-old"));
    assert_false(exists("bd-young"));
    assert_false(exists("job-old"));
    static const char *const kept[] = {"foreign", "job-young", "so-file", "notes"};
    for (size_t i = 0; i < sizeof kept / sizeof *kept; i++) {
        assert_true(exists(kept[i]));
        assert_int_equal(unlink(in(chosen, kept[i])), 0);
    }
    close(listener);
    assert_int_equal(channel_directory(found, sizeof found, true), TUTTI_OK);
    assert_int_equal(rmdir(chosen), 0); /* the last socket was swept, too */
}

static _Atomic bool sweeping;

static void *sweep_on(void *context)
{
    char path[PATH_MAX];
    (void)context;
    while (sweeping)
        assert_int_equal(channel_directory(path, sizeof path, true), TUTTI_OK);
    return NULL;
}

/* Another start must not sweep a socket that is bound and does not listen yet. If it does, the
 * caller gets another socket, and the thread's last error stays. */
static void listens_while_others_sweep(void **state)
{
    (void)state;
    pthread_t thread;
    choose("contended");
    assert_int_equal(channel_directory(found, sizeof found, true), TUTTI_OK);
    error_set(TUTTI_ERR_NO_MEMORY, "of an earlier call");
    sweeping = true;
    assert_int_equal(pthread_create(&thread, NULL, sweep_on, NULL), 0);
    for (int i = 0; i < 2000; i++) {
        struct socket_path path;
        int listener, peer;
        if (directory_listen(chosen, &path, &listener) != TUTTI_OK)
            fail_msg("%d: %s", i, tutti_last_error());
        if (directory_connect(&path, &peer) != TUTTI_OK)
            fail_msg("%d: %s", i, tutti_last_error());
        assert_string_equal(tutti_last_error(), "of an earlier call");
        close(peer);
        close(listener);
        unlink(path.text);
    }
    sweeping = false;
    pthread_join(thread, NULL);
    assert_int_equal(rmdir(chosen), 0);
}

static int make_base(void **state)
{
    (void)state;
    strcpy(base, "/tmp/tutti-test-XXXXXX");
    return mkdtemp(base) ? 0 : -1;
}

static int remove_base(void **state)
{
    (void)state;
    return rmdir(base);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_choice_is_tutti_dir),
        cmocka_unit_test(then_the_runtime_directory_then_tmp),
        cmocka_unit_test(another_users_runtime_directory_is_left_alone),
        cmocka_unit_test(link_is_refused),
        cmocka_unit_test(file_is_refused),
        cmocka_unit_test(open_mode_is_refused),
        cmocka_unit_test(foreign_owner_is_refused),
        cmocka_unit_test(too_long_is_refused),
        cmocka_unit_test(what_died_is_swept),
        cmocka_unit_test(listens_while_others_sweep),
    };
    return cmocka_run_group_tests(tests, make_base, remove_base);
}
