#!/bin/bash
# Where no server of the ranks' store can be reached the tool says so at once, and does not wait for
# the store's time-out: without a loopback interface, and without descriptors.
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/common.sh"
tutti=$1
unshare -rn true 2>/dev/null || { echo "skipped: no network namespace of one's own here"; exit 77; }

# A tool that waits is killed, which is another exit status.
alone() {
    timeout -s KILL 100 unshare -rn timeout -s KILL 90 "$@"
}
status 1 alone "$tutti" run -n 2 true
err 'the loopback interface is down: bring it up'
status 1 alone "$tutti" bench -n 2 -b 1K -e 1K
err 'the loopback interface is down: bring it up'
status 1 alone "$tutti" info -n 2
out '^  kernel: '
out 'test tcp, result .*the loopback interface is down: bring it up'
out 'test file, result ok'

scarce() {
    (ulimit -n 10; exec timeout -s KILL 90 "$@")
}
status 1 scarce "$tutti" run -n 2 true
err 'Too many open files \(EMFILE\)'
finish
