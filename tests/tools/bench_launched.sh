#!/bin/bash
# bench_launched.sh TUTTI [MPI]: tutti bench among ranks that a launcher has started: `tutti run`, or that of an MPI
# (openmpi or mpich), beside whose collectives it measures. TUTTI_HOST_ID makes a host of each rank.
# shellcheck source=tests/tools/common.sh
. "$(dirname "$0")/common.sh"
need python3
tutti=$1
mpi=${2:-none}
quick=(--iters 22 -w 1)

# launch COMMAND...: two ranks of it.
case $mpi in
none) launch=("$tutti" run -n 2 --) ;;
openmpi) launch=(mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -n 2) ;;
mpich) launch=(mpiexec.mpich -n 2) ;;
esac
need "${launch[0]}"
launched=("${launch[@]}" "$tutti" bench)
# shellcheck disable=SC2016
apart=("${launch[@]}" sh -c 'TUTTI_HOST_ID=$OMPI_COMM_WORLD_RANK$PMI_RANK$RANK exec "$0" bench "$@"' "$tutti")

# ---- rank 0 prints one table, and writes the files
status 0 "${launched[@]}" --collective all_gather -b 8 -e 64K -f 64 "${quick[@]}" --json "$work/one.json" --csv "$work/one.csv"
[[ $(grep -vc '^#' "$work/out") == 3 && $(grep -c '^#  Rank ' "$work/out") == 2 ]] ||
    { complain "not one table"; cat "$work/out"; }
awk '!/^#/ && (NF != 13 || $9 != 0 || $13 != 0) { exit 1 }' "$work/out" || { complain "columns"; cat "$work/out"; }
out '^# Out of bounds values : 0 OK$'
python3 - "$work/one.json" <<'PYTHON' || complain "JSON"
import json, sys
result = json.load(open(sys.argv[1]))
assert list(result["hosts"].values()) == [2] and "mpi" not in result, result["hosts"]
assert len(result["rows"]) == 6
for row in result["rows"]:
    assert row["ranks"] == 2 and row["placement"] == "launched" and row["wrong"] == 0, row
PYTHON
[[ $(wc -l <"$work/one.csv") == 7 ]] || complain "CSV"
status 0 "${launched[@]}" --collective barrier "${quick[@]}"
status 0 "${launched[@]}" -b 1K -e 1K -d all -o all --symmetric --iters 10 -w 1

# ---- bad use
# refused MESSAGE OPTION...
refused() {
    local message=$1
    shift
    status 64 "${first[@]}" "$tutti" bench "$@"
    err "$message"
}
if [[ $mpi == none ]]; then
    first=(env)
    refused '--vs mpi: the ranks must be those of a launcher' --vs mpi
    refused '--vs mpi: the ranks must be those of a launcher' -n 2 --vs mpi
    refused '--fabric: the ranks must be those of a launcher' --fabric mpi:
    first=(env RANK=0 WORLD_SIZE=4)
    refused '2 ranks: torchrun has started 4 already, .*leave out -n, -t and -g' -n 2
    refused '2 ranks: torchrun has started 4 already' -t 2
    refused '--threads: .* among the ranks that torchrun has started' --threads
    refused '--device cuda: only CPU ranks are measured among' --device cuda
    refused '--collective all_reduce_rms_norm: .* among' --collective all_reduce_rms_norm
    refused '--vs: give mpi among' --vs gloo
    refused '--collective barrier: .*leave out --vs' --collective barrier --vs mpi
    refused '--style osu .*leave out --vs' --vs mpi --style osu
    refused '--vs mpi: the fabric is mpi:, not nccl:' --vs mpi --fabric nccl:
    refused "--json: '/nonexistent/x'" --json /nonexistent/x
    status 1 env RANK=0 WORLD_SIZE=257 "$tutti" bench
    err 'torchrun has started 257 ranks: a communicator has at most 256'
    status 1 "${launched[@]}" --vs mpi
    err 'rank [01]: tutti_fabric_open\(mpi:\): no MPI: '
    status 1 "${launched[@]}" --fabric tcp:
    err 'rank [01]: .*: unknown fabric'
    status 1 "${apart[@]}" -b 8 -e 8 --timeout 20
    err 'without a fabric .* Tutti joins the ranks of one host'
    # In a job of Slurm only srun starts ranks, and -n starts others there.
    status 0 env SLURM_PROCID=0 SLURM_NTASKS=2 "$tutti" bench -n 2 -b 8 -e 8 "${quick[@]}"
    step=(env SLURM_JOB_ID=1 SLURM_STEP_ID=0 SLURM_NTASKS=2)
    status 0 "${step[@]}" SLURM_PROCID=0 "$tutti" bench -n 2 -b 8 -e 8 "${quick[@]}"
    # It does not say that its ranks share a host; then they do without a fabric.
    "${step[@]}" SLURM_PROCID=1 "$tutti" bench -b 8 -e 8 "${quick[@]}" >/dev/null 2>&1 &
    status 0 "${step[@]}" SLURM_PROCID=0 "$tutti" bench -b 8 -e 8 "${quick[@]}"
    out '^#  Rank  1 .* started by slurm$'
    err 'rank 0: tutti_fabric_open\(mpi:\): no MPI: '
    wait
    finish
