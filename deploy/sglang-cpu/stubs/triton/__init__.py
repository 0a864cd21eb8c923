"""Stands in for triton where sglang serves on a CPU of a Linux machine: no kernel is compiled or run.

sglang has such a stand-in of its own for macOS (`sglang/_platform_stubs.py`), behind a test for that system. This one
runs it without the test. It edits the text of that file, so it belongs to sglang 0.5.23.
"""

import re
import sys
import types
from pathlib import Path

sys.modules.pop("triton")
for _folder in sys.path:
    _file = Path(_folder, "sglang", "_platform_stubs.py")
    if _file.exists():
        break
else:
    raise ImportError("sglang/_platform_stubs.py is not on the path")
_text = _file.read_text(encoding="utf-8")
_gate = (
    r'    if sys\.platform != "darwin".*?return\n\n'
    r"    if not torch\.backends\.mps\.is_available\(\):\n        return\n"
)
_text = re.sub(_gate, "", _text, flags=re.DOTALL)
_text = _text.replace('if "triton" not in sys.modules and importlib.util.find_spec("triton") is None:', "if True:")
_text = re.sub(r"    mps = torch\.mps\n.*", "    _platform_stubs_installed = True\n", _text, flags=re.DOTALL)
_module = types.ModuleType("_sglang_triton")
_module.__file__ = str(_file)
sys.modules["_sglang_triton"] = _module
exec(compile(_text, str(_file), "exec"), _module.__dict__)  # noqa: S102 - sglang's own code
_module.install_platform_stubs()
sys.modules["triton"].__version__ = "3.6.0"
