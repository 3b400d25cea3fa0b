"""Names in the configuration's section on communication logs."""

COMMS_LOGGER = "comms_logger"
COMMS_LOGGER_ENABLED_DEFAULT = False
COMMS_LOGGER_VERBOSE_DEFAULT = False
COMMS_LOGGER_PROF_ALL_DEFAULT = True
COMMS_LOGGER_PROF_OPS_DEFAULT = []
COMMS_LOGGER_DEBUG_DEFAULT = False
NCCL_BACKEND, CCL_BACKEND, MPI_BACKEND, GLOO_BACKEND = "nccl", "ccl", "mpi", "gloo"
