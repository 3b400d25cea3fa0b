"""What a script hands over with a checkpoint, as text; what JSON cannot hold goes into a file beside the tensors."""

import io
import json
import os

import torch

from capstan.errors import ConfigError

COUNTERS = ("global_steps", "global_samples", "skipped_steps", "micro_steps")
CLIENT_FILE, SCHEDULE_FILE = "client_state.pt", "lr_scheduler.pt"
_OURS = "deepspeed"


def _safe_globals():
    """What numpy arrays are made of; tensors and plain values need no mention."""
    import numpy as np
    rebuild = np.empty(0).__reduce__()[0]
    dtypes = {type(np.dtype(code)) for code in np.typecodes["All"] if code not in "OV"}
    return torch.serialization.safe_globals([rebuild, np.ndarray, np.dtype, *dtypes])


def _load(source):
    """Only tensors, arrays and plain values: a file cannot make us run anything."""
    with _safe_globals():
        return torch.load(source, map_location="cpu", weights_only=True)


def _to_bytes(value):
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    _load(buffer)
    return buffer.getvalue()


def _refuse(value, file_name):
    """Names the entry that cannot be stored."""
    for key, item in value.items() if isinstance(value, dict) else ():
        try:
            _to_bytes(item)
        except Exception:
            raise ConfigError(f"a value of type {type(item).__name__} cannot be stored in a checkpoint",
                              f"{file_name}, key {key!r}",
                              "store numbers, text, lists, dicts, tensors and numpy arrays") from None
    raise ConfigError(f"a {type(value).__name__} cannot be stored in a checkpoint", file_name,
                      "store numbers, text, lists, dicts, tensors and numpy arrays")


def to_text(value, file_name):
    """(JSON text, files): the text is null where a file holds the value. Throws ConfigError that names a bad key."""
    try:
        text = json.dumps(value, allow_nan=True)
        if json.loads(text) == value:
            return text, []
    except (TypeError, ValueError):
        pass
    try:
        return "null", [(file_name, _to_bytes(value))]
    except Exception:
        _refuse(value, file_name)


def from_text(text, folder, file_name):
    path = os.path.join(folder, file_name)
    return _load(path) if os.path.exists(path) else json.loads(text)


def join(client_text, counters, groups):
    return json.dumps({_OURS: {"counters": counters, "groups": groups}, "client": json.loads(client_text)})


def split(text, folder):
    """(client_state, counters, groups)"""
    stored = json.loads(text)
    ours = stored.get(_OURS, {"counters": {}, "groups": []})
    client = from_text(json.dumps(stored.get("client", stored if _OURS not in stored else {})), folder, CLIENT_FILE)
    return client or {}, ours["counters"], ours["groups"]
