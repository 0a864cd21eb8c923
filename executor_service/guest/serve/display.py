"""Displayed values as MIME bundles, as notebooks have them: several forms of one value, by type.

Invariants: what a cell displays is bounded, by count, by form and in all; a form that is too large is dropped, plain
text is cut, and `truncated` says so. A broken `_repr_html_` loses that form and nothing else; a `__repr__` that raises
is the code's own error.
"""

from __future__ import annotations

import base64
import binascii
import io
import json
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    Bundle = dict[str, bytes]

MAX_DISPLAYS = 256
"""Most displays of one cell."""
MAX_FORM = 4 << 20
"""Bytes of one form: a large figure."""
MAX_TEXT = 1 << 20
"""Bytes of plain text."""
MAX_ALL = 8 << 20
"""Bytes of all that a cell displays."""
MAX_FORMS = 64
"""Most forms of one value."""
MAX_KIND = 256
"""Characters of a MIME type."""
MAX_NAMES = 40 << 10
"""Bytes that name all forms of a cell and their sizes: most of `wire.MAX_TABLE`."""
_OF_A_SIZE = 20

_PLAIN = "text/plain"
_METHODS = {
    "_repr_html_": "text/html",
    "_repr_markdown_": "text/markdown",
    "_repr_latex_": "text/latex",
    "_repr_svg_": "image/svg+xml",
    "_repr_png_": "image/png",
    "_repr_jpeg_": "image/jpeg",
    "_repr_pdf_": "application/pdf",
    "_repr_json_": "application/json",
    "_repr_javascript_": "application/javascript",
}
_IN_BASE64 = ("image/png", "image/jpeg", "application/pdf")
"""Types whose methods may return text in base64."""
_CANARY = "_ipython_canary_method_should_not_exist_"
"""Attribute of values that answer to every name, and so to those of the methods as well."""


class Displays:
    """Displays of one cell."""

    def __init__(self) -> None:
        self._bundles: list[tuple[Bundle, bool]] = []
        self._size = self._names = 0
        self._shown: set[int] = set()
        """Figures that were displayed by name, by the identity of a living object."""

    def add(self, value: Any) -> None:
        """Displays a value. Raises what its `__repr__` raises."""
        if _is_figure(value):
            self._shown.add(id(value))
        self._keep(bundle_of(value))

    def add_open_figures(self) -> None:
        """Displays and closes the figures that pyplot holds, as notebooks do at the end of a cell."""
        pyplot = sys.modules.get("matplotlib.pyplot")
        if pyplot is None or "agg" not in str(pyplot.get_backend()).lower():
            return
        for number in pyplot.get_fignums():
            figure = pyplot.figure(number)
            if id(figure) not in self._shown:
                self._keep(bundle_of(figure))
        pyplot.close("all")

    def take(self) -> tuple[list[tuple[dict[str, int], bool]], bytes]:
        """Returns, and forgets, what was displayed: for each display the size of every form, in order, and whether some
        of it was left out; and all the bytes."""
        heads = [({kind: len(data) for kind, data in bundle.items()}, cut) for bundle, cut in self._bundles]
        blob = b"".join(data for bundle, _ in self._bundles for data in bundle.values())
        self._bundles, self._size, self._names = [], 0, 0
        self._shown.clear()
        return heads, blob

    def _keep(self, bundle: Bundle) -> None:
        if len(self._bundles) >= MAX_DISPLAYS:
            self._bundles[-1] = (self._bundles[-1][0], True)
            return
        kept: Bundle = {}
        cut = False
        # Plain text first: it is what every reader understands.
        for kind in sorted(bundle, key=lambda kind: kind != _PLAIN):
            data = bundle[kind]
            named = len(json.dumps(kind)) + _OF_A_SIZE
            if len(kept) >= MAX_FORMS or len(kind) > MAX_KIND or self._names + named > MAX_NAMES:
                cut = True
                continue
            room = min(MAX_TEXT if kind == _PLAIN else MAX_FORM, MAX_ALL - self._size)
            if len(data) > room:
                cut = True
                if kind != _PLAIN:
                    continue
                data = data[:room]
            kept[kind] = data
            self._size += len(data)
            self._names += named
        self._bundles.append((kept, cut))


def bundle_of(value: Any) -> Bundle:
    """MIME type -> content, with text/plain always among them."""
    found: Bundle = {}
    if not isinstance(value, type) and not callable(getattr(value, _CANARY, None)):
        found.update(_from_mimebundle(value))
        for method, kind in _METHODS.items():
            if kind not in found:
                found.update(_form(kind, getattr(value, method, None)))
    if "image/png" not in found and _is_figure(value):
        found.update(_form("image/png", lambda: _png(value)))
    if _PLAIN not in found:
        found[_PLAIN] = repr(value).encode("utf-8", "backslashreplace")
    return found


def _from_mimebundle(value: Any) -> Bundle:
    method = getattr(value, "_repr_mimebundle_", None)
    if not callable(method):
        return {}
    try:
        answer = method(include=None, exclude=None)
        answer = answer[0] if isinstance(answer, tuple) else answer
        return {kind: _bytes(kind, content) for kind, content in answer.items() if isinstance(kind, str)}
    except Exception:
        return {}


def _form(kind: str, method: Callable[[], Any] | None) -> Bundle:
    if not callable(method):
        return {}
    try:
        content = method()
        content = content[0] if isinstance(content, tuple) else content
        return {} if content is None else {kind: _bytes(kind, content)}
    except Exception:
        return {}


def _bytes(kind: str, content: Any) -> bytes:
    if isinstance(content, (bytes, bytearray, memoryview)):
        return bytes(content)
    if isinstance(content, str):
        if kind in _IN_BASE64:
            try:
                return base64.b64decode(content, validate=True)
            except binascii.Error:
                pass
        return content.encode("utf-8", "backslashreplace")
    return json.dumps(content).encode()


def _is_figure(value: Any) -> bool:
    module = sys.modules.get("matplotlib.figure")
    return module is not None and isinstance(value, module.Figure)


def _png(figure: Any) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", bbox_inches="tight")
    return buffer.getvalue()
