#!/bin/bash
# The tool on GPUs, over stand-ins: tutti bench --device cuda in every form, and tutti info's section; what is
# said where something is missing.
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/common.sh"
need python3
tutti=$1 cuda=$2 nvml=$3 nccl=$4 cublas=$5
quick=(--device cuda --iters 2 -w 1 -b 8 -e 8K -f 32)
export TUTTI_CUDA_LIBRARY=$cuda TUTTI_NVML_LIBRARY=$nvml TUTTI_STANDIN_DEVICES=3

# rows EXPECTED COLUMNS: as many rows, each with all columns; nothing is wrong.
rows() {
    local got
    got=$(grep -vc '^#' "$work/out")
    [[ $got == "$1" ]] || { complain "$got rows instead of $1"; cat "$work/out"; }
    awk -v columns="$2" '!/^#/ && NF != columns { exit 1 }' "$work/out" ||
        { complain "a row lacks columns"; cat "$work/out"; }
    narrow
    out '^# Out of bounds values : 0 OK$'
}

# ---- forms
status 0 "$tutti" bench "${quick[@]}" -n 2
rows 3 13
out 'device: cuda graph: no pdl: auto streams: 1$'
out 'Rank  1 pid +[0-9]+ device 1 0000:11:00.0 Stand-in'
status 0 "$tutti" bench "${quick[@]}" -n 2 --long
rows 6 13
out ' into +time +min +mean +p99 +algbw +busbw +#wrong +host$'
status 0 "$tutti" bench "${quick[@]}" --graph=3 --pdl -d bfloat16,int8 -o sum,max --json "$work/graph"
rows 12 13
out 'nRanks 3 processes '
out 'device: cuda graph: 3 pdl: 1'
status 0 env TUTTI_NCCL_LIBRARY="$nccl" "$tutti" bench "${quick[@]}" --graph=4 --streams 3 \
    --ranks-as threads --vs nccl -n 2 --json "$work/nccl"
rows 6 12
out '^# NCCL 2\.28\.9$'
out ' into +time +algbw +busbw +#wrong +nccl +symm +ratio$'
status 0 env TUTTI_NCCL_LIBRARY="$nccl" "$tutti" bench "${quick[@]}" --vs nccl -n 2 -d int16
rows 6 13
status 0 "$tutti" bench "${quick[@]:2}" -g 2
rows 3 13
out '^# nRanks 2 processes .*$'
out ' device: cuda '
status 0 "$tutti" bench "${quick[@]:2}" -t 3 -g 1
rows 3 13
out '^# nRanks 3 threads .*$'
status 0 "$tutti" bench --device cuda --iters 2 -w 1 -n 2 --counts 1,7,4097 -d float16 --algo two_shot
rows 3 13
status 0 env TUTTI_FORCE_FULLY_CONNECTED=1 "$tutti" bench --device cuda --iters 2 -w 1 -n 3 --counts 4097 \
    -d float16 -o premul_sum --algo ring
rows 1 13
# Every collective beside NCCL, which the threads' stand-in checks, and with fewer blocks. All sizes have two places, or one.
for collective in all_gather reduce_scatter all_to_all broadcast reduce gather scatter send_recv all_gather_v reduce_scatter_v \
    all_to_all_v gather_v scatter_v; do
    case $collective in send_recv | all_to_all_v) places=1 ;; *) places=2 ;; esac
    case $collective in all_gather | send_recv | scatter_v) ranks=3 ;; *) ranks=2 ;; esac
    status 0 env TUTTI_NCCL_LIBRARY="$nccl" "$tutti" bench "${quick[@]}" -b 24 -t $ranks --vs nccl \
        --collective "$collective" --json "$work/$collective"
    rows $((2 * places)) 13
