# Source this before mpirun: settings that Open MPI needs on one machine. Without the first two, Open MPI
# refuses to run as root, the usual user in a container.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# hwloc looks for GPUs of X displays on "localhost"; if no name server answers, that delays each start by 5 s.
export HWLOC_COMPONENTS=${HWLOC_COMPONENTS:--gl}
# All ranks are on this machine, and runs start in half the time without probing network adapters.
export OMPI_MCA_pml=${OMPI_MCA_pml:-ob1}
# One machine needs no remote shell, but Open MPI refuses to start without one.
command -v ssh >/dev/null || command -v rsh >/dev/null || export OMPI_MCA_plm_rsh_agent=/bin/true
