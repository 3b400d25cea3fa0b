"""Nothing is built here: the kernels come with capstan. A builder only says which exist."""

import types

from deepspeed.later import refuse

# The C++ kernels that the package carries.
_KERNELS = {"CPUAdamBuilder": "cpu_adam", "CPUAdagradBuilder": "cpu_adagrad", "CPULionBuilder": "cpu_lion",
            "FusedAdamBuilder": "fused_adam", "FusedLionBuilder": "fused_lion", "FusedLambBuilder": "fused_lamb"}
_PRESENT = {*_KERNELS.values(), "utils"}
_ABSENT = {"AsyncIOBuilder": "async_io", "GDSBuilder": "gds", "FPQuantizerBuilder": "fp_quantizer",
           "EvoformerAttnBuilder": "evoformer_attn", "TransformerBuilder": "transformer",
           "StochasticTransformerBuilder": "stochastic_transformer", "InferenceBuilder": "transformer_inference",
           "QuantizerBuilder": "quantizer", "RandomLTDBuilder": "random_ltd", "SparseAttnBuilder": "sparse_attn",
           "SpatialInferenceBuilder": "spatial_inference", "InferenceCoreBuilder": "inference_core_ops",
           "InferenceCutlassBuilder": "cutlass_ops", "RaggedOpsBuilder": "ragged_device_ops",
           "RaggedUtilsBuilder": "ragged_ops", "ShareMemCommBuilder": "deepspeed_shm_comm",
           "CCLCommBuilder": "deepspeed_ccl_comm"}


class OpBuilder:
    """`NAME` says which operation; load() gives its module."""

    NAME = ""

    def __init__(self, name=None):
        self.name = name or self.NAME

    def is_compatible(self, verbose=False):
        return self.NAME in _PRESENT

    def builder(self):
        refuse("building {}", self.NAME)

    def load(self, verbose=True):
        if not self.is_compatible():
            refuse("the operation {}", self.NAME)
        return types.SimpleNamespace(**self.functions())

    def functions(self):
        return {}


class UtilsBuilder(OpBuilder):
    NAME = "utils"

    def functions(self):
        from torch._utils import _flatten_dense_tensors, _unflatten_dense_tensors
        return {"flatten": _flatten_dense_tensors, "unflatten": _unflatten_dense_tensors}


class NotImplementedBuilder(OpBuilder):
    NAME = "deepspeed_not_implemented"

    def load(self, verbose=True):
        raise ValueError("operators are not built separately: Capstan's library already contains what it needs")


for _class, _name in {**_KERNELS, **_ABSENT}.items():
    globals()[_class] = type(_class, (OpBuilder, ), {"NAME": _name})

ALL_OPS = {cls.NAME: cls for cls in OpBuilder.__subclasses__()}


def compatible_ops():
    """Name -> whether it can be used here."""
    return {name: name in _PRESENT for name in ALL_OPS}
