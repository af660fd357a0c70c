/* SPDX-License-Identifier: MIT */
/* The flight recorder: the ring of entries, copies of a page that is being written, the program's
 * reader and its JSON for any bytes, and the files of dumps. */
#include "base/record_path.h"
#include "base/signature.h"
#include "comm/comm.h"
#include "cpu/group.h"
#include "dump.h"
#include "tool.h"
#include "tutti/recorder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { RANK = 3, WORLD_SIZE = 5, COPIES = 400 };

static char folder[] = "/tmp/tutti-recorder-XXXXXX";

static void path_make(char path[256], const char *name)
{
    snprintf(path, 256, "%s/%s", folder, name);
}

static int folder_create(void **state)
{
    (void)state;
    return mkdtemp(folder) ? 0 : -1;
}

static int folder_remove(void **state)
{
    (void)state;
    return rmdir(folder); /* fails if a test has left anything */
}

static struct tutti_comm *comm_make(void)
{
    struct tutti_comm *comm = aligned_alloc(64, (sizeof *comm + 63) / 64 * 64);
    assert_non_null(comm);
    memset(comm, 0, sizeof *comm);
    comm->rank = RANK;
    comm->world_size = WORLD_SIZE;
    comm->recorder.fd = -1;
    comm->isa = reduce_isa_best();
    comm->backend = &cpu_backend;
    comm->group = comm->peers = cpu_group_create();
    assert_non_null(comm->peers);
    snprintf(comm->name, sizeof comm->name, "unit");
    assert_int_equal(recorder_open(&comm->recorder, comm->name, RANK, WORLD_SIZE, 0), TUTTI_OK);
    return comm;
}

static void comm_free(struct tutti_comm *comm)
{
    recorder_close(&comm->recorder);
    peers_free(comm->peers);
    free(comm);
}

/* An entry whose fields all follow from its number. */
static void record(struct recorder *recorder)
{
    uint64_t number = recorder->number + 1;
    const struct recorder_operation operation = {.sequence = number * 3,
                                                 .signature = number * 5,
                                                 .parameter = (uint32_t)number,
                                                 .tag = (uint32_t)number + 1};
    struct record_entry *entry = recorder_start(recorder, &operation, RECORD_RUNNING, number * 7);
    recorder_end(entry, RECORD_DONE, TUTTI_OK, RECORD_CALL, number * 11);
}

static void check_entry(const struct record_entry *entry)
{
    uint64_t number = entry->number, state = entry->outcome & 0xff;
    assert_int_equal(entry->sequence, number * 3);
    assert_int_equal(entry->signature, number * 5);
    assert_int_equal((uint32_t)entry->detail, (uint32_t)number);
    assert_int_equal(entry->detail >> 32, (uint32_t)number + 1);
    assert_int_equal(entry->started, number * 7);
    assert_true(state == RECORD_RUNNING || state == RECORD_DONE);
    if (state == RECORD_DONE)
        assert_int_equal(entry->ended, number * 11);
}

/* The page as the library dumps it, and the program reads the dump. */
static struct record_page *dumped(const struct tutti_comm *comm)
{
    char path[256], problem[256];
    size_t size;
    path_make(path, "raw");
    assert_int_equal(recorder_dump(&comm->recorder, RECORD_CAUSE_CALL, path), TUTTI_OK);
    char *bytes = tool_read_file(path, &size);
    assert_non_null(bytes);
    assert_int_equal(unlink(path), 0);
    struct record_page *page = dump_page_parse(bytes, size, problem, sizeof problem);
    if (!page)
        fail_msg("%s", problem);
    free(bytes);
    return page;
}

static int count_entries(const struct record_page *page)
{
    int count = 0;
    while (count < RECORD_ENTRIES && page->entries[count].number)
        count++;
    return count;
}

static void the_last_1024_are_kept(void **state)
{
    (void)state;
    struct tutti_comm *comm = comm_make();
    for (int round = 0; round < 3; round++) {
        struct record_page *page = dumped(comm);
        uint64_t all = comm->recorder.number;
        const int count = count_entries(page);
        assert_int_equal(count, all < RECORD_ENTRIES ? all : RECORD_ENTRIES);
        for (int i = 0; i < count; i++) {
            check_entry(&page->entries[i]);
            assert_int_equal(page->entries[i].number, all - (uint64_t)(count - 1 - i));
        }
        free(page);
        for (int i = 0; i < 1000; i++)
            record(&comm->recorder);
    }
    comm_free(comm);
}

