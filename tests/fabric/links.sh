#!/bin/bash
# links.sh MPI CC STREAM
# What happens to a stream of all-reduces between two "hosts" (scripts/two-hosts.sh) when the cable goes down, and when a
# rank that has its host for itself is killed: an error that names ranks and hosts, on every rank. STREAM is the program.
set -euo pipefail
arguments=("$@") spread=2,1
mpi=$1 cc=$2 stream=$3

. scripts/two-hosts.sh

# A rank that ends leaves a shell behind, which says so. So the launcher does not end the others.
cat >"$tmp/shell" <<'SHELL'
#!/bin/sh
"$@"
echo "its process ended with $?" >"$2/ended.${OMPI_COMM_WORLD_RANK:-$PMI_RANK}"
sleep 100
SHELL
chmod +x "$tmp/shell"

# await WHAT RANK...: these ranks have made their files.
await() {
    local what=$1 rank tries
    shift
    for rank in "$@"; do
        for ((tries = 0; tries < 2000; tries++)); do
            [[ ! -s $folder/$what.$rank ]] || continue 2
            sleep 0.01
        done
        echo "failed: rank $rank is not $what; the ranks that are: $(cd "$folder" && echo *.?)"
        head -c 2000 "$folder/log" "$folder"/ended.* 2>/dev/null
        exit 1
    done
}

# begin NAME ARGUMENT...: a stream with these arguments.
begin() {
    folder=$tmp/$1
    mkdir "$folder"
    launch "$tmp/shell" "$stream" "$folder" "${@:2}" >"$folder/log" 2>&1 &
    job=$!
}

# end: all processes of the stream.
end() {
    kill -9 "$job" $(pgrep -f "$stream $folder") 2>/dev/null || true
    wait "$job" 2>/dev/null || true
}

# ended RANK TEXT...: the error of the rank has the texts.
ended() {
    local text said=$(<"$folder/ended.$1")
    echo "rank $1: $said"
    for text in "${@:2}"; do
        [[ $said == *"$text"* ]] || { echo "failed: expected \"$text\""; exit 1; }
    done
}

echo "== the cable goes down"
begin down 1500
await running 0 1 2
nsenter -t "${hosts[0]}" --net ip link set v0 down
await ended 0 1 2
for rank in 0 1 2; do
    ended $rank "rank 2" "host-a" "host-b"
done
nsenter -t "${hosts[0]}" --net ip link set v0 up
await_cable
end

echo "== a rank is killed while the others connect"
begin connect 60000 dies
await ended 0 1
for rank in 0 1; do
    ended $rank "rank 2 ended while the ranks met"
done
end

# Open MPI and MPICH may end a process at the end of a connection: then the others name that rank. One of 30 times Open MPI
# 4.1 stayed in one of its calls for ever: bound_events() in src/fabric/mpi_library.c.
echo "== a rank is killed"
begin killed 60000
await running 0 1 2
kill -9 "$(<"$folder/running.2")"
await ended 0 1
for rank in 0 1; do
    if [[ $(<"$folder/ended.$rank") == "its process ended with "* ]]; then
        echo "rank $rank: its MPI has ended the process"
    else
        ended $rank " is gone" " on host-"
    fi
done
