"""What the screens of one viewer share: the dump, the settings, and decoders that were loaded. Without Textual."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

from fairbox.errors import FairboxError
from rollout.viewer.compare import compare_steps
from rollout.viewer.decoder import find_tokenizer, load_decoder
from rollout.viewer.facts import RowFacts
from rollout.viewer.groups import GroupBy
from rollout.viewer.index import StepFile
from rollout.viewer.pieces import Decode, Piece, decoded_pieces, segment_pieces, token_lists
from rollout.viewer.steps import DumpFolder, Step

__all__ = ["Place", "Session", "Tokens"]


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
