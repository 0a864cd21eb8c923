"""The tokens that a service knows, from files that may change while it runs.

Invariants: a file that can't be read, or is not acceptable, leaves the tokens as they are, and is told in the log and
in `problem`; looking for changes costs a call of each second a read of each file, and other calls nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fairbox.clock import Clock
from fairbox.errors import ConfigError
from fairbox.security.files import FileSet
from fairbox.security.roles import Role
from fairbox.security.table import MAX_FILE_BYTES, TokenTable, parse_tokens

__all__ = ["Keyring"]

_LOG = logging.getLogger("fairbox.security")


class Keyring:
    """`table()` is the tokens of this moment. `files` are paths by role; an empty path: that role has no tokens."""

    def __init__(self, files: Mapping[Role, str], *, clock: Clock | None = None) -> None:
        """ConfigError for files that are not acceptable."""
        self._paths = {role: path for role, path in files.items() if path}
        named = [(f"{role}_token_file", path) for role, path in self._paths.items()]
        self._files = FileSet(named, max_bytes=MAX_FILE_BYTES, clock=clock)
        self.problem = ""
        """Why the files of this moment are not in use; empty: they are."""
        self._table = TokenTable({})
        self._load()

    @property
    def roles(self) -> frozenset[Role]:
        """Those that have tokens."""
        return frozenset(self._paths)

    def table(self) -> TokenTable:
        """The tokens that are good now."""
        try:
            if self._load():
                _LOG.info("tokens were read again: %s", self._counted())
        except ConfigError as error:
            if self.problem != str(error):
                _LOG.error("the tokens stay as they were: %s", error)
            self.problem = str(error)
        return self._table

    def _load(self) -> bool:
        """Whether there was anything new."""
        contents = self._files.look()
        if contents is None:
            return False
        lines = {}
        for (role, path), content in zip(self._paths.items(), contents, strict=True):
            where = f"{role}_token_file is {path!r}"
            lines[role] = parse_tokens(content, where, tenants=role is Role.CLIENT)
        self._table = TokenTable(lines)
        self.problem = ""
        return True

    def _counted(self) -> str:
        return ", ".join(f"{count} of role {role}" for role, count in self._table.counts.items())
