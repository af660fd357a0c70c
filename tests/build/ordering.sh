#!/bin/bash
# Every release of the library names itself in a comment, as do the acquires that it pairs with, and
# docs/ordering.md has a row for each: `| release | where | acquire | what |`, with nothing more.
#
# A name is a letter and a number, and a small letter if need be: P1, A1, Y3a. It stands in a comment
# on the line of the release or on one of the five lines before it.
#
# Releases are stores, and exchanges, compare-exchanges and additions that are not relaxed. The latter
# may be there for their being atomic alone: then their word has a row that says why,
# `| word | file | why |`, with the first two in backticks, and they need no name.
set -euo pipefail
page=docs/ordering.md
name='[A-Z][0-9]+[a-z]?'

bad=0
complain() {
    echo "$*"
    bad=1
}

# Prints FILE:LINE, `word`|`file` of what is not a store (else -), and the names in the comments near
# each release of the sources.
releases() {
    find src shim -name '*.[ch]' ! -path src/base/order.h -print0 | sort -z | xargs -0 awk -v name="$name" '
        FNR == 1 { for (i = 0; i < 6; i++) near[i] = "" }
        {
            comment = ""
            if (match($0, /\/\*.*/)) comment = substr($0, RSTART)
            else if (match($0, /^[ \t]*\*.*/) || inside) comment = $0
            inside = $0 ~ /\/\*/ ? $0 !~ /\*\// : inside && $0 !~ /\*\//
            for (i = 0; i < 5; i++) near[i] = near[i + 1]
            near[5] = comment
        }
        match($0, /order_(store_release|exchange|fetch_add|compare_exchange)_u(32|64)\([^,]*/) {
            found = ""
            call = substr($0, RSTART, RLENGTH)
            file = FILENAME
            sub(/^src\//, "", file)
            word = call
            sub(/.*[^A-Za-z0-9_]/, "", word)
            site = call ~ /^order_store/ ? "-" : "`" word "`|`" file "`"
            for (i = 5; i >= 0 && found == ""; i--) {
                rest = near[i]
                while (match(rest, "(^|[^A-Za-z0-9_])" name "([^A-Za-z0-9_]|$)")) {
                    word = substr(rest, RSTART, RLENGTH)
                    gsub(/[^A-Za-z0-9]/, "", word)
                    found = found " " word
                    rest = substr(rest, RSTART + RLENGTH - 1)
                }
            }
            print FILENAME ":" FNR, site found
        }'
}

# Prints the names in a column of the page's tables.
column() {
    awk -F '|' -v at="$(($1 + 1))" '/^\|/ && !/^\|-/ { print $at }' "$page" | grep -owE "$name" | sort -u
}

documented=$( (column 1; column 3) | sort -u)
unpaired=$(sed -nE 's/^\| (`[a-z_]+`) \| (`[a-z_/]+\.c`) \|.*/\1|\2/p' "$page")
sites=$(releases)
while read -r place site names; do
    [[ $site == - ]] || ! grep -qxF "$site" <<<"$unpaired" || continue
    [[ -n $names ]] || complain "$place: this release has no name, or a row for its word"
    for one in $names; do
        grep -qx "$one" <<<"$documented" || complain "$place: $page has no row for $one"
    done
done <<<"$sites"
for one in $unpaired; do
    grep -qF " $one" <<<"$sites" || complain "$page: there is no exchange or addition $one"
done

# What stands in the page is in the sources.
comments=$(find src shim \( -name '*.[ch]' -o -name '*.cu' -o -name '*.cuh' \) \
    -exec grep -hE '/\*|^ *\*|\*/' {} + | grep -owE "$name" | sort -u)
for one in $documented; do
    grep -qx "$one" <<<"$comments" || complain "$page: $one stands in no comment of src/"
done
[[ -n $documented ]] || complain "$page: no tables"
exit "$bad"
