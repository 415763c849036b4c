#!/bin/sh
# Sees to it that the tools that the tests need are there: compilers and MPIs for the native clients, and what faults are
# made with. On Debian and as root it installs what is missing; elsewhere it says what to install.
set -eu

missing=""

need() {
    missing="$missing $1"
}

# has PACKAGE COMMAND…: the package is missing if one of its commands is.
has() {
    package=$1
    shift
    for command in "$@"; do
        command -v "$command" > /dev/null || { need "$package"; return; }
    done
}

has_fuzzer() {
    command -v clang > /dev/null && [ -e "$(clang -print-file-name="libclang_rt.fuzzer-$(uname -m).a")" ]
}

has build-essential cc c++ make
has gfortran gfortran
has cmake cmake
has pkg-config pkg-config
has valgrind valgrind
has patch patch
has git git
has strace strace
has iproute2 ip
has slurmctld slurmctld
has slurmd slurmd
has slurm-client sbatch srun squeue scancel
has munge munged
has clang clang clang++
[ -e /usr/share/i18n/locales/de_DE ] || need locales
has chromium chromium
has chromium-driver chromedriver
has mpich mpirun.mpich
has libmpich-dev mpicc.mpich mpif90.mpich
has openmpi-bin mpirun.openmpi
has libopenmpi-dev mpicc.openmpi mpif90.openmpi
has_fuzzer || need libclang-rt-dev
[ -e /usr/include/zmq.h ] || need libzmq3-dev

[ -n "$missing" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
    echo "installing$missing"
    export DEBIAN_FRONTEND=noninteractive
    apt-get update -qq
    # shellcheck disable=SC2086
    apt-get install -qq -y --no-install-recommends $missing > /dev/null
else
    echo "The tests need tools that are not there. Install them: sudo apt-get install$missing" >&2
    exit 1
fi
