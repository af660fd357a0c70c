#!/bin/bash
# mpi.sh MPI CC ALONE LIBRARY...
# The fabric over one MPI: openmpi and mpich of the system, openmpi5, mpich5 and intelmpi of scripts/rivals. Four ranks on
# two "hosts", which are network namespaces with a cable (veth) between them; the bytes on it are counted.
# ALONE is the program without MPI; LIBRARY... are the archives of the program that this script links with the MPI.
set -euo pipefail
mpi=$1 cc=$2 alone=$3
shift 3
libraries=("$@")

skip() {
    echo "skipped: $*"
    exit 77
}

# MPI_Finalize() of MPICH 4.0 over UCX's TCP hangs in three of four runs, of any program in which all pairs have exchanged
# messages: a rank that has closed its connections no longer answers the others. Its ranks leave without it.
[[ $mpi != mpich ]] || export FABRIC_LEAVES=1
# After a message that is longer than its receive, MPICH 4.0 ends the process, and Intel MPI the connection.
[[ ! $mpi =~ ^(mpich|intelmpi)$ ]] || export FABRIC_CUTS=1
rivals=$PWD/.rivals/$(sed 's/5$//' <<<"$mpi")
intel=()
multiarch=/usr/lib/$(uname -m)-linux-gnu
case $mpi in
openmpi) launcher=mpirun.openmpi library=$multiarch/libmpi.so.40 compile=(mpicc.openmpi) ;;
mpich) launcher=mpiexec.mpich library=$multiarch/libmpich.so.12 compile=(mpicc.mpich) ;;
openmpi5) launcher=$rivals/bin/mpirun library=$rivals/lib/libmpi.so.40 compile=("$rivals/bin/mpicc") ;;
mpich5) launcher=$rivals/bin/mpiexec library=$rivals/lib/libmpi.so.12 compile=("$rivals/bin/mpicc") ;;
# Intel's wheel has no headers. Its binary interface is MPICH's.
intelmpi)
    intel=(FI_PROVIDER=tcp FI_TCP_IFACE=v0 I_MPI_FABRICS=ofi I_MPI_ROOT="$rivals" FI_PROVIDER_PATH="$rivals/lib")
    launcher=$rivals/bin/mpiexec.hydra library=$rivals/lib/libmpi.so.12
    compile=("$cc" -I"$PWD/.rivals/mpich/include" -Wl,--no-as-needed,-rpath,"$rivals/lib" "$library") ;;
esac
command -v "$launcher" >/dev/null || skip "no $launcher"
[[ -e $library ]] || skip "no $library"

# Everything runs, and ends, in namespaces of this script.
if [[ -z ${FABRIC_INSIDE:-} ]]; then
    user=()
    [[ $(id -u) == 0 ]] || user=(--user --map-root-user)
    unshare=(unshare "${user[@]}" --net --uts --mount --pid --fork --kill-child --mount-proc)
    "${unshare[@]}" ip link add v0 type veth peer name v1 2>/dev/null || skip "namespaces are not permitted here"
    FABRIC_INSIDE=1 exec "${unshare[@]}" "$0" "$mpi" "$cc" "$alone" "${libraries[@]}"
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export TMPDIR=$tmp # Open MPI keeps a folder there for each user
unset ${!TUTTI_@} RANK WORLD_SIZE

hosts=()
for host in a b; do
    # UCX looks for its interface in /sys, which shows the namespace that mounted it.
    unshare --net --uts --mount sh -c "mount -t sysfs sysfs /sys; hostname host-$host; exec sleep 1000" &
    hosts+=($!)
done
for pid in "${hosts[@]}"; do
    while [[ $(nsenter -t "$pid" --uts hostname 2>/dev/null) != host-* ]]; do sleep 0.01; done
done
ip link set lo up # mpicc of Open MPI looks for one
ip link add v0 netns "${hosts[0]}" type veth peer name v0 netns "${hosts[1]}"
for i in 0 1; do
    nsenter -t "${hosts[i]}" --net sh -c "ip addr add 10.9.0.$((i + 1))/24 dev v0; ip link set lo up; ip link set v0 up"
done
for pid in "${hosts[@]}"; do # the kernel takes up to a second
    while [[ $(nsenter -t "$pid" --mount cat /sys/class/net/v0/operstate) != up ]]; do sleep 0.01; done
done
# Stands in for ssh.
cat >"$tmp/agent" <<AGENT
#!/bin/sh
while case "\$1" in -*) true ;; *) false ;; esac; do shift; done
case "\$1" in 10.9.0.1) pid=${hosts[0]} ;; *) pid=${hosts[1]} ;; esac
shift
exec nsenter -t \$pid --net --uts --mount sh -c "\$*"
AGENT
chmod +x "$tmp/agent"

