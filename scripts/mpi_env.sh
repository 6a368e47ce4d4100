# Source this before mpirun: settings that Open MPI needs on one machine. Open MPI refuses to run as root, the
# usual user of a container, unless both of these are set.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# hwloc looks for GPUs behind X displays on "localhost": if no name server answers, each start takes 5 s.
export HWLOC_COMPONENTS=${HWLOC_COMPONENTS:--gl}
# All ranks are on this machine: a run starts in half the time without probing network adapters.
export OMPI_MCA_pml=${OMPI_MCA_pml:-ob1}
# A start on one machine needs no remote shell, but Open MPI refuses to start if it finds none.
command -v ssh >/dev/null || command -v rsh >/dev/null || export OMPI_MCA_plm_rsh_agent=/bin/true
