/* SPDX-License-Identifier: MIT */
/* How ranks come together that have agreed to: those of a shrink, the members of a process group.
 */
#include "bootstrap/agree.h"
#include "comm/hierarchy.h"
#include "store/store.h"

#include <stdlib.h>

enum tutti_status comm_assemble_agreed(struct tutti_comm *comm, const struct agree *agree,
                                       int which)
{
    struct tutti_store store = store_bounded(agree->store, agree->deadline, &agree->interrupt);
    const struct comm_assembly how = {.store = &store,
                                      .agreed = &agree->decision.meetings[which],
                                      .interrupt = &agree->interrupt,
                                      .deadline = agree->deadline,
                                      .join_hosts = hierarchy_open};
    char prefix[AGREE_KEY_BYTES]; /* communicators of other agreements may have this name */
    agree_key_make(agree, "meeting", which, prefix);
    enum tutti_status status = store_prefix_add(&store, prefix);
    if (status != TUTTI_OK)
        return status;
    status = comm_assemble(comm, &how);
    free(store.prefix);
    return status;
}
