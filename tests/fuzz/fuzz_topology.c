/* SPDX-License-Identifier: MIT */
/* The topology file: what is accepted is a whole matrix, which has a verdict; what is refused says
 * where. */
#include "fuzz.h"
#include "topology/topology_file.h"

#include <string.h>

static void check_matrix(const struct topology_file *file)
{
    static struct topology topology;
    const struct topology_matrix *matrix = &file->matrix;
    fuzz_check(matrix->size >= 1 && matrix->size <= TUTTI_MAX_RANKS);
    for (int i = 0; i < matrix->size; i++)
        for (int j = 0; j < matrix->size; j++)
            fuzz_check(matrix->links[i][j] >= TOPOLOGY_UNKNOWN_LINKS &&
                       matrix->links[i][j] <= TOPOLOGY_LINKS_MOST);
    if (matrix->size > 8) /* the search for a ring may take its time */
        return;
    topology_recognise(matrix, &topology);
    fuzz_check(memchr(topology.reason, 0, sizeof topology.reason) != NULL && topology.reason[0]);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t size)
{
    static struct topology_file file;
    char *text = malloc(size ? size : 1); /* exact, so that a read past the end is seen */
    if (!text)
        return 0;
    memcpy(text, bytes, size);
    if (topology_parse(text, size, "fuzz", &file) == TUTTI_OK)
        check_matrix(&file);
    else
        fuzz_check(strncmp(tutti_last_error(), "topology file fuzz, line ", 25) == 0);
    free(text);
    return 0;
}
