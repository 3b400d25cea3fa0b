"""The layers of a PipelineModule as files, one per layer, which any number of stages can read."""

import functools
import glob
import os

from capstan import gathered
from capstan.errors import IoError


class LayerFiles:
    """Mixed into PipelineModule."""

    def ckpt_prefix(self, checkpoints_path, tag):
        """How the files of this stage begin."""
        return os.path.join(checkpoints_path, str(tag),
                            "module-" + self._topo.get_rank_repr(self.global_rank, omit_axes=["data"]))

    def _layer_file(self, index):
        return f"layer_{index + self._local_start:02d}-"

    def ckpt_layer_path(self, ckpt_dir, local_layer_idx):
        name = self._topo.get_rank_repr(self.global_rank)
        return os.path.join(ckpt_dir, self._layer_file(local_layer_idx) + (name and f"{name}-") + "model_states.pt")

    def ckpt_layer_path_list(self, ckpt_dir, local_layer_idx):
        """The files that there are of a layer."""
        return sorted(glob.glob(os.path.join(glob.escape(ckpt_dir), self._layer_file(local_layer_idx) + "*model_states.pt")))

    def _layers_with_state(self):
        """Tied ones that have a function of their own, too: that function's first argument."""
        layers = [each.args[0] if isinstance(each, functools.partial) else each for each in self.forward_funcs]
        return [(index, layer) for index, layer in enumerate(layers) if hasattr(layer, "state_dict")]

    def save_state_dict(self, save_dir, checkpoint_engine, exclude_frozen_params=False):
        """Of each pipeline the first writes its layers. Collective where parameters are sharded."""
        for index, layer in self._layers_with_state():
            with gathered(layer):
                if self._grid.data_parallel_id > 0:
                    continue
                frozen = {name for name, param in layer.named_parameters() if exclude_frozen_params and not param.requires_grad}
                state = {name: value.clone() for name, value in layer.state_dict().items() if name not in frozen}
            checkpoint_engine.makedirs(save_dir, exist_ok=True)
            checkpoint_engine.save(state_dict=state, path=self.ckpt_layer_path(save_dir, index))

    def load_state_dir(self, load_dir, checkpoint_engine, strict=True):
        """Collective where parameters are sharded."""
        for index, layer in self._layers_with_state():
            files = self.ckpt_layer_path_list(load_dir, index)
            if not files:
                raise IoError(f"there is no file of layer {index + self._local_start}",
                              self.ckpt_layer_path(load_dir, index), "give the folder that save_state_dict() wrote")
            with gathered(layer, modifier_rank=0):
                layer.load_state_dict(checkpoint_engine.load(files[0], map_location="cpu"), strict=strict)
