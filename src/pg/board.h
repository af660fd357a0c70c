/* SPDX-License-Identifier: MIT */
/*
 * What the ranks' threads say to each other, in the arenas: layout.h has the bytes. A rank
 * announces its operations to the leader, rank 0; the leader's verdicts go to all. Both are rings
 * of posts with one writer; who has read one says so, and only then is it written again. Whoever
 * has news for a rank rings its bell.
 *
 * Waking a thread costs more than all the rest of submitting. So a thread without news naps for a
 * while, an eighth of the time that it has been without, 1 ms at most, before it sleeps; who has
 * news but is in no hurry leaves it alone then, and who begins to wait wakes it.
 */
#ifndef TUTTI_PG_BOARD_H
#define TUTTI_PG_BOARD_H

#include "layout.h"

#include <stdbool.h>

/* A rank's view of all boards, for its own thread; but bells are for any. */
struct pg_boards {
    struct layout_board *of[LAYOUT_RANKS];
    struct layout_board *own;
    int rank;
    int size;
    bool spare; /* there are cores that its thread keeps from nobody */
    unsigned char pad[LAYOUT_LINE];
    int64_t quiet_since;          /* without news for this rank; 0: there has been some */
    uint32_t announced;           /* posts of this rank */
    uint32_t heard;               /* verdicts */
    uint32_t ruled;               /* the leader's: verdicts posted */
    uint32_t taken[LAYOUT_RANKS]; /* the leader's: announcements of each rank */
};

/* What the own bell has rung so far: to be read before one looks for news. */
uint32_t pg_board_bell(const struct pg_boards *boards);
/* News that nobody rings for, and which so has to be looked for. */
struct pg_watch {
    bool (*news)(const void *context);
    const void *context;
};

/* Returns once the own bell has rung since then, or there is such news (`watch` may be NULL), or
 * after ms. */
void pg_board_sleep(struct pg_boards *boards, uint32_t bell, int64_t ms,
                    const struct pg_watch *watch);
/* There has been news: it may come thick and fast. */
void pg_board_stir(struct pg_boards *boards);
/* There is news for the owner of the board. */
void pg_board_ring(struct layout_board *board);
/* The same of news that may wait for the end of a nap, if it is one. */
void pg_board_hint(struct layout_board *board);
/* Somebody waits for what the owner is to do. */
void pg_board_wake(struct layout_board *board);
void pg_board_ring_all(const struct pg_boards *boards);

/* All but the turn is the caller's. False, and nothing done, while there is no room. */
bool pg_board_announce(struct pg_boards *boards, const struct layout_announcement *announcement);
/* The leader: the next announcement of a rank, NULL if there is none; then, that it has been
 * taken. */
const struct layout_announcement *pg_board_next(const struct pg_boards *boards, int rank);
void pg_board_took(struct pg_boards *boards, int rank);
/* The leader, as pg_board_announce(). */
bool pg_board_rule(struct pg_boards *boards, const struct layout_verdict *verdict);
/* The next verdict, taken; false if there is none. */
bool pg_board_hear(struct pg_boards *boards, struct layout_verdict *verdict);
/* Who keeps the leader from answering a rank that has heard all so far: one that does not hear, for
 * which there is no room for more; else the leader itself. */
int pg_board_silent(const struct pg_boards *boards);
/* This rank takes no part any more, because of the rank `cause`: itself, or one that had left. */
void pg_board_leave(struct pg_boards *boards, int cause);
/* Because of which rank another one has left, -1 if all are there. What who left said before can be
 * read by now. */
int pg_board_left(const struct pg_boards *boards);

#endif
