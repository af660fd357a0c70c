/* SPDX-License-Identifier: MIT */
/* What the launchers leave in the environment. */
#ifndef TUTTI_STORE_LAUNCHER_H
#define TUTTI_STORE_LAUNCHER_H

#include "tutti/tutti.h"

/*
 * A name for the job that this process belongs to: equal on its ranks of this host, different for
 * any two jobs that run at the same time, of letters, digits and ".-_" only. [in] launcher  as
 * tutti_info_launcher() filled it. Returns SYSTEM when neither the environment nor /proc tells.
 */
enum tutti_status launcher_job(const struct tutti_launcher *launcher, char *job, size_t size);

#endif
