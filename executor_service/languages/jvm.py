"""Languages of the Java virtual machine.

The machine is told how much memory there is (`MaxRAM`), so that it neither reserves a share of the whole host nor is
killed for a heap that it thought it could have, and takes the collector that needs no threads of its own. Class files
have names that only the compiler knows, so they travel from compiler to run as one archive.
"""

from __future__ import annotations

from executor_service.languages.spec import LanguageSpec, Needs

__all__ = ["CLASS_PATH", "JAVA_BINDS", "JVM", "JVM_COMPILER_NEEDS", "JVM_NEEDS", "MACHINE", "PACK"]

_MIB = 1 << 20
MACHINE = ("-XX:MaxRAM={memory}", "-XX:MaxRAMPercentage=60", "-XX:+UseSerialGC", "-Xshare:auto")
_COMPILER_MACHINE = " ".join(f"-J{word}" for word in (*MACHINE, "-XX:TieredStopAtLevel=1"))
PACK = "cd classes && {python} -I -m zipfile -c ../main.jar ."
"""A jar is a zip file; the interpreter writes one faster than the jar tool starts."""
JAVA_BINDS = ("/etc/java-*-openjdk", "/etc/ssl/certs/java")
CLASS_PATH = ".:*:/usr/share/java/javatuples.jar"
"""Jars that the request brings, and the one that data sets take for granted because SandboxFusion has it."""
JVM_NEEDS = Needs(processes=256)
"""Its threads grow with the machine's processors."""
JVM_COMPILER_NEEDS = Needs(
    memory_bytes=1024 * _MIB, processes=256, open_files=1024, file_bytes=128 * _MIB, disk_bytes=512 * _MIB
)

JVM = (
    LanguageSpec(
        "java",
        "Main.java",
        compile=(
            "/bin/sh",
            "-c",
            f"mkdir classes && {{javac}} {_COMPILER_MACHINE} -nowarn -d classes -cp '{CLASS_PATH}' Main.java && {PACK}",
        ),
        makes=("main.jar",),
        run=("{java}", *MACHINE, "-ea", "-cp", f"main.jar:{CLASS_PATH}", "Main"),
        probe=("{javac}", "-version"),
        tools={"javac": ("javac",), "java": ("java",)},
        binds=JAVA_BINDS,
        needs=JVM_NEEDS,
        compiler_needs=JVM_COMPILER_NEEDS,
        install="openjdk-17-jdk-headless (default-jdk-headless)",
    ),
    LanguageSpec(
        "scala",
        "main.scala",
        compile=(
            "/bin/sh",
            "-c",
            f"mkdir classes && {{scalac}} {_COMPILER_MACHINE} -d classes main.scala && {PACK}",
        ),
        makes=("main.jar",),
        run=("{scala}", *(f"-J{word}" for word in MACHINE), "-cp", "main.jar", "{name}"),
        probe=("{scala}", "-version"),
        tools={"scalac": ("scalac",), "scala": ("scala",), "java": ("java",)},
        binds=JAVA_BINDS,
        named_by=r"\bobject\s+([A-Za-z0-9_$]{1,200})",
        needs=JVM_NEEDS,
        compiler_needs=JVM_COMPILER_NEEDS,
        install="scala",
    ),
    LanguageSpec(
        "kotlin_script",
        "main.kts",
        run=("{kotlinc}", *(f"-J{word}" for word in MACHINE), "-script", "main.kts", "--"),
        probe=("{kotlinc}", "-version"),
        tools={"kotlinc": ("kotlinc",), "java": ("java",)},
        binds=JAVA_BINDS,
        needs=JVM_NEEDS,
        install="kotlin",
    ),
)
