"""Names of launchers."""

PDSH_LAUNCHER, OPENMPI_LAUNCHER, MPICH_LAUNCHER, IMPI_LAUNCHER = "pdsh", "openmpi", "mpich", "impi"
SLURM_LAUNCHER, MVAPICH_LAUNCHER = "slurm", "mvapich"
PDSH_MAX_FAN_OUT, MVAPICH_TMP_HOSTFILE = 1024, "/tmp/deepspeed_mvapich_hostfile"
ELASTIC_TRAINING_ID_DEFAULT = "123456789"
