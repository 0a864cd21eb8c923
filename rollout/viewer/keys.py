"""Every key of the viewer and what it does, as the help screen and the documentation show it."""

from __future__ import annotations

__all__ = ["FILTER_HELP", "KEYS"]

KEYS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "everywhere",
        (
            ("?", "this help"),
            ("esc", "back; stops a search that runs"),
            ("q", "quit"),
            ("↑ ↓ j k", "move; PgUp PgDn Ctrl-B Ctrl-F by pages, g G Home End to the ends"),
            ("n p", "next and previous row"),
            ("N P", "next and previous step; in a row, to the row of the same task"),
            ("f", "find: in all rows of all steps, or within a row"),
            ("r", "jump to a request id, or to what it begins with"),
            ("y i", "copy the row as JSON; its request id"),
            ("e", "export the row as JSON"),
        ),
    ),
    (
        "rows",
        (
            ("enter", "open the row"),
            ("← → h l", "choose a column; s sorts by it: descending, ascending, not"),
            ("/", "filter"),
            ("E", "export all rows that are shown"),
            ("o", "list of steps"),
            ("u", "groups"),
            ("c", "compare with another step"),
            ("w", "follow: newest step, last row"),
        ),
    ),
    (
        "row",
        (
            ("← → [ ]", "previous and next part: turn, call, prompt"),
            ("space z", "fold a part; all of them"),
            ("enter ⌫", "next and previous place of what was found"),
            ("t", "tokens, and back"),
        ),
    ),
    (
        "tokens",
        (
            ("← → h l", "move by tokens"),
            ("m", "colours: mask, or how likely a token was"),
            ("b", "mark boundaries of tokens"),
            ("x", "next unlikely token (p below 0.2)"),
        ),
    ),
    (
        "groups, comparison",
        (
            ("tab", "from the groups to their rows, and back"),
            ("enter", "open; a comparison opens both rows, n and p go between them"),
            ("s", "sort by the column"),
        ),
    ),
)

FILTER_HELP = """score>0.5 stop_reason=turns tool_calls>=2   all of them
cause=infra or outcome=time_limit            either; not, ( )
score=none   uid!=3-ab12                     no score; any other uid
text~"#### \\d+"   output~foo   "two words"   regular expression; text
reward_parts.gsm8k=1     acc=0               any other field of the dump"""
