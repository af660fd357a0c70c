/* SPDX-License-Identifier: MIT */
/* Log lines in the field's usual form: host:pid:tid [rank] TUTTI INFO text. */
#ifndef TUTTI_LOG_H
#define TUTTI_LOG_H

#include "tutti/tutti.h"

/* rank is -1 where none is known. Costs one load when the level is off. */
void log_write(enum tutti_log_level level, int rank, const char *format, ...) TUTTI_PRINTF(3, 4);

#endif
