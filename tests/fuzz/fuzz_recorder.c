/* SPDX-License-Identifier: MIT */
/*
 * A recorder's page as a hostile process or file may have it: refused, or JSON, which `tutti
 * diagnose` then reads or refuses. The input lies over a sound page: its first part over the head,
 * the rest over entries, and over a device's marks.
 */
#include "diagnose.h"
#include "dump.h"
#include "fuzz.h"

/* The inputs' version stands for today's, so that inputs remain of use when it changes. */
enum { HEAD_BYTES = 320, INPUT_VERSION = 2 };

static size_t least(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* The JSON survives being written and read. */
static void check_json(const struct record_page *page)
{
    json_t *root = dump_page_to_json(page);
    char *text = json_dumps(root, 0);
    fuzz_check(text != NULL);
    json_t *again = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    fuzz_check(json_equal(root, again));
    json_decref(again);
    json_decref(root);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static const struct record_page sound = {.magic = RECORD_MAGIC,
                                             .version = RECORD_VERSION,
                                             .library = 100,
                                             .pid = 7,
                                             .rank = 1,
                                             .world_size = 3};
    static struct record_page page;
    char problem[256];
    const size_t head = least(size, HEAD_BYTES), rest = size - head;
    const size_t marks = sizeof page.device_trace.marks - sizeof page.device_trace.marks[0];
    page = sound;
    memcpy(&page, bytes, head);
    if (page.version == INPUT_VERSION)
        page.version = RECORD_VERSION;
    memcpy(page.entries, bytes + head, least(rest, sizeof page.entries));
    memcpy(&page.device_trace.marks[1], bytes + head, least(rest, marks));
    memcpy(&page.fault, bytes, least(head, sizeof page.fault));
    struct record_page *parsed = dump_page_parse(&page, sizeof page, problem, sizeof problem);
    if (parsed)
        check_json(parsed);
    else
        fuzz_check(memchr(problem, 0, sizeof problem) && problem[0]);
    free(parsed);
    struct dump dump;
    if (dump_parse((const char *)&page, sizeof page, &dump, problem, sizeof problem))
        dump_free(&dump);
    else
        fuzz_check(memchr(problem, 0, sizeof problem) && problem[0]);
    return 0;
}
