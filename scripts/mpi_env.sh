# Source this before mpirun: settings that Open MPI needs on a single machine. Without the first two, Open MPI
# refuses to run as root, the usual user in a container.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
# hwloc looks for GPUs of X displays on "localhost". If no name server answers, each start takes 5 s longer.
export HWLOC_COMPONENTS=${HWLOC_COMPONENTS:--gl}
# All ranks are on this machine, so Open MPI need not probe network adapters. Runs then start twice as fast.
export OMPI_MCA_pml=${OMPI_MCA_pml:-ob1}
# Ranks on one machine need no network, so they open no port. mpirun itself listens on one, and announces only
# its loopback address.
export OMPI_MCA_btl=${OMPI_MCA_btl:-self,vader} OMPI_MCA_oob_tcp_if_include=${OMPI_MCA_oob_tcp_if_include:-lo}
# One machine needs no remote shell, but Open MPI refuses to start without one.
command -v ssh >/dev/null || command -v rsh >/dev/null || export OMPI_MCA_plm_rsh_agent=/bin/true