# launch PROGRAM ARGUMENT...: four ranks on two hosts.
launch() {
    local options
    case $mpi in
    openmpi)
        options=(--allow-run-as-root --oversubscribe --bind-to none -np 4 -H 10.9.0.1:2,10.9.0.2:2
            --mca plm rsh --mca plm_rsh_agent "$tmp/agent" --mca oob_tcp_if_include 10.9.0.0/24
            --mca pml ob1 --mca btl self,vader,tcp --mca btl_tcp_if_include 10.9.0.0/24) ;;
    openmpi5)
        options=(--allow-run-as-root --oversubscribe --bind-to none -np 4 -H 10.9.0.1:2,10.9.0.2:2
            --prtemca plm ssh --prtemca plm_ssh_agent "$tmp/agent" --prtemca prte_if_include 10.9.0.0/24
            --mca pml ob1 --mca btl self,sm,tcp --mca btl_tcp_if_include 10.9.0.0/24) ;;
    *)
        options=(-launcher ssh -launcher-exec "$tmp/agent" -iface v0 -hosts 10.9.0.1:2,10.9.0.2:2 -n 4) ;;
    esac
    nsenter -t "${hosts[0]}" --net --uts --mount env OMPI_MCA_mpi_yield_when_idle=1 UCX_TLS=tcp,self UCX_NET_DEVICES=v0 \
        "${intel[@]}" \
        timeout 100 "$launcher" "${options[@]}" "$@"
}

received() {
    nsenter -t "${hosts[0]}" --net awk '$1 == "v0:" { print $2 }' /proc/net/dev
}

# crosses WHAT PROGRAM ARGUMENT...: the patterns pass, and what is to cross the cable does.
crosses() {
    local before=$(received) start=$EPOCHREALTIME
    echo "== $1"
    rm -f "$tmp/store"
    launch "${@:2}" || { echo "failed: $1"; exit 1; }
    local bytes=$(($(received) - before))
    echo "$bytes bytes crossed, $((${EPOCHREALTIME/./} - ${start/./})) us"
    # Two messages of 8 MiB of each of 2 ranks to each of 2.
    [[ $bytes -gt $((8 * (8 << 20))) ]] || { echo "failed: $1: the bytes went another way"; exit 1; }
}

# refused TEXT [NAME=VALUE...] PROGRAM ARGUMENT...: the fabric is not opened, and the message has the text.
refused() {
    local text=$1 said
    shift
    said=$(env "$@" 2>&1) && { echo "failed: not refused: $*"; exit 1; }
    [[ $said == *"$text"* ]] || { echo "failed: expected \"$text\": $*: $said"; exit 1; }
}

if ! command -v "${compile[0]}" >/dev/null || [[ $mpi == intelmpi && ! -e .rivals/mpich/include/mpi.h ]]; then
    echo "skipped: linked: no compiler of this MPI"
else
    "${compile[@]}" -no-pie -fno-pic -Itests/fabric -o "$tmp/linked" tests/fabric/linked.c "${libraries[@]}" -lm -lpthread -ldl
    crosses "linked" "$tmp/linked" "$tmp/store" mpi:
fi
crosses "the launcher's" "$alone" "$tmp/store" mpi:
# The third case takes the standard interface where the MPI has it.
opened=${library%/*}/libmpi_abi.so.1
[[ $mpi != *open* && -e $opened ]] || opened=$library
crosses "opened at run time" "$alone" "$tmp/store" "mpi:$opened" "$opened"

# A second MPI, the wrong launcher, none, and a world that is not shared.
[[ ${#intel[@]} == 0 ]] || export "${intel[@]}"
foreign=PMI_RANK=0
[[ $mpi == *open* ]] || foreign=OMPI_COMM_WORLD_SIZE=2
echo "no MPI" >"$tmp/libmpi.so.12"
refused "unknown fabric" "$alone" - tcp:
refused "no MPI: the program has not loaded one" "$alone" - mpi:
refused "$tmp/libmpi.so.12" PMI_RANK=0 "$alone" - "mpi:$tmp/libmpi.so.12"
refused "has loaded another MPI, $library" "$alone" - "mpi:$tmp/libmpi.so.12" "$library"
refused "no launcher has started the process" "$alone" - mpi: "$library" -
refused "is not the MPI of" "$foreign" "$alone" - mpi: "$library" -
refused "is not the MPI of" "$foreign" "$alone" - "mpi:$library"
refused "was finalized" "$alone" - mpi: "$library" end
RANK=0 WORLD_SIZE=2 "$alone" "$tmp/store1" mpi: "$library" >/dev/null 2>&1 &
refused "MPI_COMM_WORLD" RANK=1 WORLD_SIZE=2 "$alone" "$tmp/store1" mpi: "$library"
[[ $mpi != mpich ]] || refused "found 1 rank" PMIX_RANK=0 SLURM_NTASKS=2 "$alone" - mpi: "$library" -
