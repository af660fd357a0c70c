#!/bin/bash
# Links between the documents lead somewhere, the README is short, every variable of the environment that the
# library and the program read stands in tutti(7), and none in the README that does not, every public function
# has a man page, the README's program is the one in examples/, and man has nothing to say about the man pages.
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

# Those of rival.h are what the tool tells the programs that it starts.
variables=$(grep -rhoE --exclude=rival.h '"TUTTI_[A-Z_]+"' src tools | grep -vE '"TUTTI_(OK|ERR_[A-Z_]+|UNKNOWN)"' | tr -d '"' | sort -u)
while read -r variable; do
    grep -qw "$variable" man/tutti.7 || { echo "man/tutti.7: does not name $variable"; bad=1; }
done <<<"$variables"
while read -r variable; do
    grep -qx "$variable" <<<"$variables" || { echo "README.md: nothing reads $variable"; bad=1; }
done < <(grep -oE '`TUTTI_[A-Z_]+`' README.md | tr -d '`' | sort -u)

names=$(for page in man/*.3; do sed -n '/^\.SH NAME/,/^\.SH SYNOPSIS/p' "$page"; done)
while read -r function; do
    grep -qw "$function" <<<"$names" || { echo "man: no page for $function()"; bad=1; }
done < <(grep -hoE '^(TUTTI_API .*)?tutti_[a-z0-9_]+\(' include/tutti/*.h | grep -oE 'tutti_[a-z0-9_]+\($' | tr -d '(' | sort -u)

if [[ -e examples/all_reduce.c ]]; then
    program=$(sed -n '/^```c$/,/^```$/p' README.md | sed '/^```/d')
    [[ $(cat examples/all_reduce.c) == *"$program" && -n $program ]] ||
        { echo "README.md: its program is not the end of examples/all_reduce.c"; bad=1; }
fi

if command -v groff >/dev/null; then
    for page in man/*.[137]; do
        [[ -e $page ]] || continue
        said=$(groff -man -Tutf8 -ww -z "$page" 2>&1)
        [[ -z $said ]] || { echo "$said"; bad=1; }
        grep -q '^\.TH ' "$page" || { echo "$page: no title line (.TH)"; bad=1; }
    done
fi
exit "$bad"
