#!/bin/bash
# Rooms and their order: a file includes its own room and the rooms above it in CONTRIBUTING.md's list. src/ itself
# holds nothing but CMakeLists.txt. The program `tutti` includes public headers, its own, and the headers of src/base/
# that are listed here.
set -euo pipefail

mapfile -t rooms < <(sed -n 's/^| `src\/\([a-z]*\)\/`.*/\1/p' CONTRIBUTING.md)
rooms=(include "${rooms[@]}")

declare -A place
for ((i = 0; i < ${#rooms[@]}; i++)); do
    place[${rooms[i]}]=$i
done

# find_room FILE: sets room to the room that the file lies in. No function here starts a process: there are a
# thousand includes.
find_room() {
    room=${1#src/}
    room=${room%%/*}
}

# find_target FILE INCLUDED: sets target to the file that the include line means.
find_target() {
    for target in "${1%/*}/$2" "src/$2" "include/$2"; do
        [[ ! -e $target ]] || return 0
    done
    target=
}

bad=0
complain() {
    echo "$1"
    bad=1
}

while read -r file; do
    complain "$file: lies in src/ itself: move the file into a room"
done < <(find src -maxdepth 1 -type f ! -name CMakeLists.txt)
while read -r file; do
    find_room "$file"
    own=$room
    [[ -n ${place[$own]-} ]] || { complain "$file: $own is no room: list it in CONTRIBUTING.md"; continue; }
    while IFS=: read -r line included; do
        find_target "$file" "$included"
        [[ -n $target ]] || { complain "$file:$line: includes \"$included\", which is nowhere"; continue; }
        [[ $target != *..* ]] || target=$(realpath --relative-to=. "$target")
        find_room "$target"
        [[ -n ${place[$room]-} && ${place[$room]} -le ${place[$own]} ]] ||
            complain "$file:$line: $own includes $target, of a room that stands below it"
    done < <(grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "$file" |
        sed -E 's/^([0-9]+):[^"]*"([^"]*)".*/\1:\2/')
done < <(find include src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort)

# What library and program share: the bytes and the path of a dump, the key of a rank that has ended, MPI's handles.
shared="base/ended_key.h base/rank_set.h base/record.h base/record_path.h base/signature.h base/ticks.h fabric/mpi_handles.h"
while IFS=: read -r file line included; do
    [[ -e tools/$included || $included == tutti/* || $included == commit.h || " $shared " == *" $included "* ]] ||
        complain "$file:$line: the program includes \"$included\", which is neither public nor shared"
done < <(grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' tools/*.[ch] tools/*.cc |
    sed -E 's/^([^:]+:[0-9]+):[^"]*"([^"]*)".*/\1:\2/')
exit "$bad"
