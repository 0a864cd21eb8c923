"""Languages of the Java virtual machine, programs on Node, and tests as programs: there the source is a test file, and
the exit code says whether all passed.

The Java machine is told how much memory there is (`MaxRAM`), so that it neither reserves a share of the whole host nor
is killed for a heap that it thought it could have, and takes the collector that needs no threads of its own. Class
files have names that only the compiler knows, so they travel from compiler to run as one archive.
"""

from __future__ import annotations

from executor_service.languages.native import GO_ENVIRONMENT
from executor_service.languages.spec import LanguageSpec, Needs

_MIB = 1 << 20
_MACHINE = ("-XX:MaxRAM={memory}", "-XX:MaxRAMPercentage=60", "-XX:+UseSerialGC", "-Xshare:auto")
_COMPILER_MACHINE = " ".join(f"-J{word}" for word in (*_MACHINE, "-XX:TieredStopAtLevel=1"))
_PACK = "cd classes && {python} -I -m zipfile -c ../main.jar ."
"""A jar is a zip file; the interpreter writes one faster than the jar tool starts."""
_JAVA_BINDS = ("/etc/java-*-openjdk", "/etc/ssl/certs/java")
_CLASS_PATH = ".:*:/usr/share/java/javatuples.jar"
"""Jars that the request brings, and the one that data sets take for granted because SandboxFusion has it."""
_JVM_NEEDS = Needs(processes=256)
"""Its threads grow with the machine's processors."""
_JVM_COMPILER_NEEDS = Needs(
    memory_bytes=1024 * _MIB, processes=256, open_files=1024, file_bytes=128 * _MIB, disk_bytes=512 * _MIB
)

JVM = (
    LanguageSpec(
        "java",
        "Main.java",
        compile=(
            "/bin/sh",
            "-c",
            f"mkdir classes && {{javac}} {_COMPILER_MACHINE} -nowarn -d classes -cp '{_CLASS_PATH}' Main.java "
            f"&& {_PACK}",
        ),
        makes=("main.jar",),
        run=("{java}", *_MACHINE, "-ea", "-cp", f"main.jar:{_CLASS_PATH}", "Main"),
        probe=("{javac}", "-version"),
        tools={"javac": ("javac",), "java": ("java",)},
        binds=_JAVA_BINDS,
        needs=_JVM_NEEDS,
        compiler_needs=_JVM_COMPILER_NEEDS,
        install="openjdk-17-jdk-headless (default-jdk-headless)",
    ),
    LanguageSpec(
        "scala",
        "main.scala",
        compile=(
            "/bin/sh",
            "-c",
            f"mkdir classes && {{scalac}} {_COMPILER_MACHINE} -d classes main.scala && {_PACK}",
        ),
        makes=("main.jar",),
        run=("{scala}", *(f"-J{word}" for word in _MACHINE), "-cp", "main.jar", "{name}"),
        probe=("{scala}", "-version"),
        tools={"scalac": ("scalac",), "scala": ("scala",), "java": ("java",)},
        binds=_JAVA_BINDS,
        named_by=r"\bobject\s+([A-Za-z0-9_$]{1,200})",
        needs=_JVM_NEEDS,
        compiler_needs=_JVM_COMPILER_NEEDS,
        install="scala",
    ),
    LanguageSpec(
        "kotlin_script",
        "main.kts",
        run=("{kotlinc}", *(f"-J{word}" for word in _MACHINE), "-script", "main.kts", "--"),
        probe=("{kotlinc}", "-version"),
        tools={"kotlinc": ("kotlinc",), "java": ("java",)},
        binds=_JAVA_BINDS,
        needs=_JVM_NEEDS,
        install="kotlin",
    ),
)

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

_BABEL = """module.exports = {
  presets: [["@babel/preset-env", {targets: {node: "current"}}], "@babel/preset-typescript"],
};
"""
_JUNIT = "/usr/share/java/junit-platform-console-standalone.jar"
"""Launcher with all that it needs, where Debian's package puts it."""

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
            f"-nowarn -d classes -cp '{_CLASS_PATH}:{_JUNIT}' *.java && {_PACK}",
        ),
        makes=("main.jar",),
        run=(
            "{java}",
            *_MACHINE,
            "-cp",
            f"main.jar:{_CLASS_PATH}:{_JUNIT}",
            "org.junit.platform.console.ConsoleLauncher",
            "--disable-banner",
            "--scan-class-path=main.jar",
        ),
        probe=("{java}", "-cp", _JUNIT, "org.junit.platform.console.ConsoleLauncher", "--help"),
        tools={"javac": ("javac",), "java": ("java",)},
        binds=_JAVA_BINDS,
        named_by=r"^\s*public\s+(?:final\s+|abstract\s+)*class\s+([A-Za-z0-9_$]{1,200})",
        needs=_JVM_NEEDS,
        compiler_needs=_JVM_COMPILER_NEEDS,
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
