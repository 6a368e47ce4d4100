# To be sourced before mpirun: what Open MPI needs to be told on one machine.
# Root, the usual user of a container, is refused unless both of these are set.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# hwloc looks for graphics cards behind X displays on "localhost": where no name server answers for it, each
# start takes 5 s.
export HWLOC_COMPONENTS=${HWLOC_COMPONENTS:--gl}
# All ranks are on this machine: without a look for network cards a run starts in half the time.
export OMPI_MCA_pml=${OMPI_MCA_pml:-ob1}
# A start on one machine needs no way to others, but Open MPI refuses to start where it finds none.
command -v ssh >/dev/null || command -v rsh >/dev/null || export OMPI_MCA_plm_rsh_agent=/bin/true