static void an_end_finds_its_entry_or_none(void **state)
{
    (void)state;
    struct tutti_comm *comm = comm_make();
    record(&comm->recorder);
    recorder_end_later(&comm->recorder, 0, TUTTI_ERR_TIMEOUT);
    recorder_end_later(&comm->recorder, 1, TUTTI_ERR_TIMEOUT);
    const struct record_entry *entry = &comm->recorder.page->entries[1];
    assert_int_equal(entry->outcome, record_outcome(RECORD_FAILED, TUTTI_ERR_TIMEOUT, RECORD_CALL));
    for (int i = 0; i < RECORD_ENTRIES; i++)
        record(&comm->recorder);
    assert_int_equal(entry->number, RECORD_ENTRIES + 1);
    recorder_end_later(&comm->recorder, 1, TUTTI_ERR_TIMEOUT);
    check_entry(entry);
    comm_free(comm);
}

static uint32_t enough;

static void *write_on(void *argument)
{
    while (!__atomic_load_n(&enough, __ATOMIC_RELAXED))
        record(argument);
    return NULL;
}

static void copies_stand_still_while_it_is_written(void **state)
{
    (void)state;
    struct tutti_comm *comm = comm_make();
    pthread_t writer;
    assert_int_equal(pthread_create(&writer, NULL, write_on, &comm->recorder), 0);
    for (int i = 0; i < COPIES; i++) {
        struct record_page *page = dumped(comm);
        for (int e = 0; e < count_entries(page); e++) {
            check_entry(&page->entries[e]);
            assert_true(e == 0 || page->entries[e].number > page->entries[e - 1].number);
        }
        free(page);
    }
    __atomic_store_n(&enough, 1, __ATOMIC_RELAXED);
    pthread_join(writer, NULL);
    comm_free(comm);
}

static void what_differs_between_two_copies_is_dropped(void **state)
{
    (void)state;
    struct record_page *pages = calloc(2, sizeof *pages), *earlier = &pages[0], *copy = &pages[1];
    assert_non_null(pages);
    for (int i = 0; i < 2; i++) {
        for (uint64_t number = 1; number <= 2; number++) {
            pages[i].entries[number].number = number;
            pages[i].device_trace.marks[number].sequence = number;
        }
        pages[i].phase = RECORD_MET;
        pages[i].fault.set = 1;
    }
    earlier->entries[1].ended = 5;
    earlier->device_trace.marks[2].begun_ns = 5;
    earlier->phase = RECORD_MEETING;
    earlier->fault.set = 0;
    record_keep_stable(copy, earlier);
    assert_true(copy->entries[1].number == 0 && copy->entries[2].number == 2);
    assert_true(copy->device_trace.marks[1].sequence == 1);
    assert_true(copy->device_trace.marks[2].sequence == 0);
    assert_true(copy->phase == RECORD_MEETING && !copy->fault.set);
    free(pages);
}

static json_t *to_json(const struct record_page *page)
{
    char problem[256];
    struct record_page *parsed = dump_page_parse(page, sizeof *page, problem, sizeof problem);
    assert_non_null(parsed);
    json_t *root = dump_page_to_json(parsed);
    assert_non_null(root);
    free(parsed);
    return root;
}

