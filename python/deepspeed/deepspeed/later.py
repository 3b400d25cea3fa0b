"""Names whose feature comes later: they can be imported and subclassed, and raise when they are called."""

from capstan.errors import NotAvailable


def later_class(name):
    """A class that raises NotAvailable when somebody makes an object of it."""

    def refuse(self, *args, **kwargs):
        raise NotAvailable(name)

    return type(name.rpartition(".")[2], (), {"__init__": refuse, "__doc__": f"{name}: not available yet."})


def later_function(name):
    """A function that raises NotAvailable when it is called."""

    def refuse(*args, **kwargs):
        raise NotAvailable(name)

    refuse.__name__ = name.rpartition(".")[2]
    refuse.__doc__ = f"{name}: not available yet."
    return refuse
