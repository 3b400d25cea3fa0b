"""What a script hands over with a checkpoint, in the form that is stored."""

from capstan.client_state import Packer, join, split, unpack  # noqa: F401
