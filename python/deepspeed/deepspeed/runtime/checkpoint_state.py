"""What a script hands over with a checkpoint, as capstan stores it."""

from capstan.client_state import Packer, join, split, unpack  # noqa: F401
