"""Hostfiles and the filters over their hosts and slots, for scripts that call the launcher's functions.

The rules are those of `capstan launch` (docs/launching.md), to which the command itself hands hostfile and filters.
"""

import os
from collections import OrderedDict

from capstan import _C
from capstan.errors import ConfigError

_FORM = "write HOST[:SLOT[,SLOT ...]], and separate several of them with @"


def fetch_hostfile(path):
    """{host: slots}, or None where there is no such file."""
    if not os.path.isfile(path):
        return None
    with open(path) as file:
        return _parse_hostfile(file.readlines(), path)


def _parse_hostfile(lines, where="hostfile"):
    """{host: slots}, in their order; blank lines and comments are skipped."""
    pool = _C.parse_hostfile("\n".join(line.rstrip("\n") for line in lines), str(where))
    return OrderedDict((host, len(slots)) for host, slots in pool)


def parse_node_config(text):
    """(host, slots) of HOST[:SLOT[,SLOT ...]]; no slots mean the whole host."""
    host, colon, slots = text.strip().partition(":")
    try:
        return host, [int(slot) for slot in slots.split(",")] if colon else []
    except ValueError:
        raise ConfigError(f"\"{text}\" does not name a host and slots", "--include or --exclude", _FORM) from None


def parse_node_config_list(text):
    """{host: slots in order, each once} of NODE[@NODE ...]."""
    chosen = {}
    for host, slots in map(parse_node_config, text.split("@")):
        chosen[host] = sorted({*chosen.get(host, ()), *slots})
    return chosen


def parse_resource_filter(host_info, include_str="", exclude_str=""):
    """What a filter leaves of {host: [slots]}, in the same order; hosts without slots are left out."""
    if include_str and exclude_str:
        raise ConfigError("--include and --exclude are both given", "--include, --exclude", "give one of the two")
    if not include_str and not exclude_str:
        return host_info
    pool = [(host, [str(slot) for slot in slots]) for host, slots in host_info.items()]
    left = _C.filter_hosts(pool, include_str or exclude_str, keep=bool(include_str))
    return OrderedDict((host, [int(slot) for slot in slots]) for host, slots in left)


def parse_inclusion_exclusion(resource_pool, inclusion, exclusion):
    """{host: [slots]} of a hostfile's {host: slots} after a filter."""
    return parse_resource_filter(OrderedDict((host, list(range(slots))) for host, slots in resource_pool.items()),
                                 include_str=inclusion, exclude_str=exclusion)


def parse_num_nodes(text, elastic_training):
    """(least, most) of "N" or "LEAST:MOST"; most is -1 where it is not given."""
    parts = str(text).split(":")
    if len(parts) == 1:
        return int(parts[0]), -1
    if len(parts) == 2 and elastic_training:
        return int(parts[0]), int(parts[1])
    raise ConfigError(f"\"{text}\" is not a number of hosts", "--num_nodes",
                      "give one number; a range LEAST:MOST is for elastic training")
