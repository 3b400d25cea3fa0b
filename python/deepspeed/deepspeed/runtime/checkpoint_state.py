"""What a script hands over with a checkpoint, as text; what JSON cannot hold goes into a file beside the tensors."""

import io
import json
import os

import torch

COUNTERS = ("global_steps", "global_samples", "skipped_steps", "micro_steps")
CLIENT_FILE, SCHEDULE_FILE = "client_state.pt", "lr_scheduler.pt"
_OURS = "deepspeed"


def to_text(value, file_name):
    """(JSON text, files): the text is null where a file holds the value."""
    try:
        text = json.dumps(value, allow_nan=True)
        if json.loads(text) == value:
            return text, []
    except (TypeError, ValueError):
        pass
    buffer = io.BytesIO()
    torch.save(value, buffer)
    return "null", [(file_name, buffer.getvalue())]


def from_text(text, folder, file_name):
    path = os.path.join(folder, file_name)
    if os.path.exists(path):
        return torch.load(path, map_location="cpu", weights_only=False)
    return json.loads(text)


def join(client_text, counters, groups):
    return json.dumps({_OURS: {"counters": counters, "groups": groups}, "client": json.loads(client_text)})


def split(text, folder):
    """(client_state, counters, groups)"""
    stored = json.loads(text)
    ours = stored.get(_OURS, {"counters": {}, "groups": []})
    client = from_text(json.dumps(stored.get("client", stored if _OURS not in stored else {})), folder, CLIENT_FILE)
    return client or {}, ours["counters"], ours["groups"]
