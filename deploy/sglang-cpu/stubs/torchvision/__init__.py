"""Stands in for torchvision, whose wheel on PyPI needs CUDA, where sglang serves text on a CPU.

It has the names that sglang and transformers import; none of its functions can be called.
"""

import enum
import importlib.machinery
import sys
import types

__version__ = "0.28.0+absent"


class InterpolationMode(enum.Enum):
    """torchvision's own values."""

    NEAREST = "nearest"
    NEAREST_EXACT = "nearest-exact"
    BILINEAR = "bilinear"
    BICUBIC = "bicubic"
    BOX = "box"
    HAMMING = "hamming"
    LANCZOS = "lanczos"


class ImageReadMode(enum.Enum):
    """torchvision's own values."""

    UNCHANGED = 0
    GRAY = 1
    GRAY_ALPHA = 2
    RGB = 3
    RGB_ALPHA = 4


def _module(name):
    module = types.ModuleType(name)
    module.__path__ = []
    module.__file__ = __file__
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)

    def lookup(attribute):
        if attribute.startswith("__"):
            raise AttributeError(attribute)
        if attribute[:1].isupper():
            return type(attribute, (), {})

        def absent(*_args, **_kwargs):
            raise NotImplementedError(f"torchvision is not installed: {name}.{attribute} was called")

        return absent

    module.__getattr__ = lookup
    module.InterpolationMode = InterpolationMode
    module.ImageReadMode = ImageReadMode
    sys.modules[name] = module
    return module


io = _module("torchvision.io")
ops = _module("torchvision.ops")
transforms = _module("torchvision.transforms")
transforms.functional = _module("torchvision.transforms.functional")
transforms.v2 = _module("torchvision.transforms.v2")
transforms.v2.functional = _module("torchvision.transforms.v2.functional")