done
python3 - "$work"/{all_gather,all_to_all,reduce,send_recv,scatter_v} <<'PYTHON' || complain "NCCL's rows"
import json, sys
for path in sys.argv[1:]:
    for row in json.load(open(path))["rows"]:
        theirs = set() if row["in_place"] and row["collective"] == "all_to_all" else {"nccl", "nccl_symmetric"}
        assert set(row["rivals"]) == theirs and row["wrong"] == 0 and row["max_blocks"] is None, row
PYTHON
for collective in all_reduce all_gather all_to_all broadcast gather scatter; do
    status 0 "$tutti" bench "${quick[@]}" -e 2M -f 512 -n 2 --graph=5 --max-blocks 3 --collective "$collective" --json "$work/blocks"
    rows 3 13
    out 'pdl: auto streams: 1 max blocks: 3$'
    python3 -c 'import json, sys; sys.exit(any(r["max_blocks"] != 3 for r in json.load(open(sys.argv[1]))["rows"]))' "$work/blocks" ||
        complain "max_blocks"
done
for collective in all_gather all_to_all broadcast gather scatter; do
    case $collective in all_to_all | scatter) places=1 ;; *) places=2 ;; esac
    status 0 "$tutti" bench "${quick[@]}" -b 24 -n 3 --graph=5 --copy-engine --collective "$collective" --json "$work/engine"
    rows 2 13
    out 'streams: 1 buffers: symmetric, by copy engines$'
    python3 -c 'import json, sys
rows = json.load(open(sys.argv[1]))["rows"]
assert len(rows) == 2 * int(sys.argv[2]) and all(row["copy_engine"] and row["symmetric"] and row["wrong"] == 0 for row in rows), rows' \
        "$work/engine" $places || complain "copy_engine"
done
for flag in all_gather_v:--device-counts reduce_scatter_v:--device-counts=int32 all_to_all_v:--device-counts=int32; do
    status 0 "$tutti" bench --device cuda --iters 2 -w 1 -n 3 --counts 0,1,917 -d bfloat16,uint8 --graph=5 --collective "${flag%:*}" "${flag#*:}"
    rows 6 13
    out ' counts: int(32|64), read by the operation device: cuda graph: 5'
done
status 0 "$tutti" bench --device cuda --iters 2 -w 1 -n 2 --graph=2 --pdl --collective all_reduce_rms_norm --hidden 640 --tokens 1,3 --quant fp8_group -d bfloat16
rows 2 10
status 0 env TUTTI_CUBLAS_LIBRARY="$cublas" "$tutti" bench "${quick[@]}" -n 2 --graph=3 --beside gemm --copy-engine --collective all_gather
rows 6 10
status 0 "$tutti" bench "${quick[@]}" -b 24 -n 3 --graph=5 --symmetric --collective all_to_all
rows 2 13
status 0 "$tutti" bench "${quick[@]}" -n 2 --symmetric
out 'streams: 1 buffers: symmetric$'
status 0 "$tutti" bench "${quick[@]}" -n 2 --graph --collective all_gather_v
rows 3 13
status 1 env TUTTI_ALGO=host_staged "$tutti" bench "${quick[@]}" -n 2 --graph --collective all_gather_v
err 'TUTTI_ERR_DECLINED'
status 0 env TUTTI_NCCL_LIBRARY="$nccl" TUTTI_CUBLAS_LIBRARY="$cublas" "$tutti" bench "${quick[@]}" -t 2 -g 1 --graph=3 --vs nccl \
    --beside gemm --max-blocks 2 --collective broadcast --json "$work/beside"
rows 6 13
out ' into +time +#wrong +nccl +symm +ratio +gemm +beside +time\+$'
python3 - "$work/beside" <<'PYTHON' || complain "beside"
import json, sys
for row in json.load(open(sys.argv[1]))["rows"]:
    beside = row["beside"]
    assert set(beside) == {"product_us", "tutti", "nccl", "nccl_symmetric"} and beside.pop("product_us") > 0, row
    assert all(time["product_us"] > 0 and time["operation_us"] > 0 for time in beside.values()), row
