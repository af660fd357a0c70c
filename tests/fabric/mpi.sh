#!/bin/bash
# mpi.sh MPI CC ALONE LIBRARY...
# The fabric over one MPI: four ranks on two "hosts" (scripts/two-hosts.sh). The bytes between these are counted.
# ALONE is the program without MPI; LIBRARY... are the archives of the program that this script links with the MPI.
set -euo pipefail
arguments=("$@") spread=2,2
mpi=$1 cc=$2 alone=$3
shift 3
libraries=("$@")

. scripts/two-hosts.sh
# MPI_Finalize() of MPICH 4.0 over UCX's TCP hangs in three of four runs, of any program in which all pairs have exchanged
# messages: a rank that has closed its connections no longer answers the others. Its ranks leave without it, which its
# launcher takes for a failure at times: each that passes makes a file.
[[ $mpi != mpich ]] || export FABRIC_PASSED=$tmp/passed
# After a message that is longer than its receive, MPICH 4.0 ends the process, and Intel MPI the connection.
[[ ! $mpi =~ ^(mpich|intelmpi)$ ]] || export FABRIC_CUTS=1

# crosses WHAT PROGRAM ARGUMENT...: the patterns pass, and what is to cross the cable does.
crosses() {
    local before=$(received) start=$EPOCHREALTIME
    echo "== $1"
    rm -f "$tmp/store" "$tmp"/passed.*
    launch "${@:2}" || [[ $(compgen -G "$tmp/passed.*" | wc -l) == 4 ]] || { echo "failed: $1"; exit 1; }
    local bytes=$(($(received) - before))
    echo "$bytes bytes crossed, $((${EPOCHREALTIME/./} - ${start/./})) us"
    # Two messages of 8 MiB of each of 2 ranks to each of 2.
    [[ $bytes -gt $((8 * (8 << 20))) ]] || { echo "failed: $1: the bytes went another way"; exit 1; }
}

# refused TEXT [NAME=VALUE...] PROGRAM ARGUMENT...: the fabric is not opened, and the message has the text.
refused() {
    local text=$1 said
    shift
    said=$(env "$@" 2>&1) && { echo "failed: not refused: $*"; exit 1; }
    [[ $said == *"$text"* ]] || { echo "failed: expected \"$text\": $*: $said"; exit 1; }
}

if ! command -v "${compile[0]}" >/dev/null || [[ $mpi == intelmpi && ! -e .rivals/mpich/include/mpi.h ]]; then
    echo "skipped: linked: no compiler of this MPI"
else
    "${compile[@]}" -no-pie -fno-pic -Itests/fabric -o "$tmp/linked" tests/fabric/linked.c "${libraries[@]}" -lm -lpthread -ldl
    crosses "linked" "$tmp/linked" "$tmp/store" mpi:
fi
crosses "the launcher's" "$alone" "$tmp/store" mpi:
# The third case takes the standard interface where the MPI has it.
opened=${library%/*}/libmpi_abi.so.1
[[ $mpi != *open* && -e $opened ]] || opened=$library
crosses "opened at run time" "$alone" "$tmp/store" "mpi:$opened" "$opened"

# A second MPI, the wrong launcher, none, and a world that is not shared.
[[ ${#intel[@]} == 0 ]] || export "${intel[@]}"
foreign=PMI_RANK=0
[[ $mpi == *open* ]] || foreign=OMPI_COMM_WORLD_SIZE=2
echo "no MPI" >"$tmp/libmpi.so.12"
refused "unknown fabric" "$alone" - tcp:
refused "no MPI: the program has not loaded one" "$alone" - mpi:
refused "$tmp/libmpi.so.12" PMI_RANK=0 "$alone" - "mpi:$tmp/libmpi.so.12"
refused "has loaded another MPI, $library" "$alone" - "mpi:$tmp/libmpi.so.12" "$library"
refused "no launcher has started the process" "$alone" - mpi: "$library" -
refused "is not the MPI of" "$foreign" "$alone" - mpi: "$library" -
refused "is not the MPI of" "$foreign" "$alone" - "mpi:$library"
refused "was finalized" "$alone" - mpi: "$library" end
mkdir "$tmp/other" # two that start at once can both fail to make Open MPI's folder
TMPDIR=$tmp/other RANK=0 WORLD_SIZE=2 "$alone" "$tmp/store1" mpi: "$library" >/dev/null 2>&1 &
refused "MPI_COMM_WORLD" RANK=1 WORLD_SIZE=2 "$alone" "$tmp/store1" mpi: "$library"
[[ $mpi != mpich ]] || refused "found 1 rank" PMIX_RANK=0 SLURM_NTASKS=2 "$alone" - mpi: "$library" -
