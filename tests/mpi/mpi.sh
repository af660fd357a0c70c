#!/bin/bash
# mpi.sh MPI CC LIBRARY
# check.c with one MPI, its collectives served by the preloaded LIBRARY: two or three ranks, then four on two "hosts".
# By its report the library has served each function.
set -euo pipefail
arguments=("$@")
mpi=$1 cc=$2 preload=$(realpath "$3")
. scripts/mpis.sh

# All ends with this script, and files that an MPI leaves in /dev/shm go.
user=()
[[ $(id -u) == 0 ]] || user=(--user --map-root-user)
unshare=(unshare "${user[@]}" --mount --pid --fork --kill-child --mount-proc)
if [[ -z ${MPI_INSIDE:-} ]] && "${unshare[@]}" true 2>/dev/null; then
    MPI_INSIDE=1 exec "${unshare[@]}" "$0" "${arguments[@]}"
fi
[[ -z ${MPI_INSIDE:-} ]] || mount -t tmpfs shm /dev/shm
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export TMPDIR=$tmp OMPI_MCA_mpi_yield_when_idle=1
unset ${!TUTTI_@} RANK WORLD_SIZE

# Without a copy by the kernel a message needs the progress of its sender.
export OMPI_MCA_btl_vader_single_copy_mechanism=none OMPI_MCA_smsc=^cma,xpmem,knem UCX_TLS=self,posix,sysv \
    UCX_POSIX_USE_PROC_LINK=n MPIR_CVAR_CH4_CMA_ENABLE=0
case $mpi in
openmpi | openmpi5) options=(--allow-run-as-root --oversubscribe --bind-to none) ;;
mpich | mpich5) options=(-launcher fork) ;;
intelmpi) options=(-launcher fork) intel+=(I_MPI_FABRICS=shm) ;;
esac
if ! command -v "${compile[0]}" >/dev/null || [[ $mpi == intelmpi && ! -e .rivals/mpich/include/mpi.h ]]; then
    skip "no compiler of this MPI"
fi
"${compile[@]}" -O1 -o "$tmp/check" tests/mpi/check.c

# runs RANKS SERVERS ARGUMENT...: the program passes, and those in SERVERS (a pattern) have served each function.
runs() {
    local ranks=$1 servers=$2 start=$EPOCHREALTIME server
    shift 2
    env "${intel[@]}" TUTTI_MPI_REPORT=1 LD_PRELOAD="$preload" \
        timeout 100 "$launcher" "${options[@]}" -n "$ranks" "$tmp/check" "$@" >"$tmp/out" 2>&1 ||
        { cat "$tmp/out"; echo "failed: $ranks ranks $*"; exit 1; }
    grep -vE '^(MPI|function)' "$tmp/out" || true
    echo "$ranks ranks $*: $((${EPOCHREALTIME/./} - ${start/./})) us"
    for server in $servers; do
        [[ $(awk -v server="$server" '$2 == server && $3 > 0 { print $1 }' "$tmp/out" | sort -u | wc -l) == 14 ]] ||
            { cat "$tmp/out"; echo "failed: $server has not served each function: $ranks ranks $*"; exit 1; }
    done
}
ranks=3
[[ $mpi != mpich ]] || ranks=2 # its ranks never give their core away
runs "$ranks" "tutti mpi"
runs 4 "tutti mpi" hosts
TUTTI_TIMEOUT_MS=800 runs 2 "" late
