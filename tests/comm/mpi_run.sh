# mpi_run.sh MPIRUN PROGRAM [ARG...]: runs the program as 2 and as 3 ranks, and fails if either run does.
mpirun=$1
shift
# Open MPI's settings, by its own variables, so that it needs nothing of the machine: root or not, more ranks than cores, no binding to
# cores, no remote shell even looked for, and no reading of another process's memory, which containers often forbid.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_hwloc_base_binding_policy=none
export OMPI_MCA_plm=isolated OMPI_MCA_btl_vader_single_copy_mechanism=none
export ASAN_OPTIONS="detect_leaks=0${ASAN_OPTIONS:+:$ASAN_OPTIONS}" # MPI keeps its own to the end
failed=0
for ranks in 2 3; do
  "$mpirun" -n "$ranks" "$@" || failed=1
done
exit "$failed"
