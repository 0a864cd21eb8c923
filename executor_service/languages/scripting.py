"""Languages whose interpreter runs the source as it is."""

from __future__ import annotations

from executor_service.languages.spec import PYTHON_BASE, LanguageSpec, Needs

SCRIPTING = (
    LanguageSpec(
        "python",
        "main.py",
        run=("{python}", "main.py"),
        probe=("{python}", "--version"),
        profile=PYTHON_BASE,
    ),
    LanguageSpec(
        "bash",
        "main.sh",
        run=("{bash}", "main.sh"),
        probe=("{bash}", "--version"),
        tools={"bash": ("bash",)},
        install="bash",
    ),
    LanguageSpec(
        "perl",
        "main.pl",
        run=("{perl}", "main.pl"),
        probe=("{perl}", "-e", 'print "perl $^V\\n"'),
        tools={"perl": ("perl",)},
        install="perl",
    ),
    LanguageSpec(
        "php",
        "main.php",
        run=("{php}", "-f", "main.php", "--"),
        probe=("{php}", "--version"),
        tools={"php": ("php",)},
        binds=("/etc/php",),
        prefix="<?php ",
        install="php-cli",
    ),
    LanguageSpec(
        "ruby",
        "main.rb",
        run=("{ruby}", "main.rb"),
        probe=("{ruby}", "--version"),
        tools={"ruby": ("ruby",)},
        install="ruby",
    ),
    LanguageSpec(
        "lua",
        "main.lua",
        run=("{lua}", "main.lua"),
        probe=("{lua}", "-v"),
        tools={"lua": ("lua", "lua5.4")},
        install="lua5.4",
    ),
    LanguageSpec(
        "R",
        "main.R",
        run=("{Rscript}", "main.R"),
        probe=("{Rscript}", "--version"),
        tools={"Rscript": ("Rscript",)},
        binds=("/etc/R",),
        install="r-base-core",
    ),
    LanguageSpec(
        "julia",
        "main.jl",
        run=("{julia}", "main.jl"),
        probe=("{julia}", "--version"),
        tools={"julia": ("julia",)},
        home=("{julia}", "-e", "print(dirname(Sys.BINDIR))"),
        env={"JULIA_DEPOT_PATH": "{tmp}/julia", "JULIA_NUM_THREADS": "1"},
        needs=Needs(processes=128),
        install="julialang.org",
    ),
    LanguageSpec(
        "racket",
        "main.rkt",
        run=("{racket}", "main.rkt"),
        probe=("{racket}", "--version"),
        tools={"racket": ("racket",)},
        binds=("/etc/racket",),
        install="racket",
    ),
    # What is to be printed, as it is: the answer to a task that asks for an output and not for a program.
    LanguageSpec(
        "text",
        "main.txt",
        run=("{cat}", "main.txt"),
        probe=("{cat}", "--version"),
        tools={"cat": ("cat",)},
        install="coreutils",
    ),
    # SandboxFusion declares the name and has no runner for it. Here the statements run on an empty database in memory;
    # rows are printed as the sqlite3 program prints them, and the first error ends it.
    LanguageSpec(
        "sql",
        "main.sql",
        run=("{sqlite3}", "-batch", "-bail", ":memory:", ".read main.sql"),
        probe=("{sqlite3}", "--version"),
        tools={"sqlite3": ("sqlite3",)},
        install="sqlite3",
    ),
)
