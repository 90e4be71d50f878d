#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_compile_fail.py <compile_commands.json> <like> <source>...: no source must compile.

The compiler gets them as one file, each in its own namespace, with the flags of the file
<like>. Every `// EXPECT-ERROR: text` line of a source must be found in what the compiler prints
about that source, and `// EXPECT-FIRST-ERROR: text` in the first error about it.
"""
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

INCLUDE = re.compile(r"^\s*#\s*include .*$", re.MULTILINE)
# Lines that the compiler prints before an error or a note: its context.
BEFORE = re.compile(r"^In file included from |^\s+from |: In |: At global scope:|:   (recursively )?required ")


def compile_command(database: str, like: str) -> tuple[list[str], str]:
    """Returns the command that checks the syntax of a source appended to it, and its folder."""
    with open(database, encoding="utf-8") as file:
        entry = next(e for e in json.load(file) if e["file"].endswith("/" + like))
    words = shlex.split(entry["command"])
    words = words[: words.index("-c")]
    if "-o" in words:
        at = words.index("-o")
        del words[at : at + 2]
    return [*words, "-fsyntax-only"], entry["directory"]


def one_source(texts: dict[str, str]) -> str:
    """Joins all sources: their includes first, with lines and names as in their own files."""
    includes = sorted({line for text in texts.values() for line in INCLUDE.findall(text)})
    parts = [
        f'namespace compile_fail_{i} {{\n#line 1 "{source}"\n{INCLUDE.sub("", text)}\n}}\n'
        for i, (source, text) in enumerate(texts.items())
    ]
    return "\n".join([*includes, *parts])


def errors_of(output: str) -> list[str]:
    """Returns each error that the compiler printed, with its context and the notes that follow."""
    errors: list[str] = []
    before = ""
    for line in output.splitlines(keepends=True):
        if BEFORE.search(line):
            before += line
        elif ": error: " in line or not errors:
            errors.append(before + line)
            before = ""
        else:
            errors[-1] += before + line
            before = ""
    return errors


def expected(text: str, kind: str) -> list[str]:
    return re.findall(rf"^\s*// {kind}: (.+?)\s*$", text, re.MULTILINE)


def main() -> int:
    database, like, *sources = sys.argv[1:]
    texts = {}
    for source in sources:
        with open(source, encoding="utf-8") as file:
            texts[source] = file.read()
    command, directory = compile_command(database, like)
    plain = {**os.environ, "LC_ALL": "C"}  # ASCII quotes in the compiler's messages
    with tempfile.NamedTemporaryFile("w", suffix=".cc", encoding="utf-8") as file:
        file.write(one_source(texts))
        file.flush()
        run = subprocess.run(
            [*command, file.name], cwd=directory, env=plain, capture_output=True, text=True, check=False
        )
    errors = errors_of(re.sub(r"\bcompile_fail_\d+::", "", run.stdout + run.stderr))
    failed = 0
    for source, text in texts.items():
        own = [error for error in errors if source + ":" in error]
        if not own:
            print(f"{source}: compiled, but must not.")
        first = next((line for line in "".join(own).splitlines() if ": error: " in line), "")
        anywhere, at_first = (expected(text, "EXPECT-ERROR"), expected(text, "EXPECT-FIRST-ERROR"))
        if not anywhere and not at_first:
            print(f"{source}: has no `// EXPECT-ERROR: text` line.")
        missing = [want for want in anywhere if want not in "".join(own)]
        missing += [want for want in at_first if want not in first]
        for want in missing:
            print(f"{source}: the compiler did not say: {want}")
        if not own or missing or not anywhere + at_first:
            print("".join(own))
            failed += 1
    print(f"{len(texts) - failed} of {len(texts)} sources fail to compile as they should.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
