/* SPDX-License-Identifier: MIT */
/*
 * Named points inside operations, at which the fault tests kill, stop or delay a rank. They exist
 * only in the build of the library for those tests (TUTTI_POINTS). Otherwise POINT() does nothing.
 */
#ifndef TUTTI_POINT_H
#define TUTTI_POINT_H

#ifdef TUTTI_POINTS
/* A test sets it before any rank runs. It is called with the name of each point a rank passes. */
extern void (*point_hook)(const char *name);
#define POINT(name) (point_hook ? point_hook(name) : (void)0)
#else
#define POINT(name) ((void)0)
#endif

#endif
