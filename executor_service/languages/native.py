"""Languages whose compiler makes a program for the machine, or for a small virtual machine of their own."""

from __future__ import annotations

from executor_service.languages.csharp import CSHARP
from executor_service.languages.spec import COMPILER_NEEDS, LanguageSpec, Needs

__all__ = ["GO_ENVIRONMENT", "GO_NEEDS", "NATIVE"]

GO_NEEDS = Needs(processes=256)
"""Its threads grow with the machine's processors."""
GO_ENVIRONMENT = {
    "GOCACHE": "{tmp}/go-cache",
    "GOPATH": "/usr/share/gocode",  # where Debian's packages put libraries (golang-*-dev)
    "GO111MODULE": "auto",  # a request's go.mod decides; without one, those libraries can be imported
    "GOFLAGS": "-p=4",  # or one compiler for each processor
    "GOPROXY": "off",
    "GOTOOLCHAIN": "local",
    "GOTELEMETRY": "off",
}

NATIVE = (
    LanguageSpec(
        "c",
        "main.c",
        compile=("{gcc}", "-std=gnu17", "-O2", "-o", "main", "main.c", "-lm", "-pthread"),
        makes=("main",),
        run=("./main",),
        probe=("{gcc}", "--version"),
        tools={"gcc": ("gcc", "clang")},
        install="gcc libc6-dev",
    ),
    LanguageSpec(
        "cpp",
        "main.cpp",
        compile=("{gxx}", "-std=gnu++17", "-O2", "-o", "main", "main.cpp", "-pthread"),
        makes=("main",),
        run=("./main",),
        probe=("{gxx}", "--version"),
        tools={"gxx": ("g++", "clang++")},
        install="g++",
    ),
    # Overflow and debug assertions stay on, as in a build without optimisation.
    LanguageSpec(
        "rust",
        "main.rs",
        compile=(
            "{rustc}",
            "--edition=2021",
            "-Copt-level=2",
            "-Cdebug-assertions=on",
            "-o",
            "main",
            "main.rs",
        ),
        makes=("main",),
        run=("./main",),
        probe=("{rustc}", "--version"),
        tools={"rustc": ("rustc",), "cc": ("cc",)},
        home=("{rustc}", "--print", "sysroot"),
        install="rustc, or rustup",
    ),
    LanguageSpec(
        "go",
        "main.go",
        compile=("{go}", "build", "-o", "main", "main.go"),
        makes=("main",),
        run=("./main",),
        probe=("{go}", "version"),
        tools={"go": ("go",)},
        home=("{go}", "env", "GOROOT"),
        env=GO_ENVIRONMENT,
        needs=GO_NEEDS,
        compiler_needs=Needs(
            memory_bytes=COMPILER_NEEDS.memory_bytes,
            processes=512,
            open_files=COMPILER_NEEDS.open_files,
            file_bytes=COMPILER_NEEDS.file_bytes,
            disk_bytes=1 << 30,
        ),
        install="golang-go",
    ),
    LanguageSpec(
        "D_ut",
        "main.d",
        compile=("{dmd}", "-unittest", "-of=main", "main.d"),
        makes=("main",),
        run=("./main",),
        probe=("{dmd}", "--version"),
        tools={"dmd": ("dmd", "ldmd2")},
        binds=("/etc/dmd.conf", "/etc/ldc2.conf"),
        install="ldc",
    ),
    LanguageSpec(
        "swift",
        "main.swift",
        compile=("{swiftc}", "-o", "main", "main.swift"),
        makes=("main",),
        run=("./main",),
        probe=("{swiftc}", "--version"),
        tools={"swiftc": ("swiftc",)},
        install="swift.org",
    ),
    CSHARP,
    LanguageSpec(
        "verilog",
        "main.sv",
        compile=(
            "{iverilog}",
            "-Wall",
            "-Winfloop",
            "-Wno-timescale",
            "-g2012",
            "-s",
            "tb",
            "-o",
            "main.vvp",
            "main.sv",
        ),
        makes=("main.vvp",),
        run=("{vvp}", "-n", "main.vvp"),
        probe=("{iverilog}", "-V"),
        tools={"iverilog": ("iverilog",), "vvp": ("vvp",)},
        install="iverilog",
    ),
)
