#!/bin/bash
# libtutti-mpi.so exports the collectives that it serves, in both forms but for the barrier, and no other name. It needs
# no library but libc, and so no MPI.
# usage: symbols.sh LIBRARY
set -euo pipefail
library=$1
served=(Allgather Allgatherv Allreduce Alltoall Alltoallv Bcast Gather Gatherv Reduce Reduce_scatter Reduce_scatter_block
    Scatter Scatterv)
expected=$({ printf 'MPI_%s\n' "${served[@]}" Barrier; printf 'MPI_%s_c\n' "${served[@]}"; } | LC_ALL=C sort)
diff <(echo "$expected") <(nm -D --defined-only "$library" | awk '{ print $3 }' | LC_ALL=C sort) ||
    { echo "the exported names differ"; exit 1; }
needed=$(readelf -d "$library" | sed -n 's/.*NEEDED.*\[\(.*\)\]/\1/p' | grep -vE '^(libc|libm|ld-linux[^.]*)\.so' || true)
[[ -z $needed ]] || { echo "needs $needed"; exit 1; }
