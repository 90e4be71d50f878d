#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_compile_fail.py <source> <compile_commands.json> <like>: the source must not compile.

It is given to the compiler with the flags of the file <like>. Every `// EXPECT-ERROR: text` line
of the source must be found in what the compiler prints.
"""
import json
import os
import re
import shlex
import subprocess
import sys


def compile_command(database: str, like: str) -> tuple[list[str], str]:
    """The command that checks the syntax of a source appended to it, and where to run it."""
    with open(database, encoding="utf-8") as file:
        entry = next(e for e in json.load(file) if e["file"].endswith("/" + like))
    words = shlex.split(entry["command"])
    words = words[: words.index("-c")]
    if "-o" in words:
        at = words.index("-o")
        del words[at : at + 2]
    return [*words, "-fsyntax-only"], entry["directory"]


def main() -> int:
    source, database, like = sys.argv[1:]
    with open(source, encoding="utf-8") as file:
        expected = re.findall(r"^\s*// EXPECT-ERROR: (.+?)\s*$", file.read(), re.MULTILINE)
    if not expected:
        print(f"{source}: has no `// EXPECT-ERROR: text` line.")
        return 1
    command, directory = compile_command(database, like)
    plain = {**os.environ, "LC_ALL": "C"}  # ASCII quotes in what the compiler says
    run = subprocess.run(
        [*command, source], cwd=directory, env=plain, capture_output=True, text=True, check=False
    )
    output = run.stdout + run.stderr
    if run.returncode == 0:
        print(f"{source}: compiled, but must not.")
        return 1
    missing = [text for text in expected if text not in output]
    for text in missing:
        print(f"{source}: the compiler did not say: {text}")
    if missing:
        print(output)
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