PYTHON
status 1 env TUTTI_CUBLAS_LIBRARY=/nonexistent/cublas "$tutti" bench "${quick[@]}" -n 2 --graph --beside gemm
err '--beside gemm: /nonexistent/cublas cannot be opened'
# A rival that is wrong is not measured.
status 1 env TUTTI_NCCL_LIBRARY="$nccl" TUTTI_STANDIN_NCCL_WRONG=1 "$tutti" bench "${quick[@]}" -n 2 --threads --vs nccl \
    --collective all_gather
err 'TUTTI_ERR_CUDA: NCCL: [0-9]+ wrong elements'
status 0 "$tutti" bench --device cuda --iters 2 -n 2 --collective barrier --graph=5
status 0 "$tutti" bench --device cuda --iters 2 -n 2 --collective barrier --algo host_staged --pdl --streams 2
python3 - "$work/graph" "$work/nccl" <<'PYTHON' || complain "JSON"
import json, sys
graph, nccl = (json.load(open(path)) for path in sys.argv[1:])
assert graph["machine"].startswith("3 GPUs, "), graph["machine"]
for row in graph["rows"]:
    assert row["algo"].startswith(("one_shot_", "two_shot_", "reduce_")), row["algo"]
    assert row["placement"] == "gpu" and row["ranks"] == 3 and row["wrong"] == 0
    assert row["graph"] and row["programmatic_launch"] and row["host_us"] is None
    assert row["rivals"] == {} and row["ratio"] is None and row["tutti_us"] == row["p50_us"] > 0
    assert 0 < row["rank_min_us"] <= row["rank_mean_us"] <= row["rank_max_us"] <= row["p50_us"] * 1.000001, row
assert nccl["nccl"] == "2.28.9" and "nccl" not in graph
for row in nccl["rows"]:
    assert row["threads"] and row["streams"] == 3
    assert set(row["rivals"]) == {"nccl", "nccl_symmetric"}, row
    assert abs(row["ratio"] * min(row["rivals"].values()) - row["tutti_us"]) < 1e-3 * row["tutti_us"]
PYTHON

