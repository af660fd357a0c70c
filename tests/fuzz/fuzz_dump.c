/* SPDX-License-Identifier: MIT */
/* Dumps as `tutti diagnose` reads them: one, then beside a sound one of the same communicator. What
 * is accepted is in range, and gets a verdict whose culprits are ranks. */
#include "diagnose.h"
#include "fuzz.h"

#include <string.h>

/* Rank 1 of the communicator that most inputs are of; waits for rank 2. */
#define SIGNATURE                                                                                  \
    "\"collective\":\"all_reduce\",\"count\":4,\"dtype\":\"float32\",\"op\":\"sum\","              \
    "\"algorithm\":\"ring\",\"parameter\":9"
static const char sound_text[] =
    "{\"tutti_dump\":1,\"version\":\"0.1.0\",\"name\":\"a\",\"generation\":1,\"rank\":1,"
    "\"world_size\":3,\"pid\":7,\"taken_ns\":5,\"phase\":\"met\",\"peers\":[{\"rank\":2,"
    "\"life\":\"dead\",\"entered\":4}],\"waits\":{\"rank\":2,\"sequence\":5,\"absent\":[2]},"
    "\"fault\":null,\"operations\":[{\"kind\":\"call\",\"tag\":3,\"sequence\":5,"
    "\"state\":\"running\"," SIGNATURE "}]}";

static void check_dump(const struct dump *dump)
{
    fuzz_check(dump->world_size >= 1 && dump->world_size <= WORLD_RANKS);
    fuzz_check(dump->rank >= 0 && dump->rank < dump->world_size);
    fuzz_check(dump->awaits >= -1 && dump->awaits < dump->world_size);
    fuzz_check(dump->count <= DIAGNOSE_OPERATIONS_MOST);
    for (size_t i = 0; i < dump->count; i++)
        fuzz_check(strlen(dump->operations[i].what) < DIAGNOSE_TEXT_BYTES);
}

static void check_verdict(struct dump *const *dumps, size_t count)
{
    struct verdict verdict;
    fuzz_check(diagnose_judge(dumps, count, &verdict));
    fuzz_check(verdict.count >= 0 && verdict.count <= verdict.world_size);
    for (int i = 0; i < verdict.count; i++) {
        const struct culprit *culprit = &verdict.culprits[i];
        fuzz_check(culprit->rank >= 0 && culprit->rank < verdict.world_size);
        fuzz_check(strlen(culprit->own) < DIAGNOSE_TEXT_BYTES);
        fuzz_check(strlen(culprit->others) < DIAGNOSE_TEXT_BYTES);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct dump sound;
    struct dump dump, *dumps[] = {&dump, &sound};
    char problem[256];
    if (!sound.root) {
        fuzz_check(dump_parse(sound_text, sizeof sound_text - 1, &sound, problem, sizeof problem));
    }
    if (!dump_parse((const char *)bytes, size, &dump, problem, sizeof problem)) {
        fuzz_check(memchr(problem, 0, sizeof problem) && problem[0]);
        return 0;
    }
    check_dump(&dump);
    check_verdict(dumps, 1);
    if (same_communicator(&dump, &sound) && dump.rank != sound.rank)
        check_verdict(dumps, 2);
    dump_free(&dump);
    return 0;
}
