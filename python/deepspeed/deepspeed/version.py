"""The version of DeepSpeed whose interface this package offers."""

version = "0.19.8"
