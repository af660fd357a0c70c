# mpis.sh: for scripts that start the ranks of an MPI. A script that sources it has set
#   mpi        openmpi or mpich, of the system; openmpi5, mpich5 or intelmpi, of scripts/rivals
#   cc         a C compiler, for Intel MPI
# It gets `launcher`, `library` (the MPI's), `compile` (a command that compiles a program with the MPI) and `intel`
# (variables that Intel MPI needs). Exits with 77 where something is missing.

skip() {
    echo "skipped: $*"
    exit 77
}

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
    intel=(I_MPI_ROOT="$rivals" FI_PROVIDER_PATH="$rivals/lib")
    launcher=$rivals/bin/mpiexec.hydra library=$rivals/lib/libmpi.so.12
    compile=("$cc" -I"$PWD/.rivals/mpich/include" -Wl,--no-as-needed,-rpath,"$rivals/lib" "$library") ;;
esac
command -v "$launcher" >/dev/null || skip "no $launcher"
[[ -e $library ]] || skip "no $library"
