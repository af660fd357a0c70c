/* SPDX-License-Identifier: MIT */
/*
 * A recorder's page as another process may have filled it, and the text that is made of it:
 * refused, or JSON. The input lies over a sound page: its first part over the head, the rest over
 * entries, and over a device's marks.
 */
#include "fuzz.h"
#include "record/recorder_internal.h"

#include <jansson.h>
#include <string.h>

enum { HEAD_BYTES = 320 };

/* The beginning of a page: magic, version, library, process, rank, world size. */
static const char sound[] = "rf-ittut\2\0\0\0\x64\0\0\0\7\0\0\0\1\0\0\0\3\0\0\0";

/* jansson's numbers have a sign: the values, which are anything, are halved. */
static void page_halve(struct record_page *page)
{
    for (size_t i = 0; i < RECORD_ENTRIES; i++) {
        page->entries[i].number >>= 1;
        page->entries[i].sequence >>= 1;
    }
    page->fault.sequence >>= 1;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct record_page page;
    struct recorder_snapshot *snapshot;
    char *text;
    size_t length, head = size < HEAD_BYTES ? size : HEAD_BYTES;
    memset(&page, 0, sizeof page);
    memcpy(&page, sound, sizeof sound - 1);
    memcpy(&page, bytes, head);
    memcpy(page.entries, bytes + head, size - head);
    const size_t marks = sizeof page.device_trace.marks - sizeof page.device_trace.marks[0];
    memcpy(&page.device_trace.marks[1], bytes + head, size - head < marks ? size - head : marks);
    memcpy(&page.fault, bytes, head < sizeof page.fault ? head : sizeof page.fault);
    page_halve(&page);
    if (recorder_read(&page, "call", &snapshot) != TUTTI_OK) {
        fuzz_check(!snapshot);
        return 0;
    }
    fuzz_check(snapshot->marks >= 0 && snapshot->marks <= DEVICE_TRACE_MARKS);
    fuzz_check(snapshot->count >= 0 && snapshot->count <= RECORD_ENTRIES);
    fuzz_check(recorder_json(snapshot, &text, &length) == TUTTI_OK);
    json_t *root = json_loadb(text, length, JSON_REJECT_DUPLICATES, NULL);
    fuzz_check(root != NULL);
    json_decref(root);
    free(text);
    free(snapshot);
    return 0;
}
