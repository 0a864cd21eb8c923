"""JavaScript and TypeScript on Node. Libraries come from `node_modules` of the toolchain folders."""

from __future__ import annotations

from executor_service.languages.spec import LanguageSpec

__all__ = ["NODE_ENVIRONMENT", "NODE_HOME", "NODE_RESERVES", "WEB"]

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
