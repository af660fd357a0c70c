/* SPDX-License-Identifier: MIT */
/* file:PATH: the suite, the bytes of the log, and logs that are damaged or something else. */
#include "base/deadline.h"
#include "store_suite.h"

#include <fcntl.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

static char directory[64], path[96], url[128];

static void begin(void)
{
    strcpy(directory, "/tmp/tutti-test-XXXXXX");
    if (!mkdtemp(directory))
        abort();
    snprintf(path, sizeof path, "%s/store", directory);
    snprintf(url, sizeof url, "file:%s", path);
}

static void end(void)
{
    unlink(path);
    rmdir(directory);
}

static tutti_store_t *open_one(void)
{
    tutti_store_t *store;
    return tutti_store_open(url, 30000, &store) == TUTTI_OK ? store : NULL;
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

static void put_file(const void *bytes, size_t size)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    assert_int_equal(write(fd, bytes, size), size);
    close(fd);
}

static size_t get_file(char *bytes, size_t size)
{
    int fd = open(path, O_RDONLY);
    ssize_t got = read(fd, bytes, size);
    close(fd);
    return got < 0 ? 0 : (size_t)got;
}

/* As PyTorch 2.13 writes it. */
static void the_log_is_pytorchs(void **state)
{
    static const char expected[] = "\x09\0\0\0refcount/\x01\0\0\0"
                                   "1"
                                   "\x02\0\0\0/a\x02\0\0\0vv"
                                   "\x02\0\0\0/c\x01\0\0\0"
                                   "5"
                                   "\x02\0\0\0/b\0\0\0\0"
                                   "\x03\0\0\0-/a\0\0\0\0";
    char bytes[512];
    struct stat about;
    (void)state;
    tutti_store_t *store = open_one();
    assert_non_null(store);
    tutti_store_set(store, "a", "vv", 2);
    tutti_store_add(store, "c", 5, NULL);
    tutti_store_set(store, "b", "", 0);
    tutti_store_delete(store, "a", NULL);
    tutti_store_delete(store, "a", NULL);
    assert_int_equal(get_file(bytes, sizeof bytes), sizeof expected - 1);
    assert_memory_equal(bytes, expected, sizeof expected - 1);
    assert_int_equal(stat(path, &about), 0);
    assert_int_equal(about.st_mode & 07777, 0600);
    assert_string_equal(tutti_store_url(store), url);
    tutti_store_close(store);
}

static void a_dead_writers_record_is_cut_off(void **state)
{
    static const char cut[] = "\x02\0\0\0/a\x02\0\0\0vv\x02\0\0\0/b\x09\0\0\0four";
    (void)state;
    /* Whatever part of the last record is there. */
    for (size_t size = 12; size < sizeof cut; size++) {
        char value[8];
        bool exists = true;
        const char *key = "b";
        put_file(cut, size);
        tutti_store_t *store = open_one();
        assert_non_null(store);
        assert_int_equal(tutti_store_get(store, "a", 1000, value, 8, NULL), TUTTI_OK);
        assert_int_equal(tutti_store_check(store, &key, 1, &exists), TUTTI_OK);
        assert_false(exists);
        assert_int_equal(tutti_store_set(store, "b", "w", 1), TUTTI_OK);
        tutti_store_close(store);
        store = open_one();
        assert_int_equal(tutti_store_get(store, "b", 1000, value, 8, NULL), TUTTI_OK);
        assert_int_equal(value[0], 'w');
        tutti_store_close(store);
    }
}