static void the_json_says_what_is_there(void **state)
{
    (void)state;
    struct tutti_comm *comm = comm_make();
    const char *name, *cause, *phase, *meeting, *what, *first, *outcome;
    json_int_t created, started, ended, taken, number;
    const struct recorder_operation operation = {
        .sequence = 9,
        .signature = signature_pack(TUTTI_COLLECTIVE_ALL_REDUCE, TUTTI_BFLOAT16, OP_MAX,
                                    TUTTI_ALGO_TWO_SHOT, 100),
    };
    struct record_entry *entry =
        recorder_start(&comm->recorder, &operation, RECORD_RUNNING, ticks_now());
    recorder_end(entry, RECORD_FAILED, TUTTI_ERR_TIMEOUT, RECORD_CALL, ticks_now());
    comm->ready = true;
    comm->generation = 17;
    memcpy(comm->nonce, "0123456701234576", sizeof comm->nonce);
    comm_record_meeting(comm);
    struct record_page *page = dumped(comm);
    json_t *root = dump_page_to_json(page);
    free(page);
    assert_int_equal(
        json_unpack(root, "{s:s, s:s, s:s, s:s, s:I, s:I, s:[s], s:[{s:I, s:s, s:s, s:I, s:I}]}",
                    "name", &name, "cause", &cause, "phase", &phase, "meeting", &meeting,
                    "created_ns", &created, "taken_ns", &taken, "description", &first, "operations",
                    "bytes", &number, "dtype", &what, "status", &outcome, "started_ns", &started,
                    "ended_ns", &ended),
        0);
    assert_string_equal(name, "unit");
    assert_string_equal(cause, "call");
    assert_string_equal(phase, "met");
    assert_string_equal(meeting, "0101000000000000");
    assert_string_equal(first, "name: unit");
    assert_int_equal(number, 200);
    assert_string_equal(what, "bfloat16");
    assert_string_equal(outcome, "TUTTI_ERR_TIMEOUT");
    /* Clocks of different cores may differ a little. */
    const json_int_t second = 1000000000;
    assert_true(started > created - second && ended > started - second && taken > ended - second);
    json_decref(root);
    comm_free(comm);
}

static void any_page_gives_json(void **state)
{
    (void)state;
    struct tutti_comm *comm = comm_make();
    struct record_page *page = comm->recorder.page;
    const struct record_page sound = *page;
    unsigned seed = 1;
    memcpy(page->name, "\"\\\n\xc3\xa9", 6);
    memset(page->host, 0xe2, sizeof page->host); /* no UTF-8, and no end */
    json_t *root = to_json(page);
    assert_string_equal(json_string_value(json_object_get(root, "name")), "\"\\\n\xc3\xa9");
    const char *host = json_string_value(json_object_get(root, "host"));
    assert_int_equal(strspn(host, "?"), sizeof page->host - 1);
    json_decref(root);
    for (int round = 0; round < 20; round++) {
        unsigned char *bytes = (unsigned char *)page;
        for (size_t i = offsetof(struct record_page, ticks); i < sizeof *page; i++) {
            seed = seed * 1103515245 + 12345;
            bytes[i] = (unsigned char)(seed >> 16);
        }
        for (size_t i = 0; i < RECORD_ENTRIES; i++)
            page->entries[i].number = i + RECORD_ENTRIES;
        root = to_json(page);
        char *text = json_dumps(root, 0);
        json_t *again = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
        assert_true(json_equal(root, again));
        json_decref(again);
        json_decref(root);
        free(text);
    }
    *page = sound;
    comm_free(comm);
}

/* ---- the device trace ------------------------------------------------------------------------ */

enum { AHEAD_NS = 1000 };

static void mark(struct record_page *page, uint64_t sequence)
{
    page->device_trace.marks[sequence % DEVICE_TRACE_MARKS] = (struct device_trace_mark){
        .signature = signature_pack(TUTTI_COLLECTIVE_BARRIER, 0, 0, 0, 0),
        .low = (uint32_t)sequence,
        .begun_ns = 5000 + sequence,
        .sequence = sequence,
    };
}

/* One of the marks in the page's text; ended_by_ns is 0 where it says null. */
static void expect_mark(const struct record_page *page, size_t index, json_int_t sequence,
                        const char *state, json_int_t ended_by_ns)
{
    json_t *root = to_json(page);
    const json_t *at = json_array_get(json_object_get(root, "device_operations"), index);
    assert_int_equal(json_integer_value(json_object_get(at, "sequence")), sequence);
    assert_string_equal(json_string_value(json_object_get(at, "state")), state);
    assert_string_equal(json_string_value(json_object_get(at, "collective")), "barrier");
    assert_int_equal(json_integer_value(json_object_get(at, "begun_ns")),
                     5000 + sequence - AHEAD_NS);
    assert_int_equal(json_integer_value(json_object_get(at, "ended_by_ns")), ended_by_ns);
    json_decref(root);
}

static size_t marks_of(const struct record_page *page)
{
    json_t *root = to_json(page);
    const json_t *marks = json_object_get(root, "device_operations");
    const size_t count = json_is_null(marks) ? SIZE_MAX : json_array_size(marks);
    json_decref(root);
    return count;
}

