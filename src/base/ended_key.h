/* SPDX-License-Identifier: MIT */
/* The key by which `tutti run` tells ranks, in the store that it serves, that a rank has ended with
 * status 0. The value is empty. */
#ifndef TUTTI_ENDED_KEY_H
#define TUTTI_ENDED_KEY_H

#define ENDED_KEY "tutti.run/ended/%d"

#endif
