"""Modules that are gathered whole, with all that is below them."""


def z3_leaf_module(module):
    return getattr(module, "_z3_leaf", False)


def z3_leaf_parameter(param):
    return hasattr(param, "ds_z3_leaf_module")


def _mark(module, flag):
    module._z3_leaf = flag
    for param in module.parameters():
        if flag:
            param.ds_z3_leaf_module = module
        elif hasattr(param, "ds_z3_leaf_module"):
            del param.ds_z3_leaf_module


def get_z3_leaf_modules(model):
    return [module for module in model.modules() if z3_leaf_module(module)]


def set_z3_leaf_module(model, flag):
    _mark(model, flag)


def _matches(module, wanted):
    if not isinstance(wanted, str):
        return isinstance(module, wanted)
    cls = type(module)
    return wanted in (cls.__name__, f"{cls.__module__}.{cls.__qualname__}", cls.__qualname__)


def as_list(wanted):
    """One class or name is as good as a list of it."""
    return [wanted] if isinstance(wanted, (str, type)) else list(wanted)


def _set(model, wanted, flag, raise_if_not_found, what, match):
    found = [module for name, module in model.named_modules() if any(match(name, module, item) for item in wanted)]
    if not found and raise_if_not_found:
        raise ValueError(f"No {what} of {wanted} found in the model")
    for module in found:
        _mark(module, flag)
    return found


def set_z3_leaf_modules(model, leaf_module_classes, raise_if_not_found=True):
    leaf_module_classes = as_list(leaf_module_classes)
    for item in leaf_module_classes:
        assert isinstance(item, (type, str)), f"leaf_module_classes must be types or names, not {item!r}"
    return _set(model, leaf_module_classes, True, raise_if_not_found, "modules of type",
                lambda name, module, item: _matches(module, item))


def unset_z3_leaf_modules(model, leaf_module_classes, raise_if_not_found=True):
    return _set(model, as_list(leaf_module_classes), False, raise_if_not_found, "modules of type",
                lambda name, module, item: _matches(module, item))


def _set_by_name(model, wanted, raise_if_not_found, match):
    """(modules that became leaves, names that match none)"""
    wanted = as_list(wanted)
    found = _set(model, wanted, True, False, "", lambda name, module, item: match(name, item))
    missing = [item for item in wanted if not any(match(name, item) for name, _ in model.named_modules())]
    if missing and raise_if_not_found:
        raise ValueError(f"No modules named {missing} found in the model")
    return found, missing


def set_z3_leaf_modules_by_name(model, module_names, raise_if_not_found=True):
    return _set_by_name(model, module_names, raise_if_not_found, lambda name, item: name == item)


def set_z3_leaf_modules_by_suffix(model, suffixes, raise_if_not_found=True):
    return _set_by_name(model, suffixes, raise_if_not_found, lambda name, item: name.endswith(item))