static void what_a_device_did_is_read(void **state)
{
    (void)state;
    enum { LAST = DEVICE_TRACE_MARKS + 2 };
    struct tutti_comm *comm = comm_make();
    struct record_page *page = comm->recorder.page;
    mark(page, 1);
    assert_int_equal(marks_of(page), SIZE_MAX); /* no device */
    page->device_ahead_ns = AHEAD_NS;
    for (uint64_t sequence = 1; sequence <= LAST; sequence++)
        mark(page, sequence);
    assert_int_equal(marks_of(page), DEVICE_TRACE_MARKS);
    expect_mark(page, 0, 3, "done", 4004);
    expect_mark(page, DEVICE_TRACE_MARKS - 2, LAST - 1, "done", 4000 + LAST);
    expect_mark(page, DEVICE_TRACE_MARKS - 1, LAST, "begun", 0);
    page->awaits = 1;
    page->device_trace.wait.of = (LAST - 1) << 8; /* a former wait */
    expect_mark(page, DEVICE_TRACE_MARKS - 1, LAST, "begun", 0);
    page->device_trace.wait.of = LAST << 8;
    expect_mark(page, DEVICE_TRACE_MARKS - 1, LAST, "running", 0);
    page->fault = (struct layout_fault){
        .set = 1, .status = TUTTI_ERR_ABORTED, .rank = RANK, .sequence = LAST - 5};
    expect_mark(page, DEVICE_TRACE_MARKS - 1, LAST, "failed", 0);
    page->awaits = 0;
    expect_mark(page, DEVICE_TRACE_MARKS - 1, LAST, "begun", 0);
    page->fault.sequence = LAST;
    expect_mark(page, DEVICE_TRACE_MARKS - 1, LAST, "failed", 0);
    expect_mark(page, DEVICE_TRACE_MARKS - 2, LAST - 1, "done", 4000 + LAST);
    comm_free(comm);
}

static void a_mark_that_is_being_written_is_none(void **state)
{
    (void)state;
    struct tutti_comm *comm = comm_make();
    struct record_page *page = comm->recorder.page;
    page->device_ahead_ns = AHEAD_NS;
    for (uint64_t sequence = 1; sequence <= 3; sequence++)
        mark(page, sequence);
    assert_int_equal(marks_of(page), 3);
    page->device_trace.marks[1].low +=
        DEVICE_TRACE_MARKS; /* its first line alone is the next one's */
    assert_int_equal(marks_of(page), 2);
    page->device_trace.marks[2].sequence += DEVICE_TRACE_MARKS; /* its second */
    assert_int_equal(marks_of(page), 1);
    page->device_trace.marks[3].sequence++; /* another place's */
    page->device_trace.marks[3].low++;
    assert_int_equal(marks_of(page), SIZE_MAX); /* none is as no device trace */
    comm_free(comm);
}

static void who_is_waited_for_is_told(void **state)
{
    (void)state;
    struct tutti_comm *comm = comm_make();
    struct record_page *page = comm->recorder.page;
    json_int_t sequence, since, rank, absent;
    page->device_ahead_ns = AHEAD_NS;
    mark(page, 8);
    page->device_trace.wait.of = 8 << 8 | 1;
    page->awaited_since = ticks_now();
    page->awaits = 2;
    json_t *root = to_json(page);
    assert_int_equal(json_unpack(root, "{s:{s:I, s:I, s:I, s:[I!]}}", "waits", "sequence",
                                 &sequence, "rank", &rank, "since_ns", &since, "absent", &absent),
                     0);
    assert_true(sequence == 8 && rank == 1 && since > 0 && absent == 1);
    json_decref(root);
    page->awaits = 0;
    root = to_json(page);
    assert_true(json_is_null(json_object_get(root, "waits")));
    json_decref(root);
    comm_free(comm);
}

static void expect_refusal(const struct record_page *page, size_t size, const char *expected)
{
    char problem[256] = "";
    assert_null(dump_page_parse(page, size, problem, sizeof problem));
    if (!strstr(problem, expected))
        fail_msg("\"%s\" lacks \"%s\"", problem, expected);
}

