/* SPDX-License-Identifier: MIT */
/* The log. A line reads "host:pid:tid [rank] TUTTI INFO text". */
#ifndef TUTTI_LOG_H
#define TUTTI_LOG_H

#include "tutti/tutti.h"

/* rank is -1 where no rank is known. Costs a few loads while the level is off. */
void log_write(enum tutti_log_level level, int rank, const char *format, ...) TUTTI_PRINTF(3, 4);

/* Sets the level that holds if TUTTI_DEBUG does not set one. Call it before the first line. */
void log_level_default(enum tutti_log_level level);

#endif
