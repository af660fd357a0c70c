#!/bin/bash
# Each command's man page and --help name the same options, in the same form and with the same defaults; -h is --help.
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/common.sh"
need python3
tutti=$1

# A default stands in both as "(default 8)", "share (default)" or "the current directory unless given".
cat >"$work/options.py" <<'PYTHON'
import re, shlex, sys

# "-n, --ranks=N", "--graph[=N]": short, long, value
OPTION = re.compile(r"(?:-(.), )?(--[a-z_-]+)(\[?=[A-Z0-9|]+\]?)?$")


def defaults(text):
    text = " ".join(text.split())
    found = re.findall(r"\S+ \(default\)|\(default[^)]+\)", text)
    return found + [match.strip().lower() for match in re.findall(r"[^.;:,()]*unless given", text)]


def collect(pairs):
    """{long: (form, defaults)} of (form, text) pairs, without those that argp adds."""
    options = {}
    for form, text in pairs:
        match = OPTION.match(form)
        if match and match[2] not in ("--help", "--usage", "--version"):
            known = options.get(match[2], (form, []))[1]
            options[match[2]] = form, known + defaults(text)
    return options


def of_help(text):
    """An option begins in the first columns; what follows below the 20th is its text."""
    pairs = []
    for line in text.split("\n\n" + "Mandatory or optional")[0].splitlines():
        begin = re.match(r" {2,6}(-\S(?:, --\S+)?|--\S+)(?:\s{2,}(.*)|$)", line)
        if begin:
            pairs.append([begin[1], begin[2] or ""])
        elif re.match(r" {20}", line) and pairs:
            pairs[-1][1] += " " + line
        elif line:
            pairs.append(["", ""])
    return collect(pairs)


def plain(line):
    """A line of a man page without its macros."""
    line = re.sub(r"\\f.", "", line).replace("\\-", "-").replace("\\|", "").replace("\\&", "")
    macro = re.match(r"\.(BR|RB|IR|RI|BI|B|I) (.*)", line)
    if not macro:
        return line
    words = shlex.split(macro[2].replace("'", "\\'"))
    return ("" if len(macro[1]) == 2 else " ").join(words)


def of_page(text):
    pairs, lines = [], text.splitlines()
    for number, line in enumerate(lines):
        if number and lines[number - 1] == ".TP" and re.match(r"\.BR? \\-", line):
            pairs.append([plain(line), ""])
        elif re.match(r"\.(TP|S[HS])", line):
            pairs.append(["", ""])
        elif pairs:
            pairs[-1][1] += " " + plain(line)
    return collect(pairs)


shown, page = of_help(open(sys.argv[1]).read()), of_page(open(sys.argv[2]).read())
for option in sorted(shown.keys() | page.keys()):
    if shown.get(option) != page.get(option):
        print(f"{option}: --help has {shown.get(option)}, {sys.argv[2]} has {page.get(option)}")
if not shown:
    print("--help shows no option")
PYTHON

for command in bench diagnose dump info mpi nccl run tune; do
    "$tutti" "$command" --help >"$work/help" 2>&1
    python3 "$work/options.py" "$work/help" "man/tutti-$command.1" >"$work/difference" || complain "$command: options.py"
    [[ ! -s $work/difference ]] || { complain "$command: man page and --help differ"; cat "$work/difference"; }
    status 0 "$tutti" "$command" -h
    diff "$work/help" "$work/out" >/dev/null || complain "$command -h is not --help"
done
status 0 "$tutti" -h
out '^ +diagnose  name the rank'
finish
