"""Building modules with their tensors on a chosen device and in a chosen dtype."""

import torch


class OnDevice:

    def __init__(self, dtype, device="meta", enabled=True):
        self.dtype, self.device, self.enabled = dtype, device, enabled

    def __enter__(self):
        if self.enabled:
            self._before = torch.get_default_dtype()
            torch.set_default_dtype(self.dtype)
            self._context = torch.device(self.device)
            self._context.__enter__()

    def __exit__(self, *error):
        if self.enabled:
            self._context.__exit__(*error)
            torch.set_default_dtype(self._before)
