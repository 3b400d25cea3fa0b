"""A linear layer as a grid of smaller ones, so that each can be a unit of its own."""

import torch

from deepspeed.runtime.utils import partition_uniform


class TiledLinear(torch.nn.Module):
    """linears[out][in]; the bias is in the last input column."""

    def __init__(self, in_features, out_features, bias=True, in_splits=1, out_splits=1, input_is_already_split=False,
                 combine_out_splits=True, linear_cls=torch.nn.Linear, init_linear=None, **kwargs):
        super().__init__()
        for splits, features, name in ((in_splits, in_features, "in"), (out_splits, out_features, "out")):
            if splits < 1 or splits > features:
                raise RuntimeError(f"{name} splits must be in range [1, {name}_features].")
        self.in_features, self.out_features, self.use_bias = in_features, out_features, bias
        self.in_splits, self.out_splits = in_splits, out_splits
        self.input_is_already_split, self.combine_out_splits = input_is_already_split, combine_out_splits
        self.in_parts = partition_uniform(in_features, in_splits)
        self.out_parts = partition_uniform(out_features, out_splits)
        self.linears = torch.nn.ModuleList()
        for out in range(out_splits):
            row = torch.nn.ModuleList()
            for column in range(in_splits):
                row.append(linear_cls(self.in_parts[column + 1] - self.in_parts[column],
                                      self.out_parts[out + 1] - self.out_parts[out],
                                      bias=bias and column == in_splits - 1, **kwargs))
            self.linears.append(row)
        if init_linear is not None:
            self.copy_params_from(init_linear)

    def _inputs(self, x):
        if self.input_is_already_split:
            if len(x) != self.in_splits:
                raise RuntimeError(f"Col splits {self.in_splits} do not match input splits {len(x)}")
            return x
        sizes = [end - begin for begin, end in zip(self.in_parts, self.in_parts[1:])]
        return torch.split(x, sizes, dim=-1)

    def forward(self, x):
        inputs = self._inputs(x)
        outputs = []
        for row in self.linears:
            total = None
            for column, part in enumerate(inputs):
                total = self._reduce_local_output(row[column].in_features if hasattr(row[column], "in_features") else 0,
                                                  total, row[column](part))
            outputs.append(total)
        return self._combine_output_splits(outputs) if self.combine_out_splits else outputs

    def _reduce_local_output(self, in_id, total, new):
        return new if total is None else total + new

    def _combine_output_splits(self, outputs):
        return torch.cat(outputs, dim=-1)

    @torch.no_grad()
    def copy_params_from(self, other):
        """Takes weight and bias over from a plain linear layer."""
        from deepspeed.runtime.zero.partition_parameters import GatheredParameters
        assert hasattr(other, "weight") and tuple(_shape(other.weight)) == (self.out_features, self.in_features)
        if self.use_bias:
            assert other.bias is not None and tuple(_shape(other.bias)) == (self.out_features, )
        for row in range(self.out_splits):
            begin, end = self.out_parts[row], self.out_parts[row + 1]
            for column in range(self.in_splits):
                first, last = self.in_parts[column], self.in_parts[column + 1]
                local = self.linears[row][column]
                with GatheredParameters([other.weight, local.weight], modifier_rank=0):
                    local.weight.copy_(other.weight[begin:end, first:last])
            if self.use_bias:
                local = self.linears[row][-1]
                with GatheredParameters([other.bias, local.bias], modifier_rank=0):
                    local.bias.copy_(other.bias[begin:end])


def _shape(param):
    return getattr(param, "ds_shape", param.shape)


class TiledLinearReturnBias(TiledLinear):
    """For linear layers that return (output, bias)."""

    def _reduce_local_output(self, in_id, total, new):
        if isinstance(new, tuple):
            new, bias = new
        else:
            bias = None
        if total is None:
            return [new, bias]
        total[0] = total[0] + new
        if bias is not None:
            total[1] = bias
        return total

    def _combine_output_splits(self, outputs):
        values = torch.cat([value for value, _ in outputs], dim=-1)
        biases = [bias for _, bias in outputs if bias is not None]
        return values, torch.cat(biases, dim=-1) if biases else None
