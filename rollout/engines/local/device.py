"""Devices of torch that settings name. The form of a name is checked without torch, whose import takes seconds."""

from __future__ import annotations

import re

from fairbox.errors import ConfigError

_FORM = re.compile(r"cpu|cuda(:[0-9]{1,3})?")


def check_device_name(name: str, value: str) -> None:
    """Raises ConfigError unless `value`, of the setting `name`, is cpu, cuda or cuda:N."""
    if _FORM.fullmatch(value) is None:
        raise ConfigError(f"{name} is {value!r}, must be cpu, cuda, or one of several like cuda:1")


def check_device(name: str, value: str) -> None:
    """Raises ConfigError unless torch can compute there, which it is loaded for."""
    import torch

    check_device_name(name, value)
    if value == "cpu":
        return
    found = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if found <= int(value.partition(":")[2] or 0):
        raise ConfigError(f"{name} is {value!r}, but torch {torch.__version__} sees {found} GPUs here")
