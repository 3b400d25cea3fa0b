"""How many items each of several ranks gets."""

from capstan.sequence_parallel import even_parts


def get_shard_size_list(total_size, mp_size, name=None):
    return even_parts(total_size, mp_size)
