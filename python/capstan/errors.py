"""What capstan raises. Every error says what went wrong, where, and how to fix it."""

import torch


class Error(Exception):
    """The root of all: `what`, `where` and `fix` are its three parts."""

    def __init__(self, what, where="", fix=""):
        self.what, self.where, self.fix = what, where, fix
        lines = [what] + [f"  {name}: {text}" for name, text in (("where", where), ("fix", fix)) if text]
        super().__init__("\n".join(lines))

    def __reduce__(self):
        return type(self), (self.what, self.where, self.fix)


class ConfigError(Error, ValueError):
    """Wrong input; nothing has started, everything is still usable."""


class OutOfMemoryError(ConfigError, torch.OutOfMemoryError):
    """Memory ran out. After a backward of a single rank: engine.zero_grad(), then everything is usable."""


class IoError(Error, OSError):
    """A file or device failed; all but that operation is still usable."""

    def __str__(self):
        return Exception.__str__(self)


class CommError(Error, RuntimeError):
    """The group of ranks is unusable from here on."""


class InternalError(Error, RuntimeError):
    """A bug of ours; stop."""


class NotAvailable(Error, NotImplementedError):
    """A feature that this version knows by name only."""

    def __init__(self, name):
        super().__init__(f"{name} is not available yet", name, "remove it, or do without it for now")

    def __reduce__(self):
        return type(self), (self.where,)
