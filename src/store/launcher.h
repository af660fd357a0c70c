/* SPDX-License-Identifier: MIT */
/* What the launchers leave in the environment. */
#ifndef TUTTI_STORE_LAUNCHER_H
#define TUTTI_STORE_LAUNCHER_H

#include "tutti/tutti.h"

/*
 * A name for the job that this process belongs to: equal on its ranks of this host, different for
 * any two jobs that run at the same time, of letters, digits and ".-_" only. tutti_info_launcher()
 * has filled *launcher. Returns SYSTEM if neither the environment nor /proc has what is needed.
 */
enum tutti_status launcher_job(const struct tutti_launcher *launcher, char *job, size_t size);

#endif
