/* SPDX-License-Identifier: MIT */
/*
 * One rank of a program over MPI. mpi.sh starts it in three ways: the program is linked with the
 * MPI (linked.c), has opened it at run time, or has none (alone.c).
 */
#ifndef TESTS_FABRIC_RANK_H
#define TESTS_FABRIC_RANK_H

/* argv: PROGRAM STORE URL. Runs all patterns between the ranks that a launcher has started, meeting
 * in the store at the file STORE. `ends`: also those after which MPI is not finalised by a fabric.
 * If STORE is "-", opens and closes the fabric alone. Returns the exit status; after a failure the
 * message is on stderr. */
int fabric_rank(char **argv, int ends);

#endif
