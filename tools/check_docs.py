#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every C++ block of README.md and docs/ is code that is compiled and run.

In the page, the line before the block names a file under examples/ or tests/docs/ and a snippet:

    <!-- snippet: examples/01_hello_replicas.cc#run -->
    ```cpp

In the file, the lines `// [snippet run]` and `// [/snippet]` enclose the snippet. With --fix the blocks are
written anew from the files. Code that is not meant to compile goes into a ```text block.

A ```diff block shows what differs between two snippets, with the same rules:

    <!-- diff: examples/04_plain_loop.cc#program examples/05_same_with_tutti.cc#program -->
    ```diff
"""
import difflib
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NAME = re.compile(r"^<!-- snippet: (\S+)#(\S+) -->$")
DIFF = re.compile(r"^<!-- diff: (\S+)#(\S+) (\S+)#(\S+) -->$")
FENCE = re.compile(r"^```(cpp|c\+\+|cc|C\+\+|diff)\b")


def snippet(path: str, name: str) -> str:
    """Returns a snippet without its common indentation; raises ValueError if there is none."""
    if not path.startswith(("examples/", "tests/docs/")):
        raise ValueError(f"{path} is neither in examples/ nor in tests/docs/")
    if not (ROOT / path).is_file():
        raise ValueError(f"{path} does not exist")
    lines = (ROOT / path).read_text(encoding="utf-8").splitlines()
    marks = [line.strip() for line in lines]
    begin, end = f"// [snippet {name}]", "// [/snippet]"
    if marks.count(begin) != 1:
        raise ValueError(f"{path} has {marks.count(begin)} lines `{begin}`, not one")
    first = marks.index(begin) + 1
    if end not in marks[first:]:
        raise ValueError(f"{path}: the snippet {name} has no end `{end}`")
    inside = lines[first : marks.index(end, first)]
    return textwrap.dedent("\n".join(inside)).strip("\n")


def difference(old: str, old_name: str, new: str, new_name: str) -> str:
    """Returns the diff of two snippets with two lines of context, without line numbers."""
    texts = [snippet(old, old_name).splitlines(), snippet(new, new_name).splitlines()]
    lines = list(difflib.unified_diff(*texts, old, new, n=2, lineterm=""))
    return "\n".join("@@" if line.startswith("@@") else line.rstrip() for line in lines)


def check_page(page: Path, fix: bool) -> tuple[list[str], int]:
    lines = page.read_text(encoding="utf-8").splitlines()
    failures: list[str] = []
    result: list[str] = []
    blocks = at = 0
    while at < len(lines):
        result.append(lines[at])
        at += 1
        if not FENCE.match(result[-1]):
            continue
        blocks += 1
        where = f"{page.relative_to(ROOT)}:{at}"
        end = next((i for i in range(at, len(lines)) if lines[i].startswith("```")), len(lines))
        block = lines[at:end]
        at = end
        is_diff = result[-1].startswith("```diff")
        named = (DIFF if is_diff else NAME).match(result[-2]) if len(result) > 1 else None
        if not named:
            form = "diff: file#name file#name" if is_diff else "snippet: file#name"
            failures.append(f"{where}: no `<!-- {form} -->` line before the block")
        else:
            try:
                make = difference if is_diff else snippet
                wanted = make(*named.groups()).splitlines()
                if textwrap.dedent("\n".join(block)).strip("\n").splitlines() != wanted:
                    if fix:
                        block = wanted
                    else:
                        failures.append(f"{where}: differs from {named[1]}#{named[2]}")
            except ValueError as error:
                failures.append(f"{where}: {error}")
        result += block
    if fix and result != lines:
        page.write_text("\n".join(result) + "\n", encoding="utf-8")
        print(f"{page.relative_to(ROOT)}: rewritten")
    return failures, blocks


def main() -> int:
    fix = sys.argv[1:] == ["--fix"]
    pages = [p for p in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))] if p.exists()]
    failures: list[str] = []
    blocks = 0
    for page in pages:
        found, count = check_page(page, fix)
        failures += found
        blocks += count
    if failures:
        print("\n".join(failures))
        print("docs: `tools/check_docs.py --fix` copies the snippets into the pages.")
    else:
        print(f"docs: {blocks} code blocks on {len(pages)} pages are compiled snippets.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
