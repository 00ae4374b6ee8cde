"""Print the size of the source: lines, lines of code and files per room, and counts of some habits.

    python tools/size.py [FOLDER]       of the clone in FOLDER, by default this one

Lines of code are lines with a token that is neither a comment, a docstring nor an import.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections import Counter, defaultdict
from pathlib import Path

IGNORED = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}
HABITS = {
    "Any": r"(?:: |-> |\[|, )Any\b(?=[^\w])",
    "isinstance": r"\bisinstance\(",
    "hasattr, getattr": r"\b(?:has|get)attr\(",
    "classes": r"^\s*class \w",
}


def code_lines(text: str) -> int:
    """Number of lines of code."""
    left_out: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        is_import = isinstance(node, ast.Import | ast.ImportFrom)
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_import or (is_text and isinstance(node.value.value, str)):
            left_out.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in IGNORED and token.string:
            lines.update(range(token.start[0], token.end[0] + 1))
    return len(lines - left_out)


def importers(texts: dict[Path, str], src: Path) -> Counter[str]:
    """How many modules import each module."""
    modules = {".".join(path.relative_to(src).with_suffix("").parts) for path in texts}
    counts: Counter[str] = Counter()
    for path, text in texts.items():
        imported: set[str] = set()
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ImportFrom) and node.module:
                imported |= {node.module} | {f"{node.module}.{name.name}" for name in node.names}
            elif isinstance(node, ast.Import):
                imported |= {name.name for name in node.names}
        own = ".".join(path.relative_to(src).with_suffix("").parts)
        counts.update((imported & modules) - {own})
    return counts


def main(folder: Path) -> None:
    src = folder / "src"
    texts = {path: path.read_text() for path in sorted(src.rglob("*.py"))}
    rooms: defaultdict[str, list[int]] = defaultdict(lambda: [0, 0, 0])
    for path, text in texts.items():
        parts = path.relative_to(src / "pickmix").parts
        for room in (parts[0] if len(parts) > 1 else "(root)", "src"):
            for place, n in enumerate((text.count("\n"), code_lines(text), 1)):
                rooms[room][place] += n
    for other in ("experiments", "tests", "benchmarks"):
        for path in (folder / other).rglob("*.py"):
            rooms[other][0] += path.read_text().count("\n")
            rooms[other][2] += 1
    for room in sorted(rooms, key=lambda room: (room in ("src", "experiments", "tests"), room)):
        lines, code, files = rooms[room]
        print(f"{room:14} {lines:7,} lines {code:7,} of code {files:4} files")
    whole = "\n".join(texts.values())
    for habit, pattern in HABITS.items():
        print(f"{habit:17} {len(re.findall(pattern, whole, re.MULTILINE)):5}")
    single = sum(n == 1 for n in importers(texts, src).values())
    print(f"modules with one importer {single:5}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1])
