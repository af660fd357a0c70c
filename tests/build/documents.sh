#!/bin/bash
# Checks the documents:
# - Each link between documents leads somewhere.
# - README.md is short, and the documents together have at most 1,800 lines.
# - docs/tour.md names functions that are in the files to which it links.
# - tutti(7) has each environment variable that the library and the program read; README.md has no other one.
# - Each public function has a man page, made of the headers, which describes it and has no marks of comments left.
# - The program in README.md is the end of examples/all_reduce.c.
# - groff has no complaint about a man page.
set -euo pipefail

bad=0
mapfile -t documents < <(find . -name '*.md' -not -path './build/*' -not -path './.*' | sort)
for document in "${documents[@]}"; do
    while read -r link; do
        [[ -n $link && ! $link =~ ^(https?:|mailto:) ]] || continue
        target=$(dirname "$document")/${link%%#*}
        [[ -n ${link%%#*} ]] || target=$document
        if [[ ! -e $target ]]; then
            echo "$document: link to $link leads nowhere"
            bad=1
        elif [[ $link == *#* ]]; then
            # A heading's anchor: lower case, spaces to dashes, other marks dropped.
            grep -E '^#+ ' "$target" | sed -E 's/^#+ //' | tr '[:upper:] ' '[:lower:]-' |
                sed -E 's/[^a-z0-9_-]//g' | grep -xF -- "${link#*#}" >/dev/null ||
                { echo "$document: link to $link: no such heading"; bad=1; }
        fi
    done < <(grep -oE '\]\([^) ]+\)' "$document" | sed -E 's/^\]\((.*)\)$/\1/' || true)
done

lines=$(wc -l <README.md) bytes=$(wc -c <README.md)
[[ $lines -le 120 && $bytes -le 8192 ]] ||
    { echo "README.md: $lines lines, $bytes bytes; at most 120 lines and 8192 bytes"; bad=1; }

lines=$(cat README.md docs/*.md | wc -l)
[[ $lines -le 1800 ]] || { echo "README.md and docs/*.md: $lines lines; at most 1800"; bad=1; }

# The tour: "`name()` in [text](file)", or "`struct name` in [text](file)". A function that it names again needs no link.
tour=$(tr '\n' ' ' <docs/tour.md | tr -s ' ')
linked=$(grep -oE '`[^`]+` in \[[^]]+\]\([^)]+\)' <<<"$tour" | sed -E 's/^`([^`]+)` in \[[^]]+\]\(([^)]+)\)$/\2 \1/')
while read -r file name; do
    grep -qE "(^|[^A-Za-z0-9_])${name%()}$([[ $name != *'()' ]] || echo '\(')" "docs/$file" 2>/dev/null ||
        { echo "docs/tour.md: $file has no $name"; bad=1; }
done <<<"$linked"
while read -r name; do
    grep -qF " $name" <<<"$linked" || { echo "docs/tour.md: $name has no link"; bad=1; }
done < <(grep -oE '`[a-z0-9_]+\(\)`' <<<"$tour" | tr -d '`' | sort -u)

# rival.h has variables that the tool sets for the programs that it starts.
variables=$(grep -rhoE --exclude=rival.h '"TUTTI_[A-Z_]+"' shim src tools | grep -vE '"TUTTI_(OK|ERR_[A-Z_]+|UNKNOWN)"' | tr -d '"' | sort -u)
while read -r variable; do
    grep -qw "$variable" man/tutti.7 || { echo "man/tutti.7: does not name $variable"; bad=1; }
done <<<"$variables"
while read -r variable; do
    grep -qx "$variable" <<<"$variables" || { echo "README.md: nothing reads $variable"; bad=1; }
done < <(grep -oE '`TUTTI_[A-Z_]+`' README.md | tr -d '`' | sort -u)

manual=$(mktemp -d)
trap 'rm -rf "$manual"' EXIT
scripts/manual-pages "$manual" include/tutti/*.h
while read -r function; do
    page=$(sed -n '1s/^\.so man3//p' "$manual/$function.3") || { echo "manual: no page for $function()"; bad=1; continue; }
    page=$manual/${page:-$function.3}
    sed -n '/^\.SH NAME/,/^\.SH SYNOPSIS/p' "$page" | grep -w "$function" >/dev/null || { echo "manual: $page does not name $function()"; bad=1; }
    # Its heading, and a text below.
    grep -A1 "^\.SS .*\<$function()" "$page" | grep '^[^.]' >/dev/null || { echo "include/tutti: no comment describes $function()"; bad=1; }
done < <(grep -hoE '^(TUTTI_API .*)?tutti_[a-z0-9_]+\(' include/tutti/*.h | grep -oE 'tutti_[a-z0-9_]+\($' | tr -d '(' | sort -u)

if grep -hv '^\.' "$manual"/*.3 | grep -E '\[(in|out)|`|/\*|\*/|\*[A-Z]'; then
    echo "manual: marks of the headers' comments stand in these lines"
    bad=1
fi

if [[ -e examples/all_reduce.c ]]; then
    program=$(sed -n '/^```c$/,/^```$/p' README.md | sed '/^```/d')
    [[ $(cat examples/all_reduce.c) == *"$program" && -n $program ]] ||
        { echo "README.md: its program is not the end of examples/all_reduce.c"; bad=1; }
fi

if command -v groff >/dev/null; then
    for page in man/*.[17] "$manual"/*.3; do
        [[ $(head -c 4 "$page") != ".so " ]] || continue
        said=$(groff -man -Tutf8 -ww -z "$page" 2>&1)
        [[ -z $said ]] || { echo "$said"; bad=1; }
        grep -q '^\.TH ' "$page" || { echo "$page: no title line (.TH)"; bad=1; }
    done
fi
exit "$bad"
