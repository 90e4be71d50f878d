#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""check_skips.py <LastTest.log>...: the tests skipped must be those of tests/expected_skips.txt."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SKIPPED = re.compile(r"^\[  SKIPPED \] ([\w/]+\.[\w/]+)", re.MULTILINE)


def main() -> int:
    skipped: set[str] = set()
    for log in sys.argv[1:]:
        skipped |= set(SKIPPED.findall(Path(log).read_text(encoding="utf-8", errors="replace")))
    lines = (ROOT / "tests/expected_skips.txt").read_text(encoding="utf-8").splitlines()
    expected = {line.strip() for line in lines if line.strip() and not line.startswith("#")}
    for name in sorted(skipped - expected):
        print(f"skips: {name} was skipped, but is not in tests/expected_skips.txt")
    for name in sorted(expected - skipped):
        print(f"skips: {name} is in tests/expected_skips.txt, but was not skipped")
    if skipped == expected:
        print(f"skips: {len(skipped)} tests skipped, as expected.")
    return 0 if skipped == expected else 1


if __name__ == "__main__":
    sys.exit(main())
