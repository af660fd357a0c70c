# two-hosts.sh: for scripts that start the ranks of an MPI on two "hosts" of this machine, host-a and host-b: network
# namespaces with a cable (veth, v0 at both ends) between them. A script that sources it has set
#   mpi, cc    as scripts/mpis.sh says
#   spread     the ranks of both hosts: 2,2
#   arguments  its own, with which it is started again in its namespaces
# It gets what scripts/mpis.sh gives, `tmp` (a folder that goes), `hosts` (a process of each), launch() and received().
# Exits with 77 where something is missing.

. scripts/mpis.sh
[[ ${#intel[@]} == 0 ]] || intel+=(FI_PROVIDER=tcp FI_TCP_IFACE=v0 I_MPI_FABRICS=ofi)

# Everything runs, and ends, in namespaces of this script.
if [[ -z ${FABRIC_INSIDE:-} ]]; then
    user=()
    [[ $(id -u) == 0 ]] || user=(--user --map-root-user)
    unshare=(unshare "${user[@]}" --net --uts --mount --pid --fork --kill-child --mount-proc)
    "${unshare[@]}" ip link add v0 type veth peer name v1 2>/dev/null || skip "namespaces are not permitted here"
    FABRIC_INSIDE=1 exec "${unshare[@]}" "$0" "${arguments[@]}"
fi
tmp=$(mktemp -d)
trap 'rm -rf "$tmp"' EXIT
export TMPDIR=$tmp # Open MPI keeps a folder there for each user
mount -t tmpfs shm /dev/shm # an MPI that is killed leaves files there
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
# Waits until the cable is up; the kernel takes up to a second.
await_cable() {
    local pid
    for pid in "${hosts[@]}"; do
        while [[ $(nsenter -t "$pid" --mount cat /sys/class/net/v0/operstate) != up ]]; do sleep 0.01; done
    done
}
await_cable
# Stands in for ssh.
cat >"$tmp/agent" <<AGENT
#!/bin/sh
while case "\$1" in -*) true ;; *) false ;; esac; do shift; done
case "\$1" in 10.9.0.1) pid=${hosts[0]} ;; *) pid=${hosts[1]} ;; esac
shift
exec nsenter -t \$pid --net --uts --mount sh -c "\$*"
AGENT
chmod +x "$tmp/agent"

# launch PROGRAM ARGUMENT...: the ranks on both hosts, the first ones on host-a.
launch() {
    local options on=(${spread/,/ })
    local count=$((on[0] + on[1])) places=10.9.0.1:${on[0]},10.9.0.2:${on[1]}
    case $mpi in
    openmpi)
        options=(--allow-run-as-root --oversubscribe --bind-to none -np "$count" -H "$places"
            --mca plm rsh --mca plm_rsh_agent "$tmp/agent" --mca oob_tcp_if_include 10.9.0.0/24
            --mca pml ob1 --mca btl self,vader,tcp --mca btl_tcp_if_include 10.9.0.0/24) ;;
    openmpi5)
        options=(--allow-run-as-root --oversubscribe --bind-to none -np "$count" -H "$places"
            --prtemca plm ssh --prtemca plm_ssh_agent "$tmp/agent" --prtemca prte_if_include 10.9.0.0/24
            --mca pml ob1 --mca btl self,sm,tcp --mca btl_tcp_if_include 10.9.0.0/24) ;;
    *)
        options=(-launcher ssh -launcher-exec "$tmp/agent" -iface v0 -hosts "$places" -n "$count") ;;
    esac
    nsenter -t "${hosts[0]}" --net --uts --mount env OMPI_MCA_mpi_yield_when_idle=1 UCX_TLS=tcp,self UCX_NET_DEVICES=v0 \
        "${intel[@]}" \
        timeout 100 "$launcher" "${options[@]}" "$@"
}

received() {
    nsenter -t "${hosts[0]}" --net awk '$1 == "v0:" { print $2 }' /proc/net/dev
}
