"""Programs on Node, and tests as programs: the source is a test file, and the exit code says whether all passed."""

from __future__ import annotations

from executor_service.languages.jvm import CLASS_PATH, JAVA_BINDS, JVM_COMPILER_NEEDS, JVM_NEEDS, MACHINE, PACK
from executor_service.languages.native import GO_ENVIRONMENT
from executor_service.languages.spec import LanguageSpec, Needs

__all__ = ["NODE_ENVIRONMENT", "NODE_HOME", "NODE_RESERVES", "SUITES", "WEB"]

NODE_ENVIRONMENT = {"NODE_PATH": "{node_modules}"}
NODE_RESERVES = 64 << 30
"""Each WebAssembly memory takes 10 GiB of addresses, and node's own `fetch` has one, as have loaders of modules."""
NODE_HOME = ("{node}", "-p", "require('path').dirname(require('path').dirname(process.execPath))")

WEB = (
    LanguageSpec(
        "nodejs",
        "main.js",
        run=("{node}", "main.js"),
        probe=("{node}", "--version"),
        tools={"node": ("node", "nodejs")},
        home=NODE_HOME,
        env=NODE_ENVIRONMENT,
        reserves=NODE_RESERVES,
        install="nodejs",
    ),
    # Types are removed, not checked, as SandboxFusion does it.
    LanguageSpec(
        "typescript",
        "main.ts",
        run=("{tsx}", "main.ts"),
        probe=("{tsx}", "--version"),
        tools={"tsx": ("tsx",), "node": ("node", "nodejs")},
        env=NODE_ENVIRONMENT,
        reserves=NODE_RESERVES,
        install="make toolchains (npm: tsx)",
    ),
)


_MIB = 1 << 20
_BABEL = """module.exports = {
  presets: [["@babel/preset-env", {targets: {node: "current"}}], "@babel/preset-typescript"],
};
"""
_JUNIT = "/usr/share/java/junit-platform-console-standalone.jar"
"""Where Debian's package puts the launcher with all that it needs."""

SUITES = (
    LanguageSpec(
        "pytest",
        "test_main.py",
        run=("{python}", "-m", "pytest", "-p", "no:cacheprovider", "test_main.py"),
        probe=("{python}", "-m", "pytest", "--version"),
        install="pytest for the interpreter that `python` names",
    ),
    # Compiles as a part of its run: the tests are the program.
    LanguageSpec(
        "go_test",
        "main_test.go",
        run=("{go}", "test", "main_test.go"),
        probe=("{go}", "version"),
        tools={"go": ("go",)},
        home=("{go}", "env", "GOROOT"),
        env=GO_ENVIRONMENT,
        needs=Needs(processes=512, open_files=512, disk_bytes=1024 * _MIB),
        install="golang-go",
    ),
    LanguageSpec(
        "jest",
        "main.test.ts",
        run=("{jest}", "--ci", "--watchman=false", "--runInBand", "--rootDir=."),
        probe=("{jest}", "--version"),
        tools={"jest": ("jest",), "node": ("node", "nodejs")},
        env=NODE_ENVIRONMENT | {"FORCE_COLOR": "0"},
        reserves=NODE_RESERVES,
        files={"babel.config.js": _BABEL, "package.json": '{"private": true}\n'},
        install="make toolchains (npm: jest)",
    ),
    LanguageSpec(
        "junit",
        "{name}.java",
        compile=(
            "/bin/sh",
            "-c",
            f"mkdir classes && {{javac}} -J-XX:MaxRAM={{memory}} -J-XX:+UseSerialGC -J-XX:TieredStopAtLevel=1 "
            f"-nowarn -d classes -cp '{CLASS_PATH}:{_JUNIT}' *.java && {PACK}",
        ),
        makes=("main.jar",),
        run=(
            "{java}",
            *MACHINE,
            "-cp",
            f"main.jar:{CLASS_PATH}:{_JUNIT}",
            "org.junit.platform.console.ConsoleLauncher",
            "--disable-banner",
            "--scan-class-path=main.jar",
        ),
        probe=("{java}", "-cp", _JUNIT, "org.junit.platform.console.ConsoleLauncher", "--help"),
        tools={"javac": ("javac",), "java": ("java",)},
        binds=JAVA_BINDS,
        named_by=r"^\s*public\s+(?:final\s+|abstract\s+)*class\s+([A-Za-z0-9_$]{1,200})",
        needs=JVM_NEEDS,
        compiler_needs=JVM_COMPILER_NEEDS,
        install="openjdk-17-jdk-headless junit5",
    ),
    # A file in which every theorem is proven compiles; nothing else is run.
    LanguageSpec(
        "lean",
        "Main.lean",
        run=("{lean}", "Main.lean"),
        probe=("{lean}", "--version"),
        tools={"lean": ("lean",)},
        home=("{lean}", "--print-prefix"),
        needs=Needs(processes=256),
        install="elan",
    ),
)
