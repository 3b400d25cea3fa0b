"""Command lines that start ranks on several hosts, for callers that build them themselves."""

import re
import shlex
import shutil
import sys
from abc import ABC, abstractmethod


class MultiNodeRunner(ABC):

    def __init__(self, args, world_info_base64):
        self.args = args
        self.validate_args()
        self.user_arguments = list(args.user_args)
        self.user_script = args.user_script
        self.world_info_base64 = world_info_base64
        self.exports = {}

    @abstractmethod
    def backend_exists(self):
        """Whether the program that starts the ranks is installed."""

    @abstractmethod
    def get_cmd(self, environment, active_resources):
        """The words of the command."""

    def add_export(self, key, var):
        text = var.strip()
        self.exports[key.strip()] = f"\"{text}\"" if re.search(r"[^A-Za-z0-9_./:,=@%+-]", text) else text

    @property
    def name(self):
        return type(self).__name__

    def validate_args(self):
        pass

    def _script(self):
        words = [] if getattr(self.args, "no_python", False) else [sys.executable, "-u"]
        if getattr(self.args, "module", False):
            words.append("-m")
        return words + [self.user_script, *self.user_arguments]

    def _ranks(self, resources):
        return sum(slots if isinstance(slots, int) else len(slots) for slots in resources.values())


class PDSHRunner(MultiNodeRunner):
    name = "pdsh"

    def backend_exists(self):
        return shutil.which("pdsh")

    def get_cmd(self, environment, active_resources):
        environment["PDSH_RCMD_TYPE"] = "ssh"
        hosts = ",".join(active_resources)
        exports = "".join(f"export {key}={value}; " for key, value in self.exports.items())
        start = [exports, "cd .;", sys.executable, "-u", "-m", "deepspeed.launcher.launch",
                 f"--master_addr={self.args.master_addr}", f"--master_port={self.args.master_port}", self.user_script]
        command = ["pdsh", "-S", "-f", "1024", "-w", hosts, *shlex.split(self.args.launcher_args)]
        return command + start + self.user_arguments, ["pdsh", "-w", hosts, "true"], environment


class _MpiRunner(MultiNodeRunner):

    def __init__(self, args, world_info_base64, resource_pool):
        super().__init__(args, world_info_base64)
        self.resource_pool = resource_pool

    def backend_exists(self):
        return shutil.which("mpirun")

    def _exports(self):
        return [word for key, value in self.exports.items() for word in ("-x", f"{key}={value}")]


class OpenMPIRunner(_MpiRunner):
    name = "openmpi"

    def get_cmd(self, environment, active_resources):
        given = shlex.split(self.args.launcher_args)
        network = [] if "btl_tcp_if_include" in given else ["--mca", "btl_tcp_if_include", "eth0"]
        return ["mpirun", "-n", str(self._ranks(self.resource_pool)), "-hostfile", self.args.hostfile, "--mca", "btl",
                "^openib", *network, *given, *self._exports(), *self._script()]


class MPICHRunner(_MpiRunner):
    name, count_flag = "mpich", "-n"

    def get_cmd(self, environment, active_resources):
        per_host = next(iter(self.resource_pool.values()))
        return ["mpirun", self.count_flag, str(self._ranks(self.resource_pool)), "-ppn", str(per_host),
                *shlex.split(self.args.launcher_args), *self._script()]


class IMPIRunner(MPICHRunner):
    name = "impi"


class MVAPICHRunner(MPICHRunner):
    name, count_flag = "mvapich", "-np"


class SlurmRunner(_MpiRunner):
    name = "slurm"

    def backend_exists(self):
        return shutil.which("sinfo")

    def get_cmd(self, environment, active_resources):
        exports = ",".join(["ALL", *(f"{key}={value}" for key, value in self.exports.items())])
        return ["srun", "-n", str(self._ranks(self.resource_pool)), *shlex.split(self.args.launcher_args),
                f"--export={exports}", *self._script()]
