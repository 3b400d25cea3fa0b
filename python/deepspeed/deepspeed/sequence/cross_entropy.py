"""The loss of each token, where ranks have parts of the sequence."""

import torch

from capstan import sequence_parallel


def vocab_sequence_parallel_cross_entropy(vocab_parallel_logits, target, sp_group):
    """[sequence, batch] losses of the whole sequence, from our logits [part, batch, words] and targets [part, batch]."""
    losses = torch.nn.functional.cross_entropy(vocab_parallel_logits.flatten(0, 1), target.flatten(), reduction="none")
    return sequence_parallel.gather_shared(losses.view_as(target), 0, sp_group)
