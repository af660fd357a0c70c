#!/bin/bash
# `tutti mpi`: it starts a program with the library preloaded, and says so.
# usage: program.sh TUTTI LIBRARY
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/../tools/common.sh"
tutti=$1 library=$(realpath "$2")

status 0 "$tutti" mpi --path
out "^$library\$"
status 0 "$tutti" mpi --report -- sh -c 'echo "$LD_PRELOAD $TUTTI_MPI_REPORT"'
err "^tutti mpi: LD_PRELOAD=$library\$"
err '^tutti mpi: TUTTI_MPI_REPORT=1$'
out "^$library 1\$"
status 64 "$tutti" mpi
err 'a program is missing: tutti mpi -- mpirun'
status 127 "$tutti" mpi -- ./no-such-program
err '^tutti mpi: ./no-such-program: '
finish