static void nonsense_is_refused(void **state)
{
    (void)state;
    struct tutti_comm *comm = comm_make();
    struct record_page *page = comm->recorder.page;
    expect_refusal(page, sizeof *page - 1, "damaged");
    expect_refusal(page, 7, "magic number");
    page->rank = WORLD_SIZE;
    expect_refusal(page, sizeof *page, "rank 5 of 5");
    page->world_size = WORLD_RANKS + 1;
    expect_refusal(page, sizeof *page, "rank 5 of 257");
    page->version = RECORD_VERSION + 1;
    page->library = 30405; /* both versions are named */
    expect_refusal(page, 24, "version 7, by Tutti 3.4.5; this program is Tutti 0.");
    expect_refusal(page, sizeof *page, "reads version 6");
    page->magic++;
    expect_refusal(page, sizeof *page, "magic number");
    comm_free(comm);
}

/* ---- files ----------------------------------------------------------------------------------- */

static void expect_path(const char *pattern, const struct record_page *page, const char *expected)
{
    char path[256];
    assert_int_equal(record_path(pattern, ".raw", page, path, sizeof path), expected != NULL);
    if (expected)
        assert_string_equal(path, expected);
}

static void patterns_are_paths(void **state)
{
    (void)state;
    struct tutti_comm *comm = comm_make();
    struct record_page *page = comm->recorder.page;
    char path[4], expected[256];
    memcpy(page->name, "a b/c", 6);
    page->generation = 4;
    snprintf(expected, sizeof expected, "%s/tutti-a_b_c-4-r3-p%d.raw", folder, (int)getpid());
    expect_path(folder, page, expected);
    expect_path("x%r.%g%%", page, "x3.4%");
    expect_path("", page, NULL);
    expect_path("x%q", page, NULL);
    expect_path("x%", page, NULL);
    assert_false(record_path("x%r", "", page, path, 2));
    assert_true(record_path("x%r", "", page, path, 3));

    assert_int_equal(recorder_pattern_check(folder, page), TUTTI_OK);
    path_make(expected, "%r");
    assert_int_equal(recorder_pattern_check(expected, page), TUTTI_OK);
    path_make(expected, "%h.%p");
    assert_int_equal(recorder_pattern_check(expected, page), TUTTI_OK);
    path_make(expected, "one file");
    assert_int_equal(recorder_pattern_check(expected, page), TUTTI_ERR_INVALID);
    path_make(expected, "%%r");
    assert_int_equal(recorder_pattern_check(expected, page), TUTTI_ERR_INVALID);
    path_make(expected, "%%%r");
    assert_int_equal(recorder_pattern_check(expected, page), TUTTI_OK);
    path_make(expected, "%q");
    assert_int_equal(recorder_pattern_check(expected, page), TUTTI_ERR_INVALID);
    path_make(expected, "absent/%r");
    assert_int_equal(recorder_pattern_check(expected, page), TUTTI_ERR_INVALID);
    comm_free(comm);
}

/* A recorder whose process had just begun it; returns its descriptor. */
static int blank_make(void)
{
    struct segment segment;
    int fd;
    assert_int_equal(segment_create(RECORD_LABEL, sizeof(struct record_page), &segment, &fd),
                     TUTTI_OK);
    segment_unmap(&segment);
    return fd;
}

static bool count_page(void *context, const struct record_page *page)
{
    assert_int_equal(page->cause, RECORD_CAUSE_OUTSIDE);
    ++*(int *)context;
    return true;
}

/* Reads the recorders of this process, and returns how many there were. What is printed must
 * contain both texts; NULL: nothing is printed and the call succeeds. */
static int read_process(const char *first, const char *second)
{
    char text[1024] = "";
    int count = 0, kept = dup(STDERR_FILENO), file = memfd_create("stderr", 0);
    assert_true(dup2(file, STDERR_FILENO) >= 0);
    bool read = dump_read_process(getpid(), count_page, &count);
    dup2(kept, STDERR_FILENO);
    assert_true(pread(file, text, sizeof text - 1, 0) >= 0);
    close(kept);
    close(file);
    assert_int_equal(read, first == NULL);
    if (first && !(strstr(text, first) && strstr(text, second)))
        fail_msg("\"%s\" lacks \"%s\" or \"%s\"", text, first, second);
    return count;
}

static void one_that_cannot_be_read_hides_no_other(void **state)
{
    (void)state;
    char first[64], second[64];
    int before = blank_make();
    struct tutti_comm *comm = comm_make();
    int behind = blank_make();
    snprintf(first, sizeof first, "process %d, descriptor %d: a recorder without its magic number",
             (int)getpid(), before);
    snprintf(second, sizeof second, "descriptor %d: ", behind);
    assert_int_equal(read_process(first, second), 1);
    close(before);
    close(behind);
    comm_free(comm);
}

