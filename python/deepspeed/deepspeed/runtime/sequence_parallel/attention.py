"""Sequence parallelism for models of transformers, through its table of attention functions."""

import contextlib
import re

import torch
import torch.distributed as dist

from capstan import _C, sequence_parallel

_HUB_KERNEL = re.compile(r"[^/:]+/[^/:]+(@[^/:]+)?(:[^/:]+)?")
_REFUSED = {"eager": "it takes its masks from the model, which knows only a part of the sequence",
            "flex_attention": "its block masks are made for a part of the sequence"}


def _config_of(model):
    if hasattr(model, "config"):
        return model.config
    from transformers import AutoConfig
    return AutoConfig.from_pretrained(model)


def _core_function(name):
    """What transformers calls for `name`, without what an earlier registration put around it."""
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    kind = name.removeprefix("paged|")
    if kind in _REFUSED:
        raise ValueError(f"sequence parallelism does not work with {name} attention: {_REFUSED[kind]}. "
                         "Use sdpa or a flash attention")
    if _HUB_KERNEL.fullmatch(name):  # transformers loads these when they are first asked for
        from transformers.modeling_flash_attention_utils import lazy_import_flash_attention
        lazy_import_flash_attention(name)
    if name not in ALL_ATTENTION_FUNCTIONS:
        raise ValueError(f"{name} is not an attention of transformers; these are: "
                         f"{', '.join(sorted(ALL_ATTENTION_FUNCTIONS.valid_keys()))}")
    function = ALL_ATTENTION_FUNCTIONS[name]
    while isinstance(function, UlyssesSPAttentionHF):
        function = function.attn
    return function


class UlyssesSPAttentionHF(torch.nn.Module):
    """An attention function of transformers, called with this rank's heads of the whole sequence.

    The mask is made anew, because the model's is that of a part: causal inside each of the documents that the position
    ids tell apart, where they begin again.
    """

    def __init__(self, attn, batch_size, attn_head_count, attn_head_size, kv_head_count, num_hidden_layers, process_group,
                 seq_length_is_variable=False, local_seq_length=None, global_seq_length=None, disable_in_eval=False):
        super().__init__()
        self.attn, self.process_group = attn, process_group
        self.world_size, self.sp_rank = dist.get_world_size(process_group), dist.get_rank(process_group)
        self.batch_size, self.num_hidden_layers = batch_size, num_hidden_layers
        self.attn_head_count, self.attn_head_size, self.global_kv_head_count = attn_head_count, attn_head_size, kv_head_count
        self.seq_length_is_variable, self.disable_in_eval = seq_length_is_variable, disable_in_eval
        self.local_seq_length, self.global_seq_length = local_seq_length, global_seq_length
        self.core_attn_implementation = None
        shares = _C.share_heads(attn_head_count, kv_head_count, self.world_size)
        self.local_q_head_count, self.local_kv_head_count, self.kv_replication_factor = shares
        self._known = (None, None, None, None)

    def forward(self, module, query, key, value, attention_mask, *args, **kwargs):
        if self.disable_in_eval and not module.training:
            return self.attn(module, query, key, value, attention_mask, *args, **kwargs)
        if not self.seq_length_is_variable and query.shape[2] != self.local_seq_length:
            raise ValueError(f"attention was given {query.shape[2]} positions, but {self.global_seq_length} over "
                             f"{self.world_size} ranks are {self.local_seq_length}; set seq_length_is_variable, or the length")
        positions = kwargs.get("position_ids")
        assert positions is not None, (
            "sequence parallelism needs position_ids in every forward: without them each part of a sequence would begin at 0. "
            "Put them into the batch, as torch.arange(length) of each sample, before it is cut")
        kwargs["position_ids"], mask = self._whole_positions(positions)
        query, key, value = sequence_parallel.to_heads(query, key, value, self.process_group)
        if self.core_attn_implementation != "sdpa":
            mask = None  # they find documents by their positions
        with self._groups_of(module, sequence_parallel.queries_per_key(query, key)):
            output, weights = self.attn(module, query, key, value, mask, *args, **kwargs)
        output = sequence_parallel.exchange(output, 1, 2, self.process_group)  # [batch, sequence, heads, width]
        return output.flatten(2), weights

    @staticmethod
    @contextlib.contextmanager
    def _groups_of(module, groups):
        """Query heads per key head: another number where key heads are fewer than ranks."""
        before = getattr(module, "num_key_value_groups", None)
        if before is None or before == groups:
            yield
            return
        module.num_key_value_groups = groups
        try:
            yield
        finally:
            module.num_key_value_groups = before

    def _whole_positions(self, positions):
        """(those of the whole sequence, the mask that they mean); gathered once for the layers of a forward."""
        given, version, whole, mask = self._known
        if given is not positions or version != positions._version:
            whole = sequence_parallel.gather(positions, positions.dim() - 1, self.process_group)
            mask = _document_mask(whole)
            self._known = (positions, positions._version, whole, mask)
        return whole, mask

    @classmethod
    def register_with_transformers(cls, model_name_or_path, core_attn_implementation, sequence_parallel_size,
                                   micro_batch_size, seq_length=None, seq_length_is_variable=True, disable_in_eval=False,
                                   max_length=None):
        """Puts sequence parallelism around the attention `core_attn_implementation` of all models of transformers.

        Returns what initialize(mpu=...) takes; None for a size of 1. Collective.
        """
        if sequence_parallel_size == 1:
            return None
        seq_length = max_length if seq_length is None else seq_length
        if not seq_length_is_variable and seq_length is None:
            raise ValueError("seq_length is missing: give the length of the sequences, or set seq_length_is_variable")
        from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

        from deepspeed.runtime.sequence_parallel import parallel_state_sp as mpu
        config = _config_of(model_name_or_path)
        of_model = getattr(config, "_attn_implementation", None)
        if of_model is not None and of_model != core_attn_implementation:
            raise ValueError(f"core_attn_implementation {core_attn_implementation!r} does not match model config "
                             f"attn_implementation {of_model!r}: nobody would call it. Give both the same name")
        function = _core_function(core_attn_implementation)
        mpu.initialize_sequence_parallel(sequence_parallel_size)
        text = config.get_text_config()
        heads = text.num_attention_heads
        made = cls(attn=function, batch_size=micro_batch_size, attn_head_count=heads,
                   attn_head_size=getattr(text, "head_dim", None),
                   kv_head_count=getattr(text, "num_key_value_heads", None) or heads,
                   num_hidden_layers=text.num_hidden_layers, process_group=mpu.get_sequence_parallel_group(),
                   seq_length_is_variable=seq_length_is_variable,
                   local_seq_length=seq_length and sequence_parallel.part_length(seq_length, sequence_parallel_size),
                   global_seq_length=seq_length, disable_in_eval=disable_in_eval)
        made.core_attn_implementation = core_attn_implementation
        ALL_ATTENTION_FUNCTIONS[core_attn_implementation] = made
        return mpu


def _document_mask(positions):
    """Which earlier positions each one sees, [batch, 1, to, from]; None where each sample is one document: all of them."""
    if positions.dim() != 2:
        return None
    begins = positions.diff(dim=1) != 1
    if not begins.any():
        return None
    document = torch.nn.functional.pad(begins.cumsum(1), (1, 0))
    return (document[:, None, :, None] == document[:, None, None, :]).tril()
