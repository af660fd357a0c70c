#!/bin/bash
# Runs a program of the tests where no network interface is up, and where all but loopback are up.
# usage: no_network.sh PROGRAM [ARGUMENT...]
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/../tools/common.sh"
unshare -rn true 2>/dev/null || { echo "skipped: no network namespace of one's own here"; exit 77; }

# A program that waits for a connection is killed, which is another exit status.
status 0 timeout -s KILL 120 unshare -rn "$@"
links='ip link add v0 type veth peer name v1 && ip address add 10.9.0.1/24 dev v0 && ip link set v0 up && ip link set v1 up'
if unshare -rn sh -c "$links" 2>/dev/null; then
    status 0 timeout -s KILL 120 unshare -rn sh -c "$links"' && exec "$@"' sh "$@"
fi
finish
