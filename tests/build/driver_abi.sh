#!/bin/bash
# driver_abi.sh CC [FOLDER]
# src/cuda/driver/driver_types.h, driver_abi.h and tests/cuda/driver_more.h say the same as the cuda.h in FOLDER: each
# number, each size of a type, each offset and size of a member, and each function's type.
set -euo pipefail
cc=$1 folder=${2:-}
if [[ -z $folder ]]; then
    echo "no cuda.h to compare with: this build has no nvcc, which comes with one"
    exit 77
fi
types=src/cuda/driver/driver_types.h calls=tests/cuda/driver_more.h
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Lines "NUMBER name", "TYPE name" and "MEMBER type name" of what the header declares.
awk '
    /^typedef (struct|union|enum) \{$/ || /^enum \{$/ { count = 0; inside = 1; next }
    inside && /^\}/ {
        inside = 0
        if (!match($2, /^[A-Za-z0-9_]+;$/)) next # an enum without a name
        type = substr($2, 1, length($2) - 1)
        print "TYPE", type
        for (i = 0; i < count; i++) print "MEMBER", type, members[i]
        next
    }
    inside && /^    CU[A-Z0-9_]+ = [0-9]+,/ { print "NUMBER", $1; next }
    inside {
        sub(/ *\/\*.*/, "")
        if (!match($0, /[A-Za-z0-9_]+(\[[0-9]+\])?;$/)) { print "driver_types.h: cannot read: " $0 >"/dev/stderr"; exit 1 }
        member = substr($0, RSTART, RLENGTH - 1); sub(/\[.*/, "", member)
        members[count++] = member
        next
    }
    /^typedef .*\(\*[A-Za-z]+\)\(/ { match($0, /\(\*[A-Za-z]+/); print "TYPE", substr($0, RSTART + 2, RLENGTH - 2); next }
    /^typedef / { name = $NF; gsub(/[*;]/, "", name); print "TYPE", name }
    /^#define CU/ { print "NUMBER", $2 }
' "$types" "$calls" >"$work/list"

# What our headers say, as assertions about the other one.
{
    printf '#include "%s"\n#include <stdio.h>\nint main(void)\n{\n' "$calls"
    while read -r kind name member; do
        case $kind in
        NUMBER) echo "printf(\"SAME((unsigned long)$name, %luul);\\n\", (unsigned long)$name);" ;;
        TYPE) echo "printf(\"SAME(sizeof($name), %zu);\\nSAME(_Alignof($name), %zu);\\n\", sizeof($name), _Alignof($name));" ;;
        MEMBER) echo "printf(\"SAME(offsetof($name, $member), %zu);\\nSAME(sizeof((($name *)0)->$member), %zu);\\n\"," \
            "offsetof($name, $member), sizeof((($name *)0)->$member));" ;;
        esac
    done <"$work/list"
    printf '}\n'
} >"$work/ours.c"
"$cc" -std=c11 -Wall -Wextra -Werror -I. -Isrc "$work/ours.c" -o "$work/ours"
{
    # Older functions are declared, too, and no name stands for another version's.
    printf '#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n#include <stddef.h>\n#include <stdint.h>\n'
    # clang folds a pointer's number only so.
    printf '#define SAME(theirs, ours) _Static_assert(__builtin_constant_p(theirs) ? (theirs) == (ours) : 0, \\\n'
    printf '    #theirs " is not " #ours)\n'
    "$work/ours"
    # A second declaration of each function, with the types of cuda.h: the compiler wants them to agree.
    printf '#define TUTTI_CUDA_DRIVER_TYPES_H\n#include "%s"\n' "$calls"
} >"$work/theirs.c"
"$cc" -std=c11 -Wall -Wextra -Werror -fsyntax-only -I. -Isrc -isystem "$folder" "$work/theirs.c"

# Each function of ours is one of theirs: a name that cuda.h lacks would be a first declaration.
bad=0
printf '#define __CUDA_API_VERSION_INTERNAL\n#include <cuda.h>\n' | "$cc" -E -P -isystem "$folder" -x c - >"$work/theirs.i"
while read -r name; do
    grep -qw "$name" "$work/theirs.i" || { echo "$calls: $name() is not in $folder/cuda.h"; bad=1; }
done < <("$cc" -E -P -Isrc -x c "$calls" | grep -oE '\bcu[A-Z][A-Za-z0-9_]*' | sort -u)
printf '%s: %d numbers, %d types, %d members\n' "$folder/cuda.h" "$(grep -c ^NUMBER "$work/list")" \
    "$(grep -c ^TYPE "$work/list")" "$(grep -c ^MEMBER "$work/list")"
[[ $(wc -l <"$work/list") -ge 100 ]] || { echo "$types could not be read"; bad=1; }
exit "$bad"
