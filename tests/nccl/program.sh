#!/bin/bash
# `tutti nccl`: a program of NCCL runs with Tutti's library, says so, and reports who served its calls.
# usage: program.sh TUTTI LIBRARY COLLECTIVES COMMUNICATORS
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/../tools/common.sh"
tutti=$1 library=$(realpath "$2") program=$3 communicators=$4

status 0 "$tutti" nccl --path
out "^$library\$"
status 0 env NCCL_DEBUG=VERSION "$tutti" nccl --report -- "$program"
err "^tutti nccl: LD_PRELOAD=$library\$"
err '^NCCL version 2\.32\.3: its calls are served by Tutti '
err '^ncclAllReduce +tutti +[0-9]+ +[0-9]+ +[0-9.]+$'
status 0 "$tutti" nccl --report -- "$communicators"
err '^ncclCommInitRank +tutti +[0-9]+ +0 +[0-9.]+$'
err '^ncclCommSplit +tutti +[0-9]+ +0 +[0-9.]+$'
err '^ncclCommRegister +shim +[0-9]+ +0 +[0-9.]+$'
err '^ncclCommWindowDeregister +tutti +[0-9]+ +0 +[0-9.]+$'
err '^ncclGroupEnd +tutti +[0-9]+ +0 +[0-9.]+$'
status 0 env LD_PRELOAD=/nonexistent.so "$tutti" nccl -- true
err "^tutti nccl: LD_PRELOAD=$library:/nonexistent.so\$"
status 64 "$tutti" nccl
err 'a program is missing'
status 127 "$tutti" nccl -- ./no-such-program
err '^tutti nccl: ./no-such-program: '
status 126 "$tutti" nccl -- /
finish
