"""The command `deepspeed`: its options, as `capstan launch` takes them."""

import argparse
import base64
import json
import os
import sys

from capstan import program
from capstan.errors import ConfigError
from deepspeed.later import refuse
from deepspeed.launcher.constants import PDSH_LAUNCHER
from deepspeed.launcher.hosts import (_parse_hostfile, fetch_hostfile, parse_inclusion_exclusion,  # noqa: F401
                                      parse_node_config, parse_node_config_list, parse_num_nodes,
                                      parse_resource_filter)

DLTS_HOSTFILE = "/job/hostfile"
DEEPSPEED_ENVIRONMENT_NAME = os.environ.get("DS_ENV_FILE", ".deepspeed_env")
DEEPSPEED_ENVIRONMENT_PATHS = [os.path.expanduser("~"), "."]
EXPORT_ENVS = ["MLFLOW", "PYTHON", "MV2", "UCX"]
_CARRIERS = {"openmpi": "mpi", "mpich": "mpi", "impi": "mpi", "mvapich": "mpi", "slurm": "slurm", "pdsh": "auto"}


def make_parser():
    parser = argparse.ArgumentParser(prog="deepspeed", description="Start a script on the ranks of one or several hosts.",
                                     formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("-H", "--hostfile", type=str, default=DLTS_HOSTFILE, help="lines 'host slots=N'")
    add("-i", "--include", type=str, default="", help="hosts and slots to use: host1@host2:0,2")
    add("-e", "--exclude", type=str, default="", help="hosts and slots to leave out")
    add("--num_nodes", type=int, default=-1)
    add("--num_gpus", "--num_accelerators", type=int, default=-1)
    add("--min_elastic_nodes", type=int, default=-1)
    add("--max_elastic_nodes", type=int, default=-1)
    add("--master_port", type=int, default=int(os.environ.get("DLTS_MASTER_PORT", 29500)))
    add("--master_addr", type=str, default="")
    add("--node_rank", type=int, default=-1)
    add("--launcher", type=str, default=PDSH_LAUNCHER)
    add("--launcher_args", type=str, default="")
    add("--module", action="store_true")
    add("--no_python", action="store_true")
    add("--no_local_rank", action="store_true")
    add("--no_ssh", action="store_true")
    add("--no_ssh_check", action="store_true")
    add("--force_multi", action="store_true")
    add("--save_pid", action="store_true")
    add("--enable_each_rank_log", type=str, default="None")
    add("--autotuning", type=str, default="", choices=["tune", "run"])
    add("--elastic_training", action="store_true")
    add("--bind_cores_to_rank", action="store_true")
    add("--bind_core_list", type=str, default=None)
    add("--ssh_port", type=int, default=None)
    add("--venv_script", type=str, default=None)
    add("--log_level", type=str, default="info")
    add("-q", "--quiet", action="store_true")
    add("user_script", type=str)
    add("user_args", nargs=argparse.REMAINDER)
    return parser


def parse_args(args=None):
    return make_parser().parse_args(args)


def encode_world_info(world_info):
    return base64.urlsafe_b64encode(json.dumps(world_info).encode()).decode()


def decode_world_info(text):
    return json.loads(base64.urlsafe_b64decode(text))


def launch_words(args):
    """The same as words for `capstan launch`."""
    if args.elastic_training:
        refuse("deepspeed {}", "--elastic_training")
    if (args.include or args.exclude) and (args.num_nodes >= 0 or args.num_gpus >= 0):
        raise ConfigError("--include or --exclude cannot be combined with --num_nodes or --num_gpus: both choose hosts and slots",
                          "the command line", "give either a filter or numbers")
    words = ["launch", "--no_prefix"]
    for flag in ("module", "no_python", "no_local_rank", "no_ssh", "save_pid", "bind_cores_to_rank", "quiet"):
        if getattr(args, flag):
            words.append(f"--{flag}")
    for name, unset in (("num_gpus", -1), ("num_nodes", -1), ("node_rank", -1), ("include", ""), ("exclude", ""),
                        ("master_addr", ""), ("launcher_args", ""), ("bind_core_list", None), ("ssh_port", None),
                        ("enable_each_rank_log", "None"), ("autotuning", "")):
        value = getattr(args, name)
        if value != unset:
            words += [f"--{name}", str(value)]
    multi = os.path.isfile(args.hostfile)
    if multi:
        words += ["--hostfile", args.hostfile, "--launcher", _CARRIERS.get(args.launcher.lower(), "auto")]
        words += ["--master_port", str(args.master_port)]
    for folder in DEEPSPEED_ENVIRONMENT_PATHS:
        path = os.path.join(folder, DEEPSPEED_ENVIRONMENT_NAME)
        if os.path.isfile(path):
            words += ["--env-file", path]
            break
    return words + [args.user_script, *args.user_args]


def main(args=None):
    words = launch_words(parse_args(args if args is not None else sys.argv[1:]))
    os.environ["CAPSTAN_NO_PREFIX"] = "1"  # ranks then name themselves
    program.run(*words)


if __name__ == "__main__":
    main()