fi

# ---- beside the launcher's MPI; each element of both is checked
for collective in all_reduce reduce_scatter broadcast all_to_all_v; do
    status 0 "${launched[@]}" --vs mpi --collective $collective -b 8 -e 64K -f 64 "${quick[@]}"
    out '^# (Open MPI|MPICH) '
    out '^# +size .* time +algbw +busbw +#wrong +mpi +ratio$'
    awk '!/^#/ && (NF != 11 || $9 != 0 || $10 <= 0 || $11 <= 0) { exit 1 }' "$work/out" ||
        { complain "$collective: columns"; cat "$work/out"; }
done
status 0 "${apart[@]}" --fabric mpi: --vs mpi -b 8 -e 64K -f 64 -d float64,bfloat16 "${quick[@]}" --json "$work/two.json"
python3 - "$work/two.json" <<'PYTHON' || complain "JSON of two hosts"
import json, sys
result = json.load(open(sys.argv[1]))
assert result["hosts"] == {"0": 1, "1": 1} and result["mpi"], result["hosts"]
assert [(row["dtype"], len(row["rivals"])) for row in result["rows"]] == 3 * [("float64", 1)] + 3 * [("bfloat16", 0)]
for row in result["rows"][:3]:
    assert row["rivals"]["mpi"] > 0 and abs(row["ratio"] * row["rivals"]["mpi"] / row["tutti_us"] - 1) < 1e-3, row
    assert row["wrong"] == 0 and not row["in_place"], row
PYTHON

# ---- more ranks than a host may have
if [[ $mpi == mpich ]]; then
    # shellcheck disable=SC2016
    status 0 mpiexec.mpich -n 66 sh -c 'TUTTI_HOST_ID=$((PMI_RANK / 33)) exec "$0" bench "$@"' "$tutti" \
        --fabric mpi: --collective all_gather_v -b 8 -e 8 --iters 1 -w 0
    [[ $(grep -c '^#  Rank ' "$work/out") == 66 ]] || { complain "not 66 ranks"; cat "$work/out"; }
    out '^# Out of bounds values : 0 OK$'
fi

# ---- between two namespaces, where MPI tells the address of rank 0's store. (MPICH 4.0 may hang at its end there.)
if [[ $mpi == openmpi ]] && unshare --user --map-root-user --net true 2>/dev/null; then
    status 0 env TUTTI_BUILD="${tutti%/tools/*}" scripts/bench-hosts openmpi 2,1 0 -b 8 -e 64K -f 64 "${quick[@]}"
    [[ $(grep -c 'on host host-[ab], started by openmpi' "$work/out") == 3 ]] || { complain "not 3 ranks"; cat "$work/out"; }
    out '^# Out of bounds values : 0 OK$'
fi
finish
