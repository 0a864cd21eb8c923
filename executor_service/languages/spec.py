"""The entry for a language: files, commands, environment, and what its toolchain needs of the sandbox.

In the words of commands and the values of variables, `{...}` stands for what only a machine or a request knows:

- `{python}` is the interpreter for programs, and `{go}` (or any other name in `tools`) the absolute path of that tool;
- `{node_modules}` joins, with `:`, the folders of that name in the toolchain folders of the configuration;
- `{memory}` is the memory limit in bytes, `{tmp}` the private temporary folder, `{name}` what `named_by` found.

Anything else in braces stays as it is. Pure: nothing here looks at the machine.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

PYTHON_LEAN = "python-lean"
"""Runtime profile: an interpreter as it starts, for programs that import nothing."""
PYTHON_BASE = "python-base"
"""Runtime profile: the configured interpreter with the common modules of the standard library loaded."""
PYTHON_SCIENCE = "python-science"
"""Runtime profile: with the packages for numbers, tables, formulas and figures as well."""

_MIB = 1 << 20
_PLACE = re.compile(r"\{(\w+)\}")


def fill(text: str, values: Mapping[str, str]) -> str:
    """`text` with `{...}` replaced where `values` has it."""
    return _PLACE.sub(lambda place: values.get(place[1], place[0]), text)


@dataclass(frozen=True, slots=True)
class Needs:
    """Limits below which a toolchain does not work. 0: none."""

    memory_bytes: int = 0
    processes: int = 0
    open_files: int = 0
    file_bytes: int = 0
    disk_bytes: int = 0


COMPILER_NEEDS = Needs(
    memory_bytes=1024 * _MIB, processes=128, open_files=512, file_bytes=128 * _MIB, disk_bytes=512 * _MIB
)
"""Needs of most compilers, with room. A program's own limits say nothing about its compiler: 64 MiB for a small C++
program is reasonable, and its compiler takes three times that."""


@dataclass(frozen=True, slots=True)
class LanguageSpec:
    """Recipe for compiling and running programs of one language. Commands run in the work folder."""

    name: str
    """As requests call it."""
    file_name: str
    """The program's file in the work folder."""
    run: tuple[str, ...]
    """Command that runs it; the request's arguments follow."""
    probe: tuple[str, ...]
    """Command that succeeds where the language is installed, and says its version on a line with a number like 1.2."""
    compile: tuple[str, ...] = ()
    """Command that turns the file into `makes`; empty: the language does not compile."""
    makes: tuple[str, ...] = ()
    """Files that the compiler writes and the run needs; the first must be there, and is what `run` starts."""
    tools: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Name in braces -> the commands that will do, the best first. All must be found."""
    home: tuple[str, ...] = ()
    """Command that prints the folder of the toolchain, for tools that are found outside what programs can see."""
    binds: tuple[str, ...] = ()
    """Patterns of what the toolchain reads of the host outside its folder, where it exists."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables for compiler and program, on top of the minimal ones; a request's own win."""
    files: Mapping[str, str] = field(default_factory=dict)
    """Path -> text of files put beside the program, unless the request brings its own."""
    prefix: str = ""
    """Put before a source that does not have it."""
    left_alone: str = ""
    """Pattern of sources that get no `prefix`."""
    named_by: str = ""
    """Pattern whose first group is `{name}`, where the name of a program's main part is in its source. It may become a
    part of a file's name: what the pattern takes is short and plain."""
    default_name: str = "Main"
    """`{name}` where the pattern is not found."""
    reserves: int = 0
    """Bytes of address space that its runtime takes and does not use; they are no part of any limit."""
    needs: Needs = Needs()
    """Defaults of a run are raised to this; what a request asks for is not."""
    compiler_needs: Needs = COMPILER_NEEDS
    """The compiler gets at least this."""
    install: str = ""
    """Debian packages to install, or a source of the toolchain, as text for people."""
    profile: str = ""
    """Runtime profile whose workers run the program themselves, without `run`; empty: the command is started."""

    def program_name(self, code: bytes) -> str:
        """`{name}` for a source."""
        if not self.named_by:
            return self.default_name
        found = re.search(self.named_by, code.decode("utf-8", "replace"), re.MULTILINE)
        return found[1] if found else self.default_name

    def program_file(self, code: bytes) -> str:
        """Name of the file that a source is written to."""
        return fill(self.file_name, {"name": self.program_name(code)})

    def source(self, code: bytes) -> bytes:
        """Returns the bytes to write to the program's file."""
        prefix = self.prefix.encode()
        if self.left_alone and re.search(self.left_alone.encode(), code, re.MULTILINE):
            return code
        return code if not prefix or prefix.strip() in code else prefix + code
