#!/bin/bash
# Every option that --help shows stands in the command's man page, and the other way round.
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/common.sh"
tutti=$1

for command in bench diagnose dump info run tune; do
    page=man/tutti-$command.1
    "$tutti" "$command" --help | grep -oE '^ +(-[a-zA-Z?], )?(--[a-z_-]+)' | grep -oE -- '--[a-z_-]+' |
        grep -vxE -- '--(help|usage|version)' | sort -u >"$work/help"
    sed 's/\\-/-/g' "$page" | grep -E '^\.BR? ' | grep -oE -- '--[a-z_-]+' | sort -u >"$work/page"
    diff "$work/help" "$work/page" >"$work/difference" ||
        { complain "$page (>) and --help (<) differ"; cat "$work/difference"; }
    "$tutti" "$command" --help >"$work/long" 2>&1
    status 0 "$tutti" "$command" -h
    diff "$work/long" "$work/out" >/dev/null || complain "$command -h is not --help"
    [[ -s $work/help ]] || complain "$command --help shows no option"
done
status 0 "$tutti" -h
out '^ +diagnose  say from dumps'
finish
