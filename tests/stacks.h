/* SPDX-License-Identifier: MIT */
/* Writes the stacks of a process's threads to stderr. */
#ifndef TESTS_STACKS_H
#define TESTS_STACKS_H

/* From here on SIGQUIT, which scripts/gpu-check sends when a test's time is up, has this process,
 * and the children that it forks, write their stacks before it ends them. */
void stacks_on_quit(void);
/* Behind stacks_on_quit(); from a signal handler, too. */
void stacks_write(void);

#endif
