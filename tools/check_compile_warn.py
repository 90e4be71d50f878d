#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_compile_warn.py <compile_commands.json> <like> <source>...: every source must compile.

Each is compiled with the flags of the file <like>. For each `// WARN: text`, at the end of a
statement, there must be one warning of a deprecated name whose successor is `text`; there must be no
other warnings.
"""
import os
import re
import subprocess
import sys

from check_compile_fail import compile_command

EXPECTED = re.compile(r"// WARN: (.+?)\s*$", re.MULTILINE)
WARNING = re.compile(r"^(?P<file>[^\s:]+):\d+:\d+: warning: (?P<text>.+)$", re.MULTILINE)
DEPRECATED = re.compile(r"is deprecated: (.+) \[-Wdeprecated-declarations\]$")


def expected_warnings(source: str) -> list[str]:
    with open(source, encoding="utf-8") as file:
        return sorted(EXPECTED.findall(file.read()))


def warnings_in(output: str, source: str) -> list[str]:
    """Returns the successor, or the whole text, of each warning; one elsewhere with its file."""
    found = []
    for match in WARNING.finditer(output):
        deprecated = DEPRECATED.search(match["text"])
        text = deprecated.group(1) if deprecated else match["text"]
        found.append(text if match["file"] == source else f"{match['file']}: {text}")
    return sorted(found)


def main() -> int:
    database, like, *sources = sys.argv[1:]
    command, directory = compile_command(database, like)
    command = [word for word in command if word != "-Werror"] + ["-Wno-unused-variable", "-Wno-unused-but-set-variable"]
    failed = 0
    for source in sources:
        run = subprocess.run(
            [*command, source],
            cwd=directory,
            env={**os.environ, "LC_ALL": "C"},
            capture_output=True,
            text=True,
            check=False,
        )
        expected, found = expected_warnings(source), warnings_in(run.stderr, source)
        if run.returncode == 0 and expected == found:
            continue
        failed += 1
        print(f"{source}: expected {expected}, got {found}\n{run.stderr}")
    print(f"{len(sources) - failed} of {len(sources)} sources compile, with the warnings that they should draw.")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