static void other_files_are_refused_and_left_alone(void **state)
{
    static const struct {
        const char *bytes;
        size_t size;
    } rows[] = {
#define ROW(text) {text, sizeof(text) - 1}
        ROW("root:x:0:0:root:/root:/bin/bash\n"),
        ROW("\177ELF and so on, longer than a record's head"),
        ROW("\x05\0\0\0hello\x01\0\0\0x"),
#undef ROW
    };
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char bytes[128];
        tutti_store_t *store;
        put_file(rows[i].bytes, rows[i].size);
        assert_int_equal(tutti_store_open(url, 1000, &store), TUTTI_ERR_INVALID);
        assert_null(store);
        assert_int_equal(get_file(bytes, sizeof bytes), rows[i].size);
        assert_memory_equal(bytes, rows[i].bytes, rows[i].size);
    }
    tutti_store_t *store;
    char other[128];
    snprintf(other, sizeof other, "file:%s", directory);
    assert_int_not_equal(tutti_store_open(other, 1000, &store), TUTTI_OK);
    assert_int_equal(tutti_store_open("file:/dev/null", 1000, &store), TUTTI_ERR_INVALID);
    assert_int_equal(tutti_store_open("file:", 1000, &store), TUTTI_ERR_INVALID);
    snprintf(other, sizeof other, "file:%s/no/such/folder", directory);
    assert_int_equal(tutti_store_open(other, 1000, &store), TUTTI_ERR_SYSTEM);
}

/* Whoever can write to the file could lead the ranks astray. */
static void files_of_others_are_refused(void **state)
{
    tutti_store_t *store;
    (void)state;
    put_file("", 0);
    assert_int_equal(chmod(path, 0666), 0);
    assert_int_equal(tutti_store_open(url, 1000, &store), TUTTI_ERR_SYSTEM);
    assert_non_null(strstr(tutti_last_error(), "others may write"));
    assert_int_equal(chmod(path, 0620), 0);
    assert_int_equal(tutti_store_open(url, 1000, &store), TUTTI_ERR_SYSTEM);
    assert_int_equal(chmod(path, 0644), 0); /* as PyTorch makes them */
    assert_int_equal(tutti_store_open(url, 1000, &store), TUTTI_OK);
    tutti_store_close(store);
    if (chown(path, 65534, (gid_t)-1) == 0 && geteuid() == 0) {
        assert_int_equal(tutti_store_open(url, 1000, &store), TUTTI_ERR_SYSTEM);
        assert_non_null(strstr(tutti_last_error(), "belongs to user 65534"));
        assert_int_equal(chown(path, 0, (gid_t)-1), 0);
    }
    unlink(path);
}

/* Whoever may make a link there could choose which file the ranks write to. */
static void links_are_refused(void **state)
{
    tutti_store_t *store;
    char target[128];
    struct stat about;
    (void)state;
    snprintf(target, sizeof target, "%s/target", directory);
    assert_int_equal(symlink(target, path), 0);
    assert_int_equal(tutti_store_open(url, 1000, &store), TUTTI_ERR_SYSTEM);
    assert_non_null(strstr(tutti_last_error(), "symbolic link"));
    assert_int_equal(stat(target, &about), -1);
    unlink(path);
}

/* The keys that the ranks meet by are lost, which is another thing than a want of memory. */
static void a_file_cut_short_in_use_is_told(void **state)
{
    (void)state;
    for (off_t size = 0; size < 30; size += 7) {
        tutti_store_t *store = open_one();
        char value[4];
        bool exists;
        const char *key = "key";
        assert_non_null(store);
        assert_int_equal(tutti_store_set(store, "key", "value", 5), TUTTI_OK);
        assert_int_equal(truncate(path, size), 0);
        assert_int_equal(tutti_store_get(store, "key", 1000, value, 4, NULL), TUTTI_ERR_SYSTEM);
        assert_non_null(strstr(tutti_last_error(), "was cut short"));
        assert_non_null(strstr(tutti_last_error(), path));
        /* It stays so, whoever writes to the file. */
        assert_int_equal(tutti_store_set(store, "key", "value", 5), TUTTI_ERR_SYSTEM);
        assert_int_equal(tutti_store_check(store, &key, 1, &exists), TUTTI_ERR_SYSTEM);
        tutti_store_close(store);
        unlink(path);
    }
}

static void a_held_lock_ends_in_a_time_out(void **state)
{
    tutti_store_t *store;
    (void)state;
    int fd = open(path, O_RDWR | O_CREAT, 0600);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(tutti_store_open(url, 20, &store), TUTTI_ERR_TIMEOUT);
    close(fd);
    assert_int_equal(tutti_store_open(url, 1000, &store), TUTTI_OK);
    tutti_store_close(store);
}

