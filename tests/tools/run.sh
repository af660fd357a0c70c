#!/bin/bash
# tutti run: what the ranks find in their environment, exit statuses, signals, and that nobody stays.
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/common.sh"
# run.sh TUTTI PARENT
tutti=$1 parent=$2
pids=$work/pids
export pids

# ---- environment
# shellcheck disable=SC2016
status 0 "$tutti" run -n 3 sh -c 'echo $RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE $MASTER_ADDR:$MASTER_PORT'
for rank in 0 1 2; do
    out "^$rank/3 $rank/3 127\.0\.0\.1:[1-9][0-9]+$"
done
[[ $(awk '{ print $3 }' "$work/out" | sort -u | wc -l) == 1 ]] || complain "the ranks have different ports"
status 0 "$tutti" run -n 2 env
out '^TORCHELASTIC_USE_AGENT_STORE=True$'
status 0 "$tutti" run -n 1 printf '%s|' -n 2 --tag 'a b'
out '^-n\|2\|--tag\|a b\|$'

# ---- placement
cpus() { "$tutti" run "$@" sh -c 'awk "/^Cpus_allowed_list/ { print \$2 }" /proc/self/status' | sort; }
# How many CPUs lists such as 0-3,8 name, a list a line.
width() {
    awk -F, '{ for (i = 1; i <= NF; i++) { split($i, ends, "-"); count += (ends[2] ? ends[2] : ends[1]) - ends[1] + 1 } }
             END { print count }'
}
ours=$(awk '/^Cpus_allowed_list/ { print $2 }' /proc/self/status)
cores=$(lscpu -p=core,cpu | awk -F, -v list="$ours" '
    BEGIN { count = split(list, parts, ","); for (i = 1; i <= count; i++) { split(parts[i], e, "-")
            for (cpu = e[1]; cpu <= (e[2] == "" ? e[1] : e[2]); cpu++) allowed[cpu] = 1 } }
    !/#/ && allowed[$2] { print $1 }' | sort -u | wc -l)
# One rank has every core; several have shares without a core in common, of which none is left out.
[[ $(cpus -n 1) == "$ours" ]] || complain "one rank has $(cpus -n 1) of the CPUs $ours"
[[ $(cpus -n 1 --bind share) == "$ours" ]] || complain "--bind share: one rank has not all CPUs"
for ranks in 2 3; do
    [[ $cores -ge $ranks ]] || continue
    [[ $(cpus -n $ranks | width) == "$(width <<<"$ours")" && $(cpus -n $ranks | uniq | wc -l) == "$ranks" ]] ||
        complain "$ranks ranks have not shares: $(cpus -n $ranks)"
done
if [[ $cores -ge 2 ]]; then
    [[ $(cpus -n 2 --bind core | uniq | wc -l) == 2 ]] || complain "two ranks share a core: $(cpus -n 2 --bind core)"
    [[ $(cpus -n 1 --bind core) != "$ours" ]] || complain "--bind core: a rank has every core"
fi
for none in '--bind none' --no-bind; do
    read -ra words <<<"$none"
    [[ $(cpus -n 2 "${words[@]}" | uniq) == "$ours" ]] || complain "$none bound the ranks"
done
for bind in share core; do
    [[ $cores -ge 64 || $(cpus -n 64 --bind $bind | uniq) == "$ours" ]] ||
        complain "--bind $bind: 64 ranks on $cores cores were bound"
done
status 64 "$tutti" run --bind socket true
err "--bind: 'socket' is no placement: give share, core or none"

# ---- exit statuses
status 0 "$tutti" run -n 2 true
status 7 "$tutti" run -n 2 sh -c 'exit 7'
status 137 "$tutti" run -n 2 sh -c 'kill -KILL $$'
err 'rank [01] \(pid [0-9]+\) was killed by signal 9'
status 126 "$tutti" run -n 2 "$work"
status 127 "$tutti" run -n 2 "$work/no such program"
[[ $(grep -c 'no such program' "$work/err") == 1 ]] || complain "said more than once that the program is missing"
status 64 "$tutti" run -n 65 true
err "'65'.* 1 to 64"
status 64 "$tutti" run
err 'program'
status 64 "$tutti" walk
err "'walk'"

# ---- one fails: the others end, with TERM, or with KILL if they do not care
rm -f "$pids"
# shellcheck disable=SC2016
status 5 "$tutti" run --wait 0 -n 3 sh -c 'echo $$ >>"$pids"
    if [ $RANK = 1 ]; then while [ $(wc -l <"$pids") -lt 3 ]; do sleep 0.05; done; exit 5; fi
    exec sleep 600'
err 'rank 1 .*exited with status 5; the others may go on for 0 s \(--wait\)$'
mapfile -t all <"$pids"
ended "${all[@]}" || complain "ranks outlived a failed one"
rm -f "$pids"
# shellcheck disable=SC2016
status 6 "$tutti" run --wait 0 --grace 1 -n 2 sh -c 'trap "" TERM; echo $$ >>"$pids"
    if [ $RANK = 1 ]; then while [ $(wc -l <"$pids") -lt 2 ]; do sleep 0.05; done; exit 6; fi
    exec sleep 600'
mapfile -t all <"$pids"
ended "${all[@]}" || complain "a rank that ignores SIGTERM outlived a failed one"

# ---- but first they may say what they know
rm -f "$pids"
# shellcheck disable=SC2016
status 5 "$tutti" run -n 2 sh -c 'echo $$ >>"$pids"
    while [ $(wc -l <"$pids") -lt 2 ]; do sleep 0.05; done
    if [ $RANK = 1 ]; then exit 5; fi
    sleep 4; echo "rank $RANK heard of it"; exit 1'
out 'rank 0 heard of it'
err 'rank 1 .*exited with status 5; the others may go on for 120 s \(--wait\)$'
rm -f "$pids"
# shellcheck disable=SC2016
status 5 "$tutti" run --wait 1 -n 3 sh -c 'echo $$ >>"$pids"
    while [ $(wc -l <"$pids") -lt 3 ]; do sleep 0.05; done
    if [ $RANK = 1 ]; then exit 5; fi
    exec sleep 600'
err '^tutti run: ranks that have not ended 1 s after the failed one get SIGTERM: 0 2$'

# ---- signals are passed on
for signal in HUP INT QUIT TERM USR1 USR2; do
    rm -f "$pids" "$work/got"
    # bash lets its background jobs ignore INT and QUIT: env gives them back.
    # shellcheck disable=SC2016
    env --default-signal=INT,QUIT "$tutti" run -n 2 sh -c '
        trap "echo got >>$0.got; exit 9" '$signal'
        echo $$ >>"$pids"
        while :; do sleep 0.05; done' "$work/" 2>/dev/null &
    launcher=$!
    until_true 30 lines "$pids" 2 || complain "the ranks did not start"
    kill -s "$signal" "$launcher"
    got=0
    wait "$launcher" || got=$?
    [[ $got == 9 ]] || complain "SIG$signal: exit status $got instead of 9"
    [[ -e $work/.got ]] || complain "SIG$signal did not arrive"
    rm -f "$work/.got"
done

# ---- the launcher is killed: so are the ranks
rm -f "$pids"
# shellcheck disable=SC2016
"$tutti" run -n 3 sh -c 'echo $$ >>"$pids"; exec sleep 600' &
launcher=$!
until_true 30 lines "$pids" 3 || complain "the ranks did not start"
kill -KILL "$launcher"
wait "$launcher" 2>/dev/null
mapfile -t all <"$pids"
until_true 30 ended "${all[@]}" || complain "ranks outlived the launcher"

# ---- what a rank leaves behind ends with the last rank
rm -f "$pids"
# shellcheck disable=SC2016
status 0 "$tutti" run -n 2 sh -c 'setsid sleep 600 & echo $! >>"$pids"'
mapfile -t all <"$pids"
ended "${all[@]}" || complain "a background process outlived the ranks"

# ---- but not what the shell had started that became the launcher
rm -f "$pids"
# shellcheck disable=SC2016
status 0 bash -c 'sleep 600 >/dev/null 2>&1 & echo $! >"$pids"; exec "$@"' sh "$tutti" run -n 2 sh -c \
    'setsid sleep 600 & echo $! >>"$pids"'
mapfile -t all <"$pids"
kill "${all[0]}" || complain "a process that was there before the ranks was ended"
ended "${all[@]:1}" || complain "a background process outlived the ranks"

# ---- also where the ranks could not be started
rm -f "$pids"
# shellcheck disable=SC2016
status 1 timeout -s KILL 60 bash -c 'sleep 600 >/dev/null 2>&1 & echo $! >"$pids"; ulimit -n 20; exec "$@"' sh \
    "$tutti" run --tag -n 20 true
err 'cannot make a pipe'
mapfile -t all <"$pids"
kill "${all[0]}" || complain "a process that was there before ranks that could not be started was ended"

# ---- tagged output
# shellcheck disable=SC2016
status 0 "$tutti" run --tag -n 2 sh -c 'echo "out $RANK"; echo "err $RANK" >&2; printf "no newline"'
out '^\[0\] out 0$'
out '^\[1\] out 1$'
out '^\[1\] no newline$'
err '^\[0\] err 0$'
status 0 "$tutti" run --tag -n 1 sh -c 'yes 0123456789 | head -n 100000'
[[ $(grep -cx '\[0\] 0123456789' "$work/out") == 100000 ]] || complain "tagged lines are lost"
status 0 "$tutti" run --tag -n 1 printf 'a\0b\n'
[[ $(tr '\0' 0 <"$work/out") == '[0] a0b' ]] || complain "what follows a zero byte in a tagged line is lost"

# A rank that never stops writing does not keep another's failure from being noticed.
for _ in 1 2 3; do
    got=0
    # shellcheck disable=SC2016
    timeout -s KILL 20 "$tutti" run --tag --wait 0 -n 2 sh -c \
        'if [ $RANK = 1 ]; then sleep 0.3; exit 5; fi; exec yes' >/dev/null 2>&1 || got=$?
    [[ $got == 5 ]] || complain "beside a rank that never stops writing: exit status $got instead of 5"
done

# ---- standard output that is non-blocking: a slow reader loses nothing
# slowly COMMAND...: stdout goes to $work/out through a pipe whose reader begins late.
slowly() {
    "$parent" non-blocking "$@" 2>"$work/err" </dev/null | (sleep 1; cat) >"$work/out"
}
slowly "$tutti" run --tag -n 2 sh -c 'yes 0123456789 | head -n 100000' || complain "a slow reader: not a success"
for rank in 0 1; do
    [[ $(grep -cx "\\[$rank\\] 0123456789" "$work/out") == 100000 ]] || complain "a slow reader loses tagged lines"
done
slowly "$tutti" bench --help || complain "a slow reader: not a success"
"$tutti" bench --help | cmp - "$work/out" || complain "a slow reader loses a part of --help"

# ---- output that cannot be written, of every command: never a success, and a rank's own status comes first
full() {
    local expected=$1 got=0
    shift
    "$@" >/dev/full 2>"$work/err" </dev/null || got=$?
    [[ $got == "$expected" ]] || complain "exit status $got instead of $expected with a full disk: $*"
    err 'cannot write the output'
}
full 1 "$tutti" --help
full 1 "$tutti" info --plan
full 1 "$tutti" bench -n 2 -b 8 -e 8 --iters 1
full 1 "$tutti" run --tag -n 1 echo text
full 9 "$tutti" run --tag -n 1 sh -c 'echo text; exit 9'

# ---- standard streams that are closed: no pipe or socket of ours gets their numbers
closed() {
    local got=0
    timeout -s KILL 60 "$@" <&- >&- 2>&- || got=$?
    [[ $got == 0 ]] || complain "exit status $got with its standard streams closed: $*"
}
closed "$tutti" run --tag -n 2 sh -c 'echo text; echo text >&2'
closed "$tutti" bench -n 2 -b 8 -e 8 --iters 1
closed "$tutti" info -n 2

# ---- without /dev/null, with open and with closed standard streams
if unshare -rm mount -t tmpfs none /dev 2>/dev/null; then
    # shellcheck disable=SC2016
    bare=(timeout -s KILL 60 unshare -rm sh -c 'mount -t tmpfs none /dev; exec "$@"' sh)
    status 0 "${bare[@]}" "$tutti" --version
    out '^tutti [0-9.]+$'
    status 3 "${bare[@]}" "$tutti" run -n 2 sh -c 'exit 3'
    # shellcheck disable=SC2016
    status 1 "${bare[@]}" sh -c 'exec "$@" >&-' sh "$tutti" --version
    err 'cannot write the output: Bad file descriptor'
    # shellcheck disable=SC2016
    status 0 "${bare[@]}" sh -c 'exec "$@" <&- >&- 2>&-' sh "$tutti" run --tag -n 2 true
else
    echo "skipped: no mount namespace of one's own here"
fi

# ---- started by a parent that ignores SIGCHLD
status 7 timeout -s KILL 60 "$parent" no-children "$tutti" run -n 2 sh -c 'exit 7'
status 0 timeout -s KILL 60 "$parent" no-children "$tutti" bench -n 2 -b 8 -e 8 --iters 1
status 0 timeout -s KILL 60 "$parent" no-children "$tutti" info -n 2
rm -f "$pids"
# shellcheck disable=SC2016
"$parent" no-children "$tutti" run -n 2 sh -c 'echo $$ >>"$pids"; exec sleep 600' 2>/dev/null &
launcher=$!
until_true 30 lines "$pids" 2 || complain "the ranks did not start"
kill -TERM "$launcher"
until_true 30 ended "$launcher" || { complain "SIGTERM does not end it beside an ignored SIGCHLD"; kill -KILL "$launcher"; }
got=0
wait "$launcher" || got=$?
[[ $got == 143 ]] || complain "SIGTERM beside an ignored SIGCHLD: exit status $got instead of 143"

finish
