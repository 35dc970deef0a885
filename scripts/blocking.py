"""Blocking modules: each is generated from the awaiting one of the same name, `aio_NAME.py` to `NAME.py`.

`make blocking` writes them, `make check` compares them. The awaiting module is the text; what really differs between
the two is in modules written by hand for each, whose functions have the same names: PAIRS of module names, below.
"""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[1]

FOLDERS: Final = (
    "core/src/lockstead",
    "core/src/lockstead/runtime",
    "core/src/lockstead/stores",
    "core/src/lockstead/stores/etcd",
    "core/src/lockstead/stores/gcs",
    "core/src/lockstead/stores/postgres",
    "core/src/lockstead/stores/redis",
    "core/src/lockstead/wrapping",
    "packages/prefect_block/src/prefect_lockstead",
)

BY_HAND: Final = {"aio_guard.py", "aio_loading.py", "aio_rounds.py"}
"""Awaiting modules whose blocking twin is written by hand, as they differ in all they do."""

HEADER: Final = "# Generated from {} by `make blocking`: edit that file instead.\n"

REPLACEMENTS: Final = [
    (re.compile(pattern), text)
    for pattern, text in (
        # modules written by hand for each side
        (r"\blockstead\.(runtime|stores)\.awaiting\b", r"lockstead.\1.blocking"),
        (r"\blockstead\.runtime\.aside\b", "lockstead.runtime.blocking"),
        (r"\baio_(?=\w)", ""),
        # names
        (r"\bAsyncWaker\b", "ThreadWaker"),
        (r"\bcheck_coroutine_function\b", "check_function"),
        (r"\bAsyncGenerator\b", "Iterator"),
        (r"\b(a|A)n (`?)Async(?=[A-Z])", r"\1 \2"),
        (r"\b(_?)Async(?=[A-Z])", r"\1"),
        (r"\b__a(enter|exit|iter|next)__\b", r"__\1__"),
        (r"\baclose\b", "close"),
        (r"\bconnect_async\b", "connect"),
        # types: what is awaited is returned
        (r"\bAwaitable\[([^\[\]]+)\]", r"\1"),
        (r"\bCoroutine\[Any, Any, ([^\[\]]+)\]", r"\1"),
        (r"\b(a|A)n (`?)async (?=with\b)", r"\1 \2"),
        # generators: an awaiting one returns nothing
        (r"\basynccontextmanager\b", "contextmanager"),
        (r"\bexcept StopAsyncIteration:(\s+)return\b", r"except StopIteration as ended:\1return ended.value"),
        (r"\ba(send|throw)\b", r"\1"),
        # keywords, and what the prose says of them
        (r"\bawait asyncio\.to_thread\(([\w.]+)(?:, )?", r"\1("),
        (r"\basync (?=def\b|with\b|for\b)", ""),
        (r"\bawait (?=[\w(])", ""),
        (r"\ba coroutine function\b", "a function"),
        (r"\bAwaiting\b", "Blocking"),
        (r"\bawaiting\b", "blocking"),
    )
]


def blocking(text: str, source: str) -> str:
    """Return the blocking text of an awaiting module, not laid out yet."""
    for pattern, replacement in REPLACEMENTS:
        text = pattern.sub(replacement, text)
    return HEADER.format(source) + text


def laid_out(text: str, target: Path) -> str:
    """Let ruff drop the imports that only the awaiting side needs, sort the others, and lay the text out."""
    for words in (["check", "--quiet", "--fix-only", "--select", "I,F401"], ["format"]):
        command = [sys.executable, "-m", "ruff", *words, "--stdin-filename", str(target), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout
    return text


def sources() -> list[Path]:
    """Return the awaiting modules that have a generated twin."""
    found = (path for folder in FOLDERS for path in sorted((ROOT / folder).glob("aio_*.py")))
    return [path for path in found if path.name not in BY_HAND]


def main(words: list[str]) -> int:
    """Write the blocking modules; with --check, print what would change, and return 1 if anything would."""
    is_check, stale = "--check" in words, 0
    for source in sources():
        target = source.with_name(source.name.removeprefix("aio_"))
        made = laid_out(blocking(source.read_text(), source.name), target)
        found = target.read_text() if target.exists() else ""
        if made == found:
            continue
        name = str(target.relative_to(ROOT))
        if is_check:
            stale += 1
            lines = difflib.unified_diff(
                found.splitlines(), made.splitlines(), name, f"{name} by make blocking", "", "", 1
            )
            sys.stderr.write("\n".join([*lines, f"{name} is not what {source.name} makes: run `make blocking`", ""]))
        else:
            target.write_text(made)
            sys.stderr.write(f"wrote {name}\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
