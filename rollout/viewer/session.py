"""What the screens of one viewer share: the dump, the settings, and decoders that were loaded. Without Textual.

Invariant: nothing is downloaded and nothing is converted: a tokenizer is where the setting says, or where the row's
`model` names a folder, or in the cache of models. torch and transformers are not loaded where that can be avoided.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fairbox.errors import FairboxError
from rollout.engines.model_store import BUILT_IN, cache_dir, find_model
from rollout.tokens.tokenizer import HubTokenizer
from rollout.viewer.facts import RowFacts
from rollout.viewer.groups import GroupBy, compare_steps
from rollout.viewer.index import DumpFolder, Step, StepFile
from rollout.viewer.pieces import Decode, Piece, decoded_pieces, segment_pieces, token_lists

__all__ = ["DecoderError", "Place", "Session", "Tokens", "find_tokenizer", "load_decoder"]

_FILE = "tokenizer.json"


@dataclass(frozen=True, slots=True)
class Place:
    """A row of a step."""

    step: Step
    row: RowFacts


@dataclass(frozen=True, slots=True)
class Tokens:
    """The tokens of a row, or its segments."""

    pieces: tuple[Piece, ...]
    problem: str = ""
    """Why they are not tokens; empty when they are."""


class Session:
    """Every method may be called from any thread, and may take as long as reading a row or loading a tokenizer does."""

    def __init__(self, folder: DumpFolder, *, tokenizer: str | None = None, group_by: GroupBy = GroupBy.AUTO) -> None:
        self.folder = folder
        self.group_by = group_by
        self._tokenizer = tokenizer
        self._decoders: dict[Path, Decode] = {}
        self._lock = threading.Lock()

    def file(self, step: Step) -> StepFile:
        """The index of a step."""
        return self.folder.open(step)

    def read(self, place: Place) -> dict[str, object] | str:
        """The whole row, or why it can't be had."""
        return self.file(place.step).read(place.row)

    def tokens(self, place: Place) -> Tokens:
        """The row's tokens on their text; its segments where it has no ids or there is no tokenizer."""
        record = self.read(place)
        if isinstance(record, str):
            return Tokens((), record)
        problem = token_lists(record)
        if not problem:
            try:
                decode = self._decoder(str(record.get("model") or ""))
                return Tokens(tuple(decoded_pieces(record, decode)))
            except FairboxError as error:
                problem = str(error)
            except Exception as error:  # the boundary to a tokenizer of unknown origin: ids that it has not
                problem = f"the tokenizer can't decode this row: {type(error).__name__}: {error}"
        return Tokens(tuple(segment_pieces(record)), problem)

    def partner(self, place: Place, other: Step) -> Place | None:
        """The row of another step that belongs to the same task: the same group and rank, else the same line."""
        rows = self.file(other).rows()
        for change in compare_steps(self.file(place.step).rows(), rows, self.group_by).changes:
            if change.before.line == place.row.line:
                return Place(other, change.after)
        same = next((row for row in rows if row.line == place.row.line), rows[0] if rows else None)
        return None if same is None else Place(other, same)

    def export(self, places: list[Place], path: Path) -> int:
        """Writes the rows' lines as they stand in the dump; returns the bytes. Raises FairboxError; a file that is
        there already stays as it is."""
        written = 0
        try:
            with path.open("xb") as file:
                for place in places:
                    line = self.file(place.step).read_bytes(place.row)
                    if isinstance(line, str):
                        raise FairboxError(f"{place.step.path}:{place.row.line}: {line}")
                    written += file.write(line + b"\n")
        except FileExistsError:
            raise FairboxError(f"{path} exists, and is not overwritten") from None
        except OSError as error:
            raise FairboxError(f"{path} can't be written: {error.strerror or error}") from None
        return written

    def _decoder(self, recorded: str) -> Decode:
        folder = find_tokenizer(self._tokenizer, recorded)
        with self._lock:
            if folder not in self._decoders:
                self._decoders[folder] = load_decoder(folder)
            return self._decoders[folder]


class DecoderError(FairboxError):
    """There is no tokenizer, or it can't be loaded; the text says what to set."""


def find_tokenizer(setting: str | None, recorded: str) -> Path:
    """The folder of the tokenizer: `setting` (a folder, its tokenizer.json, or `smollm2`), else that of the model that
    the row was sampled by. Raises DecoderError."""
    if setting == BUILT_IN:
        return find_model(BUILT_IN)
    if setting is not None:
        folder = Path(setting).expanduser()
        folder = folder.parent if folder.name == _FILE else folder
        if not folder.is_dir():
            raise DecoderError(f"tokenizer is {setting!r}, which is no folder with a tokenizer")
        return folder
    if recorded:
        named = Path(recorded).expanduser()
        if named.is_absolute() and named.is_dir():
            return named
        if named.name == recorded:
            for folder in sorted(cache_dir().glob("models/*/*")):
                if folder.name == recorded and (folder / _FILE).is_file():
                    return folder
    raise DecoderError(f"no tokenizer is known for model {recorded!r}; set tokenizer to its folder to see tokens")


def load_decoder(folder: Path) -> Decode:
    """Takes a moment, or seconds where only transformers can read the tokenizer. Raises DecoderError."""
    file = folder / _FILE
    if file.is_file() and importlib.util.find_spec("tokenizers") is not None:
        from tokenizers import Tokenizer  # an extra's

        try:
            fast = Tokenizer.from_file(str(file))
        except Exception as error:  # the boundary to a file of unknown origin, whose reader raises plain Exception
            raise DecoderError(f"{file}: is no tokenizer: {error}") from None

        def decode(ids: Sequence[int]) -> str:
            text: str = fast.decode(list(ids), skip_special_tokens=False)
            return text

        return decode
    try:
        return HubTokenizer(folder).decode
    except ImportError:
        raise DecoderError("tokens need the package tokenizers: pip install 'fairbox[viewer]'") from None
    except (OSError, ValueError) as error:
        raise DecoderError(f"{folder}: has no tokenizer: {str(error).splitlines()[0]}") from None
