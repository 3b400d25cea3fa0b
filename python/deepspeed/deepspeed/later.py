"""What DeepSpeed has and this package does not yet, in two tables: names that raise NotAvailable when they are called, and
uses of other names that raise it. Nothing else here does."""

from capstan.errors import NotAvailable

# module -> (how messages call it, its names; those with parentheses are functions, the others classes)
NAMES = {
    "deepspeed": ("deepspeed.", "init_inference() default_inference_config() DeepSpeedTransformerLayer "
                  "DeepSpeedTransformerConfig"),
    "deepspeed.inference": ("deepspeed.", "InferenceEngine"),
    "deepspeed.module_inject": ("deepspeed.module_inject.",
                                "replace_transformer_layer() revert_transformer_layer() set_autotp_mode()"),
    "deepspeed.moe.layer": ("deepspeed.moe.layer.", "MoE"),
    "deepspeed.moe.sharded_moe": ("deepspeed.moe.sharded_moe.", "top1gating() top2gating() topkgating() MOELayer TopKGate"),
    "deepspeed.runtime.comm.coalesced_collectives": ("deepspeed.runtime.comm.coalesced_collectives.",
                                                     "all_to_all_quant_reduce() all_to_all_loco_quant_reduce()"),
    "deepspeed.runtime.fp16.onebit": ("deepspeed.runtime.fp16.onebit.", "OnebitAdam OnebitLamb ZeroOneAdam"),
    "deepspeed.runtime.hybrid_engine": ("deepspeed.", "DeepSpeedHybridEngine"),
    "deepspeed.sequence.fpdt_layer": ("deepspeed.sequence.fpdt_layer.", "FPDT_Attention FPDT_FFN FPDT_InputConstruct "
                                      "FPDT_LogitsLoss _FPDTGPUOffloadingAttentionImpl_"),
    "deepspeed.runtime.utils": ("", "get_norm_with_moe_layers()"),
    "deepspeed.runtime.zero": ("deepspeed.zero.", "DeepSpeedTensorOverride"),
    "deepspeed.runtime.zero.partition_parameters": ("deepspeed.runtime.zero.", "CUDAQuantizer"),
}

# What is refused only with certain arguments, or for some of many; {} stands for which.
USES = ("DistributedAttention({})", "adding a parameter group to a running engine", "building {}", "deepspeed {}",
        "groups of experts' parameters",
        "the operation {}", "zero.Init({})")


def refuse(use, *which):
    """Raises NotAvailable for one of USES."""
    assert use in USES, use
    raise NotAvailable(use.format(*which))


def _later(name, is_function):
    """A function that raises when it is called, or a class that does when somebody makes an object of it."""

    def raise_it(*args, **kwargs):
        raise NotAvailable(name)

    own, doc = name.rpartition(".")[2], f"{name}: not available yet."
    if not is_function:
        return type(own, (), {"__init__": raise_it, "__doc__": doc})
    raise_it.__name__, raise_it.__doc__ = own, doc
    return raise_it


def names_of(module):
    """{name: stub} of a module, for its globals()."""
    prefix, names = NAMES[module]
    found = {}
    for name in names.split():
        plain = name.removesuffix("()")
        owner, _, own = plain.rpartition(".")
        stub = _later(prefix + plain, is_function=name != plain)
        if owner:
            setattr(found[owner], own, staticmethod(stub))
        else:
            found[own] = stub
    return found
