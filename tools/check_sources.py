#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks that every source is built, has its licence line, is not too long and starts no process."""
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LICENCE = "// SPDX-License-Identifier: Apache-2.0"
REASON = "// Long because"

# A process is started in one place, by posix_spawn. These examine what a fork does, or need one.
STARTS_PROCESS = re.compile(r"\b(v?fork|posix_spawnp?|popen|system|exec[lv]p?e?)\(")
MAY_START_PROCESS = {"cli/process.cc", "tests/support/main.cc", "tests/process/fork_test.cc",
                     "tests/strategy/mirrored_strategy_test.cc"}

# Folders of tests/ whose sources are built by name or by their own glob.
OTHER_TEST_FOLDERS = {"support", "compile_fail", "compile_warn", "sanitizer", "install", "fuzz", "interop", "property",
                      "group", "without_grpc"}


def cmake_words(folder: Path) -> set[str]:
    text = re.sub(r"#.*", "", (folder / "CMakeLists.txt").read_text(encoding="utf-8"))
    return set(re.split(r"[\s()\"]+", text))


def check_library_lists() -> list[str]:
    """Checks that each layer's CMakeLists.txt lists exactly its headers and sources."""
    failures = []
    for folder in sorted(p for p in (ROOT / "tutti").iterdir() if p.is_dir()):
        if not (folder / "CMakeLists.txt").exists():
            failures.append(f"tutti/{folder.name}: has no CMakeLists.txt")
            continue
        there = {p.relative_to(folder).as_posix() for p in folder.rglob("*.*") if is_source(p)}
        listed = {word for word in cmake_words(folder) if word.endswith((".h", ".cc", ".inc"))}
        for name in sorted(there - listed):
            failures.append(f"tutti/{folder.name}/{name}: not listed in CMakeLists.txt")
        for name in sorted(listed - there):
            failures.append(f"tutti/{folder.name}/CMakeLists.txt: lists {name}, which is not there")
    return failures


def check_globs() -> list[str]:
    """Checks that every test, example and benchmark lies where the globs find it."""
    globbed = {Path(w).parent for w in cmake_words(ROOT / "tests") if w.endswith("/*_test.cc")}
    failures = []
    for path in sorted((ROOT / "tests").rglob("*.cc")):
        folder = path.relative_to(ROOT / "tests").parent
        in_glob = folder in globbed and path.name.endswith("_test.cc")
        if not in_glob and folder.parts[:1] not in {(name,) for name in OTHER_TEST_FOLDERS}:
            failures.append(f"{path.relative_to(ROOT)}: built by no pattern of tests/CMakeLists.txt")
    for top, pattern in (("examples", r"\d\d_\w+\.cc"), ("benchmarks", r"\w+_bench\.cc")):
        for path in sorted((ROOT / top).glob("*.cc")):
            if not re.fullmatch(pattern, path.name):
                failures.append(f"{path.relative_to(ROOT)}: the name must match {pattern}")
    return failures


def check_text(path: Path) -> list[str]:
    lines = path.read_text(encoding="utf-8").splitlines()
    name = path.relative_to(ROOT)
    failures = []
    if not lines or lines[0] != LICENCE:
        failures.append(f"{name}:1: the first line must be {LICENCE}")
    for number, line in enumerate(lines, 1):
        if line != line.rstrip():
            failures.append(f"{name}:{number}: trailing space")
        if STARTS_PROCESS.search(line.split("//")[0]) and name.as_posix() not in MAY_START_PROCESS:
            failures.append(f"{name}:{number}: use cli/process.h to start a process")
    limit = 300 if path.suffix == ".h" else 600
    if name.parts[0] == "tests":
        limit = 800
    if len(lines) > limit and not any(line.startswith(REASON) for line in lines):
        failures.append(
            f"{name}: {len(lines)} lines, more than {limit}; split it, or say why in a line "
            f'that starts with "{REASON}"'
        )
    return failures


def is_source(path: Path) -> bool:
    return path.suffix in (".h", ".cc", ".inc")


def main() -> int:
    failures = check_library_lists() + check_globs()
    count = 0
    for top in ("tutti", "cli", "tests", "examples", "benchmarks"):
        for path in sorted((ROOT / top).rglob("*.*")):
            if is_source(path):
                count += 1
                failures += check_text(path)
    print("\n".join(failures) if failures else f"sources: {count} files are in order.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
