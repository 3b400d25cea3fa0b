"""Any attention over sequences that ranks share."""

import torch

from capstan import sequence_parallel
from deepspeed.later import refuse


class _SeqAllToAll:
    """Cuts along `scatter_idx`, puts together along `gather_idx`; differentiable. Heads need not be equally many."""

    @staticmethod
    def apply(group, input, scatter_idx, gather_idx, batch_dim_idx=None, stream=None, handle=None, type=None, is_fwd=True):
        return sequence_parallel.exchange_uneven(input, scatter_idx, gather_idx, group)


class DistributedAttention(torch.nn.Module):
    """`local_attention`, called with our heads of the whole sequence.

    query, key and value have their heads in dimension `scatter_idx` and the sequence in `gather_idx`; the attention's
    output too.
    """

    def __init__(self, local_attention, sequence_process_group, scatter_idx=2, gather_idx=0, sp_stream=None):
        super().__init__()
        self.local_attn, self.spg = local_attention, sequence_process_group
        self.scatter_idx, self.gather_idx = scatter_idx, gather_idx

    def forward(self, query, key, value, batch_dim_idx=None, rotary_pos_emb=None, *args, **kwargs):
        if rotary_pos_emb is not None:
            refuse("DistributedAttention({})", "rotary_pos_emb")
        order = (3 - self.scatter_idx - self.gather_idx, self.scatter_idx, self.gather_idx, 3)  # batch, heads, sequence, width
        back = sorted(range(4), key=order.__getitem__)
        heads = sequence_parallel.to_heads(*(tensor.permute(order) for tensor in (query, key, value)), self.spg)
        output = self.local_attn(*(tensor.permute(back) for tensor in heads), *args, **kwargs)
        return sequence_parallel.exchange(output, self.gather_idx, self.scatter_idx, self.spg)
