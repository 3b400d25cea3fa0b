"""Tensors as they should be when they are saved."""

import os

import torch


def clone_tensors_for_torch_save(item, device=torch.device("cpu")):
    """The same structure with detached copies, so that no larger storage is saved along."""
    if torch.is_tensor(item):
        return item.detach().clone() if item.device == torch.device(device) else item.detach().to(device)
    if isinstance(item, dict):
        return type(item)((key, clone_tensors_for_torch_save(value, device)) for key, value in item.items())
    if isinstance(item, (list, tuple)):
        return type(item)(clone_tensors_for_torch_save(value, device) for value in item)
    return item


def get_model_ckpt_name_for_rank(base_folder, mp_rank_str):
    return os.path.join(base_folder, f"mp_rank_{mp_rank_str}_model_states.pt")


def get_zero_ckpt_name_for_rank(base_folder, dp_rank, mp_rank):
    return os.path.join(base_folder, f"zero_pp_rank_{dp_rank}_mp_rank_{mp_rank:02d}_optim_states.pt")
