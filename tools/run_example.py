#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""run_example.py <source> <program> [arguments]: runs an example and checks how it ends.

The leading comment of the source has a line `// Expected last line: <regular expression>`; the
whole last line that the program prints must match it, and the exit status must be 0.
"""
import re
import subprocess
import sys


def main() -> int:
    source, command = sys.argv[1], sys.argv[2:]
    with open(source, encoding="utf-8") as file:
        found = re.search(r"^// Expected last line: (.+?)\s*$", file.read(), re.MULTILINE)
    if not found:
        print(f"{source}: has no `// Expected last line: ...` comment.")
        return 1
    run = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    print(run.stdout, end="")
    lines = run.stdout.strip().splitlines()
    last = lines[-1] if lines else ""
    if run.returncode != 0:
        print(f"{source}: exit status {run.returncode}.")
        return 1
    if not re.fullmatch(found.group(1), last):
        print(f"{source}: the last line is\n  {last}\nbut must match\n  {found.group(1)}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
