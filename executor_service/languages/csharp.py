"""C# on Mono, made to behave as a console program of .NET does where tests rely on it.

There a new project imports the usual namespaces by itself, is built with DEBUG defined, and an assertion that does not
hold ends the program with exit code 134. Mono's own assertions say nothing and go on: a wrong program would pass.
"""

from __future__ import annotations

from executor_service.languages.spec import LanguageSpec

__all__ = ["CSHARP"]

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