# ---- what is refused, and what is missing
refused() {
    local pattern=$1
    shift
    status 64 "$tutti" bench "$@"
    err "$pattern"
}
refused '--graph needs --device cuda' --graph
refused '--pdl needs --device cuda' --pdl
refused '--pdl needs --device cuda' --no-pdl
refused '--vs nccl needs --device cuda' --vs nccl
refused '--streams needs --device cuda' --streams 2
refused '--max-blocks needs --device cuda' --max-blocks 2
refused "--max-blocks: '0'.*from 1" --device cuda --max-blocks 0
refused '--copy-engine needs --device cuda' --copy-engine --collective all_gather
refused '--copy-engine: give --collective all_gather' --device cuda --copy-engine
refused '--device-counts: give --collective all_gather_v' --device cuda --device-counts
refused '--device-counts: give --collective all_gather_v' --device-counts --collective gather_v
refused "--device-counts: 'int16' is no type: give int64 or int32" --device-counts=int16 --collective all_to_all_v
refused "--beside: 'conv' is unknown: give gemm" --device cuda --graph --beside conv
refused '--beside needs --device cuda' --beside gemm
refused '--beside needs --graph' --device cuda --beside gemm
refused '--collective broadcast: .*leave out -o' --device cuda --vs nccl --collective broadcast -o sum
refused 'algorithm of GPUs needs --device cuda' --algo ring
refused "--algo: 'one_shot_ll' is no algorithm" --device cuda --algo one_shot_ll
refused "--device: 'tpu'.*cpu or cuda" --device tpu
refused '--vs: with --device cuda give nccl' --device cuda --vs gloo
refused "--ranks-as: 'fibres'.*threads or processes" --ranks-as fibres
refused "--graph: '0'.*from 1" --device cuda --graph=0
refused "--streams: '9'.*from 1 to 8" --device cuda --streams 9
refused "--counts: 'x'" --counts 1,x
refused '--cold is for CPU ranks' --device cuda --cold
refused '--collective barrier: .*leave out --vs$' --device cuda --collective barrier --vs nccl
refused "give 2 to 8 ranks instead of 9; nccl-tests' -n is --iters" --device cuda -n 9
refused 'give 2 to 8 ranks instead of 1' -g 1
refused '--vs: with --device cuda give nccl' -g 2 --vs gloo
refused "--iters: '401'.*1 to 400 rounds" --device cuda --iters 401
status 1 env TUTTI_ALLOW_OVERLAPPING_DEVICES=Off "$tutti" bench --device cuda -n 4
err '-n 4: each rank needs a GPU of its own, and this machine has 3'
status 1 env TUTTI_ALLOW_OVERLAPPING_DEVICES=0 "$tutti" bench --device cuda -n 4
err '-n 4: each rank needs a GPU of its own, and this machine has 3'
status 1 env TUTTI_ALLOW_OVERLAPPING_DEVICES=maybe "$tutti" bench --device cuda -n 4
err 'TUTTI_ALLOW_OVERLAPPING_DEVICES=maybe: expected 0 or 1'
status 1 env TUTTI_STANDIN_DEVICES=1 "$tutti" bench --device cuda
err 'needs two GPUs'
status 1 env TUTTI_CUDA_LIBRARY=/nonexistent/cuda "$tutti" bench --device cuda
err '/nonexistent/cuda cannot be opened: is there an NVIDIA driver'
status 1 env TUTTI_NCCL_LIBRARY=/nonexistent/nccl "$tutti" bench "${quick[@]}" --vs nccl
err 'rank .*--vs nccl: /nonexistent/nccl cannot be opened'
status 1 env TUTTI_STANDIN_FAIL=cuStreamBeginCapture:1 "$tutti" bench "${quick[@]}" --graph
err 'rank [0-2]: TUTTI_ERR_CUDA: cuStreamBeginCapture: CUDA_ERROR_UNKNOWN'

# ---- ranks wait for one that does not come for as long as --timeout says, and a bit
status 1 timeout 60 env TUTTI_NCCL_LIBRARY="$nccl" TUTTI_STANDIN_NCCL_STALL=1 "$tutti" bench "${quick[@]}" -n 2 \
    --vs nccl --timeout 1
err 'rank 0: TUTTI_ERR_TIMEOUT: .* did not come within 11 s'

# ---- tutti info
status 0 env TUTTI_STANDIN_LINKS=ss,sss,ss2 "$tutti" info --json -n 2
python3 - "$work/out" <<'PYTHON' || complain "info"
import json, sys
cuda = json.load(open(sys.argv[1]))["cuda"]
assert cuda["driver"].startswith("CUDA 13") and [d["ordinal"] for d in cuda["devices"]] == [0, 1, 2]
assert cuda["devices"][1]["uuid"].startswith("GPU-") and cuda["devices"][0]["capability"] == "9.0"
assert [pair["links"] for pair in cuda["nvlinks"]] == [2, 2, 3, 3, 2, 2], cuda["nvlinks"]
assert len(cuda["peers"]) == 6 and all(pair["result"] == "ok" for pair in cuda["peers"])
one = cuda["communicator"]
assert one["test"] == "all-reduce of 3 threads" and one["result"] == "ok", one
symm = cuda["symmetric_memory"]
assert symm["test"].endswith("3 threads") and symm["result"] == "ok", symm
assert int(one["describe"]["device_arena_bytes"]) == 90 << 20
assert one["choices"][0]["from_bytes"] == 2 and one["choices"][-1]["to_bytes"] == "any"
PYTHON