static int read_process_without_descriptors(void)
{
    struct rlimit limit, before;
    int count, next = dup(STDERR_FILENO);
    close(next);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    limit = before;
    limit.rlim_cur = (rlim_t)next + 3; /* for stderr, its copy, and the table of descriptors */
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    count = read_process("descriptor ", strerror(EMFILE));
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    return count;
}

static void one_that_cannot_be_opened_is_told(void **state)
{
    (void)state;
    struct tutti_comm *comm = comm_make();
    assert_int_equal(read_process_without_descriptors(), 0);
    comm_free(comm);
}

static bool directories_break;

struct dirent *__wrap_readdir(DIR *directory);
struct dirent *__real_readdir(DIR *directory);

/* Fails where the directory would have ended. */
struct dirent *__wrap_readdir(DIR *directory)
{
    struct dirent *entry = __real_readdir(directory);
    if (!entry && directories_break)
        errno = EIO;
    return entry;
}

static void a_table_that_cannot_be_read_on_is_told(void **state)
{
    (void)state;
    struct tutti_comm *comm = comm_make();
    directories_break = true;
    assert_int_equal(read_process("cannot be read to the end", strerror(EIO)), 1);
    directories_break = false;
    errno = EIO; /* an earlier error is not the directory's */
    assert_int_equal(read_process(NULL, NULL), 1);
    comm_free(comm);
    assert_int_equal(read_process("has no communicator", "process"), 0);
}

static void a_wrong_variable_is_an_error_at_once(void **state)
{
    (void)state;
    struct tutti_comm *comm = comm_make();
    recorder_close(&comm->recorder);
    setenv("TUTTI_DUMP", "/no/such/directory/%r", 1);
    assert_int_equal(recorder_open(&comm->recorder, "unit", RANK, WORLD_SIZE, 0),
                     TUTTI_ERR_INVALID);
    assert_non_null(strstr(tutti_last_error(), "TUTTI_DUMP: "));
    unsetenv("TUTTI_DUMP");
    comm_free(comm);
}

static void files_are_private_and_replace_links(void **state)
{
    (void)state;
    char path[256], other[256], text[16] = "";
    struct stat info;
    path_make(path, "dump");
    path_make(other, "other");
    int fd = open(other, O_WRONLY | O_CREAT, 0644);
    assert_int_equal(write(fd, "mine", 4), 4);
    close(fd);
    assert_int_equal(symlink(other, path), 0);
    mode_t mask = umask(0);
    assert_int_equal(recorder_save(path, "{}", 2), TUTTI_OK);
    umask(mask);
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISREG(info.st_mode));
    assert_int_equal(info.st_mode & 07777, 0600);
    assert_int_equal(info.st_size, 2);
    fd = open(other, O_RDONLY);
    assert_int_equal(read(fd, text, sizeof text), 4);
    close(fd);
    assert_string_equal(text, "mine");
    assert_int_equal(unlink(path), 0);
    assert_int_equal(unlink(other), 0);

    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(recorder_save(path, "{}", 2), TUTTI_ERR_INVALID); /* and leaves nothing */
    assert_int_equal(rmdir(path), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_last_1024_are_kept),
        cmocka_unit_test(an_end_finds_its_entry_or_none),
        cmocka_unit_test(copies_stand_still_while_it_is_written),
        cmocka_unit_test(what_differs_between_two_copies_is_dropped),
        cmocka_unit_test(the_json_says_what_is_there),
        cmocka_unit_test(any_page_gives_json),
        cmocka_unit_test(what_a_device_did_is_read),
        cmocka_unit_test(a_mark_that_is_being_written_is_none),
        cmocka_unit_test(who_is_waited_for_is_told),
        cmocka_unit_test(nonsense_is_refused),
        cmocka_unit_test(patterns_are_paths),
        cmocka_unit_test(one_that_cannot_be_read_hides_no_other),
        cmocka_unit_test(one_that_cannot_be_opened_is_told),
        cmocka_unit_test(a_table_that_cannot_be_read_on_is_told),
        cmocka_unit_test(a_wrong_variable_is_an_error_at_once),
        cmocka_unit_test(files_are_private_and_replace_links),
    };
    return cmocka_run_group_tests(tests, folder_create, folder_remove);
}
