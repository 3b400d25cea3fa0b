"""What lies in a checkpoint of DeepSpeed's own layout, by its file names and the plain data in its pickles."""

import glob
import os
import re

from capstan import _C
from deepspeed.checkpoint import constants
from deepspeed.checkpoint.model_3d import model_3d_desc


def _files(folder, pattern):
    found = glob.glob(os.path.join(folder, pattern))
    return sorted(found, key=lambda path: [int(n) for n in re.findall(r"\d+", os.path.basename(path))])


def _parallel_dims(states, folder):
    """{pp_degree, tp_degree} that the writers noted; None where nobody did, as older versions."""
    noted = [state.get(constants.CHECKPOINT_PARALLEL_DIMS) for state in states]
    if all(dims is None for dims in noted):
        return None
    if any(dims is None for dims in noted):
        raise RuntimeError(f"{folder}: {constants.CHECKPOINT_PARALLEL_DIMS} is missing from model-state files")
    if any(dims != noted[0] for dims in noted):
        raise RuntimeError(f"{folder}: {constants.CHECKPOINT_PARALLEL_DIMS} disagrees across model-state files")
    return noted[0]


class ZeROCheckpoint:
    """The files of the ranks, and the layout they were written in."""

    def __init__(self, dir):
        self.dir = dir
        self.file_list = _files(dir, "*_optim_states.pt")
        self.num_files = len(self.file_list)
        self.src_3d = get_model_3d_descriptor(dir)
        self.target_3d = model_3d_desc(self.src_3d.pp_degree, self.src_3d.tp_degree, self.src_3d.dp_degree)

    def get_src_world_size(self):
        return self.src_3d.world_size()

    def get_src_tp_degree(self):
        return self.src_3d.tp_degree

    def get_src_pp_degree(self):
        return self.src_3d.pp_degree

    def get_src_dp_degree(self):
        return self.src_3d.dp_degree


class DeepSpeedCheckpoint:
    """Reads every model-state file once; tensors have no values here."""

    def __init__(self, dir):
        self.dir = dir
        self.mp_rank_files = _files(dir, "*mp_rank_*_model_states.pt")
        self.zero_files = _files(dir, "*_optim_states.pt")
        self.layer_files = _files(dir, "layer_*-model_states.pt")
        if not self.mp_rank_files:
            raise FileNotFoundError(f"no *mp_rank_*_model_states.pt in {dir}")
        self.model_state_metadata = [_C.read_torch_file(path) for path in self.mp_rank_files]
        writers = [n for n in self.mp_rank_files if "zero_pp_rank_" not in os.path.basename(n)]
        models = len(writers) or len({re.search(r"mp_rank_(\d+)", n)[1] for n in self.mp_rank_files})
        dims = _parallel_dims(self.model_state_metadata, dir)
        if dims is None:
            tensors = len({n.rpartition("-model_")[0] for n in self.layer_files if n.count("-model_") > 1})
            dims = {constants.CHECKPOINT_PP_DEGREE: max(1, models // max(1, tensors)) if self.layer_files else 1,
                    constants.CHECKPOINT_TP_DEGREE: max(1, tensors) if self.layer_files else models}
        self.pp_degree, self.tp_degree = dims[constants.CHECKPOINT_PP_DEGREE], dims[constants.CHECKPOINT_TP_DEGREE]
        self.dp_degree = max(1, len(self.zero_files) // models)

    def get_checkpoint_info(self, key=constants.UNIVERSAL_CHECKPOINT_INFO):
        return self.model_state_metadata[0].get(key)


def get_model_3d_descriptor(dir):
    found = DeepSpeedCheckpoint(dir)
    return model_3d_desc(found.pp_degree, found.tp_degree, found.dp_degree)
