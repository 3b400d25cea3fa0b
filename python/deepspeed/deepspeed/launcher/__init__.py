"""Starting ranks: `deepspeed script.py` is `capstan launch script.py`."""
