"""DeepSpeed's names for computing one tile of a sequence at a time; the computing is capstan.tiled."""

from capstan import tiled

# In all of these `compute_params` may be left out: a parameter that is used gets one gradient, the sum over the tiles,
# whether it is listed or not.


def sequence_tiled_compute(fn, seqlen, shards, kwargs_to_shard, kwargs_to_pass, grad_requiring_tensor_key,
                           compute_params=None, output_unshard_dimension=1, output_reduction="mean"):
    """fn(**kwargs_to_shard, **kwargs_to_pass), where the first are cut along dimension 1 into `shards` tiles.

    Outputs are put together along `output_unshard_dimension`; 0 stacks numbers, one per tile. `output_reduction`: None,
    "mean" (over all positions, also where tiles differ in length) or "sum".
    """
    return SequenceTiledCompute.apply(fn, seqlen, shards, list(kwargs_to_shard), list(kwargs_to_pass),
                                      grad_requiring_tensor_key, compute_params, output_unshard_dimension, output_reduction,
                                      *kwargs_to_shard.values(), *kwargs_to_pass.values())


class SequenceTiledCompute:
    """sequence_tiled_compute() with its dictionaries as keys and values."""

    @staticmethod
    def apply(fn, seqlen, shards, keys_to_shard, keys_to_pass, grad_requiring_tensor_key, compute_params,
              output_unshard_dimension, output_reduction, *args):
        if output_reduction not in (None, "mean", "sum"):
            raise ValueError(f"output_reduction is {output_reduction!r}; it must be None, 'mean' or 'sum'")
        if grad_requiring_tensor_key not in (*keys_to_shard, *keys_to_pass):
            raise ValueError(f"grad_requiring_tensor_key is {grad_requiring_tensor_key!r}, which is not among the arguments: "
                             f"{', '.join((*keys_to_shard, *keys_to_pass))}")
        keys, passed = len(keys_to_shard), dict(zip(keys_to_pass, args[len(keys_to_shard):]))
        for key, value in zip(keys_to_shard, args):
            if value.shape[1] != seqlen:
                raise ValueError(f"{key} has {value.shape[1]} positions in dimension 1, but seqlen is {seqlen}")
        tiles = list(zip(*(tiled.cut(value, shards, 1) for value in args[:keys])))
        outputs = tiled.outputs(lambda *tile: fn(**dict(zip(keys_to_shard, tile)), **passed), tiles)
        if output_unshard_dimension == 0 and output_reduction == "mean":
            return tiled.weighted(outputs, tiled.shares(seqlen, shards))
        whole = tiled.joined(outputs, output_unshard_dimension)
        return whole if output_reduction is None else getattr(whole, output_reduction)()


class TiledMLP:
    """fn(self, x) in tiles of the sequence, which is x's last dimension but one."""

    @staticmethod
    def apply(fn, self, x, shards, compute_params=None):
        return tiled.joined(tiled.outputs(lambda part: fn(self, part), [(part,) for part in tiled.cut(x, shards, -2)]), -2)


class TiledFusedLogitsLoss:
    """The loss fn(self, x, y) or fn(self, x, y, mask) over tiles of all positions, without the logits of all of them.

    fn gets x, y and the mask with batch and sequence as one dimension. Gradients are computed in forward.
    """

    @staticmethod
    def apply(fn, self, x, y, mask, shards, compute_params=None, output_reduction="mean"):
        if output_reduction not in ("mean", "sum"):
            raise ValueError(f"output_reduction is {output_reduction!r}; it must be 'mean' or 'sum'")
        if x.dim() < 2 or y.dim() < 2 or x.shape[:2] != y.shape[:2]:
            raise ValueError(f"x and y must begin with the same batch and sequence: they are {list(x.shape)} and {list(y.shape)}")
        if mask is not None and mask.shape != x.shape[:2]:
            raise ValueError(f"the mask must be {list(x.shape[:2])}, a batch of sequences as in x; it is {list(mask.shape)}")
        positions = x.shape[0] * x.shape[1]
        given = [x, y] if mask is None else [x, y, mask]
        tiles = list(zip(*(tiled.cut(value.flatten(0, 1), shards, 0) for value in given)))
        weights = tiled.shares(positions, shards) if output_reduction == "mean" else [1] * shards
        return tiled.loss(lambda *tile: fn(self, *tile), tiles, weights)
