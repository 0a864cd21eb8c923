"""Languages whose compiler makes a program for the machine, or for a small virtual machine of their own.

There a new project imports the usual namespaces by itself, is built with DEBUG defined, and an assertion that does not
hold ends the program with exit code 134. Mono's own assertions say nothing and go on: a wrong program would pass.
"""

from __future__ import annotations

from executor_service.languages.spec import COMPILER_NEEDS, LanguageSpec, Needs

_IMPLICIT = (
    "System",
    "System.Collections.Generic",
    "System.IO",
    "System.Linq",
    "System.Threading",
    "System.Threading.Tasks",
)
_LISTENER = """namespace Fairbox {
    class Assertions : System.Diagnostics.TraceListener {
        public override void Write(string text) {}
        public override void WriteLine(string text) {}
        public override void Fail(string text) { Fail(text, ""); }
        public override void Fail(string text, string detail) {
            System.Console.Out.Flush();
            System.Console.Error.WriteLine("Process terminated. Assertion failed.");
            System.Console.Error.WriteLine((text + " " + detail).Trim());
            System.Console.Error.WriteLine(new System.Diagnostics.StackTrace(true));
            System.Environment.Exit(134);
        }
    }
}
"""
_CONFIGURATION = """<configuration><system.diagnostics><trace><listeners>
<clear/><add name="assertions" type="Fairbox.Assertions, main"/>
</listeners></trace></system.diagnostics></configuration>
"""

CSHARP = LanguageSpec(
    "csharp",
    "main.cs",
    compile=(
        "{mcs}",
        "-langversion:latest",
        "-define:DEBUG,TRACE",
        "-nowarn:105",  # a namespace that the program imports as well
        "-out:main.exe",
        "main.cs",
        ".assertions.cs",
    ),
    makes=("main.exe",),
    run=("{mono}", "--debug", "main.exe"),
    probe=("{mono}", "--version"),
    tools={"mcs": ("mcs",), "mono": ("mono",)},
    binds=("/etc/mono",),
    env={"MONO_GC_PARAMS": "major=marksweep"},
    files={".assertions.cs": _LISTENER, "main.exe.config": _CONFIGURATION},
    # On the line of the source's first one, so that messages count lines as its author does.
    prefix="".join(f"using {name}; " for name in _IMPLICIT),
    left_alone=r"\A\xef\xbb\xbf|^\s*(?:#\s*(?:define|undef)|extern\s+alias)\b",
    install="mono-mcs mono-runtime",
)


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
