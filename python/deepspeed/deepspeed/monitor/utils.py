"""Whether the packages of the monitors are there: an error where one is missing."""

from capstan.monitors import need


def check_tb_availability():
    need("tensorboard", "tensorboard")


def check_wandb_availability():
    need("wandb", "wandb")


def check_comet_availability():
    need("comet_ml", "comet", least="3.41.0")
