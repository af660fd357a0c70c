/* SPDX-License-Identifier: MIT */
/* Ids whose store ranks of other hosts reach, too. Such ranks only meet there. */
#ifndef TUTTI_UNIQUE_ID_H
#define TUTTI_UNIQUE_ID_H

#include "tutti/tutti.h"

#include <netinet/in.h>

/* As tutti_unique_id_create(), with a store on all interfaces of this host, which other hosts reach
 * at `address`; 0: for this host alone, whatever the environment says. The first id of a process
 * decides. */
enum tutti_status unique_id_make(struct in_addr address, struct tutti_unique_id *id);
/* Opens the store of the id's ranks, whose keys "open" and "done" belong to unique_id.c. Returns as
 * tutti_comm_create_from_id(); DECLINED if this host cannot reach it. */
enum tutti_status unique_id_store(const struct tutti_unique_id *id, tutti_store_t **store);

#endif