# The plan where devices do not reach each other, and where ranks share one.
staged='why kernel two_shot_pipelined: forced by the call, the options or TUTTI_ALGO$'
status 0 env TUTTI_ALLOW_OVERLAPPING_DEVICES=Off "$tutti" info --plan -n 2
out 'arena: in the host.s memory: asked for'
out "to_bytes any, algo two_shot, $staged"
out 'two ranks on device 0, result refused unless TUTTI_ALLOW_OVERLAPPING_DEVICES is set, declined yes'
status 0 env TUTTI_STANDIN_DEVICES=1 TUTTI_ALLOW_OVERLAPPING_DEVICES=1 "$tutti" info --plan --json -n 2
python3 - "$work/out" <<'PYTHON' || complain "plan of ranks that share a device"
import json, sys
threads, processes = json.load(open(sys.argv[1]))["cuda"]["shared_device"]
assert threads["test"] == "all-reduce of 2 threads on device 0" and threads["result"] == "ok", threads
assert threads["describe"]["arena"] == "in the host's memory: ranks share a device", threads
assert [choice["algo"] for choice in threads["choices"]] == ["one_shot", "two_shot"]
assert processes["test"] == "all-reduce of 2 processes on device 0" and processes["result"] == "ok"
assert processes["describe"]["arena"] == "none, for a host thread stages: processes share a device"
assert processes["choices"] == [{"from_bytes": 2, "to_bytes": "any", "algo": "host_staged",
                                 "why": "staged by a host thread: processes share a device"}]
PYTHON
# A ring has bits of its own, which are not wrong.
status 1 env TUTTI_FORCE_FULLY_CONNECTED=1 TUTTI_ALGO=ring "$tutti" info --plan -n 2
err 'TUTTI_ALGO=ring: it is for CUDA communicators' # CPU ranks have none
out 'test: all-reduce of 3 threads'
out 'result: ok'
out 'algo ring'
status 0 env TUTTI_FORCE_FULLY_CONNECTED=1 TUTTI_ALGO=ring "$tutti" bench "${quick[@]}" -n 3
rows 3 13
# A forced algorithm of devices is what is planned for threads, and refused to processes; a trial that fails is said.
status 0 env TUTTI_STANDIN_DEVICES=1 TUTTI_ALLOW_OVERLAPPING_DEVICES=1 TUTTI_ALGO=two_shot "$tutti" info \
    --plan --json -n 2
python3 - "$work/out" <<'PYTHON' || complain "forced plan of ranks that share a device"
import json, sys
threads, processes = json.load(open(sys.argv[1]))["cuda"]["shared_device"]
assert threads["result"] == "ok" and threads["describe"]["arena"] == "on the device", threads
assert {choice["algo"] for choice in threads["choices"]} == {"two_shot"}
assert {choice["why"].split()[1] for choice in threads["choices"]} == {"two_shot_lines:", "two_shot_pipelined:"}
assert "two_shot" in processes["result"] and "force none or host_staged" in processes["result"], processes
PYTHON
status 1 env TUTTI_STANDIN_DEVICES=1 TUTTI_ALLOW_OVERLAPPING_DEVICES=1 \
    TUTTI_STANDIN_FAIL=cuStreamWriteValue64:1 "$tutti" info --plan -n 2
out 'all-reduce of 2 processes on device 0, result cuStreamWriteValue64'
status 1 env TUTTI_STANDIN_NO_PEER=0-1 TUTTI_NVML_LIBRARY=/nonexistent/nvml "$tutti" info -n 2
out 'nvlinks: no NVML: /nonexistent/nvml cannot be opened'
out 'from 0, to 1, result the driver says that device 0 cannot reach device 1'
status 0 env TUTTI_CUDA_LIBRARY=/nonexistent/cuda "$tutti" info -n 2
out 'missing: /nonexistent/cuda cannot be opened: is there an NVIDIA driver'
status 0 env TUTTI_STANDIN_FAIL=cuDeviceGetCount:1 "$tutti" info --plan -n 2
out 'missing: cuDeviceGetCount: CUDA_ERROR_UNKNOWN'
status 0 env TUTTI_STANDIN_DEVICES=1 "$tutti" info -n 2
out 'missing: a second GPU'
finish
