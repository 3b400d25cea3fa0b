"""Not available yet."""

from deepspeed.later import later_class, later_function

UlyssesSPAttentionHF = later_class("UlyssesSPAttentionHF")
UlyssesSPAttentionHF.register_with_transformers = staticmethod(
    later_function("UlyssesSPAttentionHF.register_with_transformers"))
UlyssesSPDataLoaderAdapter = later_class("UlyssesSPDataLoaderAdapter")
