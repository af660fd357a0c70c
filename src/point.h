/* SPDX-License-Identifier: MIT */
/*
 * Named points inside operations, where the fault tests kill, stop or delay a rank. They exist only
 * in the library that those tests are linked with (TUTTI_POINTS); elsewhere they are nothing.
 */
#ifndef TUTTI_POINT_H
#define TUTTI_POINT_H

#ifdef TUTTI_POINTS
/* Set by a test before any rank runs; called with the name of each point that a rank passes. */
extern void (*point_hook)(const char *name);
#define POINT(name) (point_hook ? point_hook(name) : (void)0)
#else
#define POINT(name) ((void)0)
#endif

#endif
