#!/bin/bash
# Includes point downward only: a file may include its own layer and the layers below it.
set -euo pipefail

# Layer, name, files. Two names on one layer do not see each other.
layers='
0 public  include/tutti/*
1 base    src/error.? src/fault.? src/log.? src/names.? src/env.? src/op.? src/options.? src/deadline.? src/reminder.h src/dtype.h src/interrupt.h
1 base    src/topology.? src/topology_file.? src/order.? src/point.? src/spin.? src/numeric.? src/ring_cut.? src/layout.? src/signature.? src/timeout_source.? src/text.?
1 base    src/record.? src/ticks.? src/trail.?
2 ipc     src/ipc/*
3 store   src/store/*
4 backend src/cpu/* src/cuda/* src/algo.? src/launch.? src/backend.?
 5 comm    src/comm.? src/comm_setup.? src/finalize.? src/meet.? src/meet_* src/host.? src/shrink.? src/survivors.? src/plan.? src/symm.? src/symm_* src/links.?
 5 comm    src/recorder.? src/recorder_* src/work.? src/info.?
6 above   src/pg/* src/fabric/*
7 api     src/api.?
'

# find_layer FILE: sets found to its layer and name, or to nothing. No function here starts a process: there are a
# thousand includes.
declare -A known
find_layer() {
    local layer name patterns pattern
    found=${known[$1]-}
    [[ -z $found ]] || return 0
    while read -r layer name patterns; do
        set -f
        for pattern in $patterns; do
            # shellcheck disable=SC2053 # a pattern is what is wanted
            if [[ $1 == $pattern ]]; then
                found="$layer $name" known[$1]=$found
                return
            fi
        done
    done <<<"$layers"
}

# find_target FILE INCLUDED: sets target to the file that the include line means, or to nothing for a system header.
find_target() {
    for target in "${1%/*}/$2" "src/$2" "include/$2"; do
        [[ ! -e $target ]] || return 0
    done
    target=
}

bad=0
while read -r file; do
    find_layer "$file"
    read -r layer name <<<"$found"
    if [[ -z $layer ]]; then
        echo "$file: has no layer: give it one in tests/build/includes.sh"
        bad=1
        continue
    fi
    while IFS=: read -r line included; do
        find_target "$file" "$included"
        [[ -n $target ]] || { echo "$file:$line: includes \"$included\", which is nowhere"; bad=1; continue; }
        [[ $target != *..* ]] || target=$(realpath --relative-to=. "$target")
        find_layer "$target"
        read -r below other <<<"$found"
        if [[ -z $below ]] || [[ $name != "$other" && $below -ge $layer ]]; then
            echo "$file:$line: $name (layer $layer) includes $target (${other:-no layer} ${below:-})"
            bad=1
        fi
    done < <(grep -nE '^[[:space:]]*#[[:space:]]*include[[:space:]]*"' "$file" |
        sed -E 's/^([0-9]+):[^"]*"([^"]*)".*/\1:\2/')
done < <(find include src -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' | sort)
exit "$bad"
