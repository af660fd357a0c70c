#!/bin/bash
# exports.sh SHARED STATIC CC
# Both libraries export exactly the functions that the public headers declare.
set -euo pipefail
shared=$1 static=$2 cc=$3

# The preprocessor takes the comments away and leaves the word TUTTI_API once nothing defines it; what
# one header includes of the others is there already.
declared=$(sed '/define TUTTI_API/d; /include "tutti/d' include/tutti/*.h | "$cc" -E -P -x c - | tr '\n' ' ' | tr ';' '\n' |
    grep -oE 'TUTTI_API [^(]*\(' | grep -oE 'tutti_[a-z0-9_]+ *\($' | tr -d ' (' | sort)
repeated=$(uniq -d <<<"$declared")
[[ -z $repeated ]] || { echo "declared twice: $repeated"; exit 1; }
[[ $(wc -l <<<"$declared") -ge 10 ]] || { echo "the header could not be read"; exit 1; }

bad=0
compare() {
    local missing more
    missing=$(comm -23 <(echo "$declared") <(echo "$2"))
    more=$(comm -13 <(echo "$declared") <(echo "$2"))
    [[ -z $missing ]] || { echo "declared, but not exported by $1:" $missing; bad=1; }
    [[ -z $more ]] || { echo "exported by $1, but not declared:" $more; bad=1; }
}
compare "$shared" "$(nm -D --defined-only "$shared" | awk '$2 != "A" { print $3 }' | sort)"
compare "$static" "$(nm -g --defined-only "$static" | awk 'NF == 3 { print $3 }' | sort)"
exit "$bad"
