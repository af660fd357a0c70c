#!/bin/bash
# examples.sh CC
# The examples are standard C11: what they need beyond it they ask for themselves.
set -euo pipefail
cc=$1
bad=0
for example in examples/*.c; do
    "$cc" -std=c11 -Wall -Wextra -Wpedantic -Werror -fsyntax-only -Iinclude "$example" || bad=1
done
exit "$bad"
