"""The tokens that a service knows, from files that may change while it runs.

Invariants: a file that can't be read, or is not acceptable, leaves the tokens as they are, and is told in the log and
in `problem`; looking for changes costs a call of each second a read of each file, and other calls nothing.

`TokenTable`: what it takes to look a token up does not tell how much of a guess was right: tokens are found by a keyed
hash whose key never leaves the table; no token is in a text, in an error or in `repr()`.
"""

from __future__ import annotations

import hashlib
import logging
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fairbox.clock import Clock
from fairbox.errors import ConfigError
from fairbox.security.roles import Identity, Role
from fairbox.security.tls import FileSet

MAX_FILE_BYTES = 1 << 20
"""Most bytes of one file: ten thousand tokens and more."""
_TOKEN = re.compile(r"[A-Za-z0-9._~-]{16,512}")
"""The characters that need no quoting in headers and in URLs; shorter ones could be guessed."""
_PROBLEM = "a token must have from 16 to 512 characters, letters, digits and '-._~' only"
_LONGEST_TENANT = 128


@dataclass(frozen=True, slots=True)
class TokenLine:
    """One line of a file of tokens."""

    digest: bytes
    """SHA-256 of the token: tables compare these, and a dump of the process holds no token."""
    tenant: str = ""


def parse_tokens(content: bytes, where: str, *, tenants: bool = True) -> tuple[TokenLine, ...]:
    """The tokens of a file, one a line: `TOKEN`, or `TENANT:TOKEN` where `tenants` may be named. Empty lines and those
    that begin with `#` are skipped. `where` names setting and path in errors; ConfigError for a file without tokens, a
    line that is none, and a token that is there twice for different tenants. Errors never hold what a line says."""
    found: dict[bytes, TokenLine] = {}
    for number, text in _lines(content, where):
        tenant, colon, token = text.rpartition(":")
        if not _TOKEN.fullmatch(token):
            raise ConfigError(f"{where} line {number}: {_PROBLEM}")
        if colon and not tenants:
            raise ConfigError(f"{where} line {number}: names a tenant, which only tokens of clients may have")
        if colon and not (1 <= len(tenant) <= _LONGEST_TENANT and tenant.isprintable() and tenant == tenant.strip()):
            raise ConfigError(f"{where} line {number}: a tenant must have from 1 to {_LONGEST_TENANT} characters")
        entry = TokenLine(hashlib.sha256(token.encode()).digest(), tenant)
        if found.setdefault(entry.digest, entry) != entry:
            raise ConfigError(f"{where} line {number}: this token is there already, for another tenant")
    return tuple(found.values())


def first_token(content: bytes, where: str) -> str:
    """The token that a client sends: that of the first line, without its tenant. ConfigError as `parse_tokens`."""
    number, text = _lines(content, where)[0]
    token = text.rpartition(":")[2]
    if not _TOKEN.fullmatch(token):
        raise ConfigError(f"{where} line {number}: {_PROBLEM}")
    return token


def _lines(content: bytes, where: str) -> list[tuple[int, str]]:
    """Number and text of each line that holds something."""
    try:
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError:
        raise ConfigError(f"{where}: must hold UTF-8 text") from None
    found = [(number, line.strip()) for number, line in enumerate(lines, 1)]
    found = [(number, text) for number, text in found if text and not text.startswith("#")]
    if not found:
        raise ConfigError(f"{where}: must hold at least one token, one a line")
    return found


class TokenTable:
    """`find()` says whose a token is. A token that is in the files of several roles has them all."""

    def __init__(self, lines: Mapping[Role, Sequence[TokenLine]]) -> None:
        """ConfigError for a token that is for one tenant in one file, and for another in another."""
        self._key = secrets.token_bytes(32)
        self._found: dict[bytes, Identity] = {}
        self.counts = {role: len(entries) for role, entries in lines.items()}
        for role, entries in lines.items():
            for entry in entries:
                key = self._keyed(entry.digest)
                known = self._found.get(key, Identity(frozenset(), entry.tenant))
                if known.tenant != entry.tenant:
                    raise ConfigError(
                        f"{role}_token_file: a token of a tenant can't be in the file of another role as well"
                    )
                self._found[key] = Identity(known.roles | {role}, entry.tenant)

    def find(self, token: str) -> Identity | None:
        """Identity that the token stands for; None: it is nobody's."""
        return self._found.get(self._keyed(hashlib.sha256(token.encode("utf-8", "replace")).digest()))

    def _keyed(self, digest: bytes) -> bytes:
        # Dictionaries compare hashes early and bytes from the left: under a secret key neither helps a guesser.
        return hashlib.blake2b(digest, key=self._key, digest_size=32).digest()


_LOG = logging.getLogger("fairbox.security")


class Keyring:
    """`table()` is the tokens of this moment. `files` are paths by role; an empty path: that role has no tokens.
    `setting` is what errors call a role's file."""

    def __init__(
        self, files: Mapping[Role, str], *, clock: Clock | None = None, setting: str = "{role}_token_file"
    ) -> None:
        """ConfigError for files that are not acceptable."""
        self._paths = {role: path for role, path in files.items() if path}
        self._setting = setting
        named = [(setting.format(role=role), path) for role, path in self._paths.items()]
        self._files = FileSet(named, max_bytes=MAX_FILE_BYTES, clock=clock)
        self.problem = ""
        """Why the files of this moment are not in use; empty: they are."""
        self._table = TokenTable({})
        self._load()

    @property
    def roles(self) -> frozenset[Role]:
        """Roles that have tokens."""
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
        """Loads the files, and says whether anything was new."""
        contents = self._files.look()
        if contents is None:
            return False
        lines = {}
        for (role, path), content in zip(self._paths.items(), contents, strict=True):
            where = f"{self._setting.format(role=role)} is {path!r}"
            lines[role] = parse_tokens(content, where, tenants=role is Role.CLIENT)
        self._table = TokenTable(lines)
        self.problem = ""
        return True

    def _counted(self) -> str:
        return ", ".join(f"{count} of role {role}" for role, count in self._table.counts.items())
