#!/bin/bash
# Checks rules of the sources that no compiler checks:
# - length of files, functions, lines and opening comments; the licence line
# - every descriptor of the library goes through fd_lift()
# - only src/base/order.h and src/cuda/kernels/order.cuh name memory orders, atomics and fences
# - no pipe of a script has a reader that ends before its writer: with pipefail the writer's SIGPIPE is a failure
set -euo pipefail

bad=0
complain() {
    echo "$*"
    bad=1
}

# Prints FILE:LINE:TEXT of lines that match a pattern, outside comments of one line.
lines_with() {
    local pattern=$1
    shift
    grep -nHE -e "$pattern" "$@" | grep -vE '^[^:]*:[0-9]+:[[:space:]]*(/?\*|//)' || true
}

mapfile -t files < <(find include src shim python tools bench examples tests \
    -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' | sort)
for file in "${files[@]}"; do
    count=$(wc -l <"$file")
    [[ $count -lt 800 ]] || complain "$file: $count lines; split it (fewer than 800)"
    read -r first <"$file" || true # an empty one has none
    [[ $first == *"SPDX-License-Identifier: MIT"* ]] ||
        complain "$file:1: begin with /* SPDX-License-Identifier: MIT */"
done

long=$(awk '
    FNR == 2 { opening = /^\/\*/ }
    FNR > 1 && opening { if (/\*\//) { opening = 0; if (FNR > 26) print FILENAME ": " FNR - 1 " lines, more than 25" } }
    ' "${files[@]}")
[[ -z $long ]] || complain "opening comments to shorten:"$'\n'"$long"

# A function's braces stand alone at the start of their lines, those of a namespace as well.
long=$(awk '
    FNR == 1 { start = 0 }
    /^\{$/ && before !~ /^namespace/ { start = FNR }
    { before = $0 }
    /^\}/ && start {
        most = FILENAME ~ /\.cuh?$/ ? 120 : 60
        if (FNR - start - 1 > most) print FILENAME ":" start ": " FNR - start - 1 " lines, more than " most
        start = 0
    }' "${files[@]}")
[[ -z $long ]] || complain "functions to split:"$'\n'"$long"

long=$(grep -nHE '^.{101,}$' "${files[@]}" | cut -d: -f1,2 || true)
[[ -z $long ]] || complain "longer than 100 columns:"$'\n'"$long"

mapfile -t library < <(find src shim -name '*.[ch]' ! -path src/base/order.h | sort)
mapfile -t loaded < <(find src -name '*.[ch]' | sort) # programs load it late; libnccl.so.2 comes with the program
orders='__atomic_|__sync_|_Atomic|stdatomic|memory_order|_mm_[lms]fence|__ATOMIC_|"[^"]*\<(mfence|sfence|lfence|dmb|dsb)\>'
found=$(lines_with "$orders" "${library[@]}")
[[ -z $found ]] || complain "memory order named outside src/base/order.h:"$'\n'"$found"

mapfile -t kernels < <(find src -name '*.cu' -o -name '*.cuh' ! -path src/cuda/kernels/order.cuh | sort)
orders='asm volatile|__threadfence|__nv_atomic|cuda/atomic|__ld(g|cg|cv|acquire)|__st(wt|cg|release)'
found=$(lines_with "$orders" "${kernels[@]}" /dev/null)
[[ -z $found ]] || complain "memory order named outside src/cuda/kernels/order.cuh:"$'\n'"$found"

found=$(lines_with '\<(_Thread_local|__thread)\>|__attribute__\(\((constructor|destructor)' "${loaded[@]}")
[[ -z $found ]] || complain "thread-local storage or a constructor:"$'\n'"$found"

mapfile -t library < <(find src shim -name '*.[ch]' ! -path src/base/fd.c | sort)
opens='(=|\() *(\(int\))?(open|openat|fopen|opendir|socket|socketpair|accept4?|memfd_create|eventfd|epoll_create1|mkostemp|dup)\('
found=$(lines_with "$opens|SYS_pidfd_open|F_DUPFD" "${library[@]}" | grep -v 'fd_lift(' || true)
[[ -z $found ]] || complain "a descriptor that may be 0, 1 or 2: see src/base/fd.h:"$'\n'"$found"

mapfile -t scripts < <(grep -rlI pipefail .ci scripts bench tests | sort)
early='\|[[:space:]]*(grep[[:space:]]+(-[a-zA-Z-]+[[:space:]]+)*-[a-zA-Z]*[qm]|head\>)'
found=$(grep -nHE -e "$early" "${scripts[@]}" | grep -v 'early=' || true)
[[ -z $found ]] || complain "a reader that leaves its pipe early:"$'\n'"$found"
exit "$bad"