/* One thread waits for the lock for long: another one's time-out holds all the same. */
struct patient {
    tutti_store_t *store;
    enum tutti_status status;
};

static void *get_patiently(void *argument)
{
    struct patient *patient = argument;
    patient->status = tutti_store_get(patient->store, "key", 30000, NULL, 0, NULL);
    return NULL;
}

static void a_waiting_thread_does_not_prolong_a_time_out(void **state)
{
    struct patient patient = {0};
    pthread_t thread;
    (void)state;
    assert_int_equal(tutti_store_open(url, 1000, &patient.store), TUTTI_OK);
    assert_int_equal(tutti_store_set(patient.store, "key", "", 0), TUTTI_OK);
    int fd = open(path, O_RDWR);
    assert_int_equal(flock(fd, LOCK_EX), 0);
    assert_int_equal(pthread_create(&thread, NULL, get_patiently, &patient), 0);
    usleep(50000); /* likely, not necessarily, in its wait by now */
    int64_t bound = deadline_after(10000);
    assert_int_equal(tutti_store_get(patient.store, "key", 20, NULL, 0, NULL), TUTTI_ERR_TIMEOUT);
    assert_false(deadline_passed(bound));
    close(fd);
    pthread_join(thread, NULL);
    assert_int_equal(patient.status, TUTTI_OK);
    tutti_store_close(patient.store);
}

static void the_last_of_all_ranks_removes_the_file(void **state)
{
    tutti_store_t *stores[3];
    char text[160];
    (void)state;
    snprintf(text, sizeof text, "%s?world_size=3", url);
    for (int i = 0; i < 3; i++)
        assert_int_equal(tutti_store_open(text, 1000, &stores[i]), TUTTI_OK);
    assert_string_equal(tutti_store_url(stores[0]), text);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(access(path, F_OK), 0);
        tutti_store_close(stores[i]);
    }
    assert_int_equal(access(path, F_OK), -1);
}

enum { CLOSERS = 4 };

static pthread_barrier_t all_open;

static void *close_with_the_others(void *store)
{
    pthread_barrier_wait(&all_open);
    tutti_store_close(store);
    return NULL;
}

static void handles_that_close_at_once_remove_the_file(void **state)
{
    tutti_store_t *store;
    pthread_t threads[CLOSERS];
    char text[160];
    (void)state;
    snprintf(text, sizeof text, "%s?world_size=%d", url, CLOSERS);
    pthread_barrier_init(&all_open, NULL, CLOSERS);
    for (int turn = 0; turn < 200; turn++) {
        for (int i = 0; i < CLOSERS; i++) {
            assert_int_equal(tutti_store_open(text, 1000, &store), TUTTI_OK);
            assert_int_equal(pthread_create(&threads[i], NULL, close_with_the_others, store), 0);
        }
        for (int i = 0; i < CLOSERS; i++)
            pthread_join(threads[i], NULL);
        assert_int_equal(access(path, F_OK), -1);
    }
    pthread_barrier_destroy(&all_open);
}

int main(void)
{
    static const struct suite_kind kind = {begin, open_one, end, true};
#define TEST(fn) cmocka_unit_test_setup_teardown(fn, setup, teardown)
    const struct CMUnitTest tests[] = {
        TEST(the_log_is_pytorchs),
        TEST(a_dead_writers_record_is_cut_off),
        TEST(other_files_are_refused_and_left_alone),
        TEST(files_of_others_are_refused),
        TEST(links_are_refused),
        TEST(a_file_cut_short_in_use_is_told),
        TEST(a_held_lock_ends_in_a_time_out),
        TEST(a_waiting_thread_does_not_prolong_a_time_out),
        TEST(the_last_of_all_ranks_removes_the_file),
        TEST(handles_that_close_at_once_remove_the_file),
    };
#undef TEST
    return store_suite_run("file", &kind) + cmocka_run_group_tests(tests, NULL, NULL);
}
