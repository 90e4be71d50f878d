#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Would the tests detect it? Makes each change of tests/mutants/changes.txt alone in a copy of the
sources, builds the test program that it names, and runs the tests that must fail with it. A change
that survives is a gap in the tests: the exit status is 1, and the last lines name it."""
import argparse
import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests/mutants/changes.txt"
CMAKE_OPTIONS = ["-DTUTTI_BUILD_BENCHMARKS=OFF", "-DTUTTI_BUILD_EXAMPLES=OFF"]


@dataclass
class Change:
    name: str
    line: int
    file: str = ""
    target: str = ""
    filter: str = ""
    old_lines: list[str] = field(default_factory=list)
    new_lines: list[str] = field(default_factory=list)

    @property
    def old(self) -> str:
        return "\n".join(self.old_lines)

    @property
    def new(self) -> str:
        return "\n".join(self.new_lines)

    def applied_to(self, text: str) -> str:
        return text.replace(self.old, self.new, 1)


def read_list() -> tuple[list[Change], list[str]]:
    """Returns the changes, and what is wrong with the list itself."""
    changes: list[Change] = []
    problems: list[str] = []
    for number, line in enumerate(LIST.read_text(encoding="utf-8").splitlines(), 1):
        key, _, value = line.partition(": ")
        if line.startswith("#") or not line.strip():
            continue
        if key == "name":
            changes.append(Change(value.strip(), number))
        elif changes and key == "file":
            changes[-1].file = value.strip()
        elif changes and key == "test":
            changes[-1].target, _, changes[-1].filter = value.strip().partition(" ")
        elif changes and line[0] == "-":
            changes[-1].old_lines.append(line[1:])
        elif changes and line[0] == "+":
            changes[-1].new_lines.append(line[1:])
        else:
            problems.append(f"{LIST.name}:{number}: not understood: {line}")
    return changes, problems


def known_targets() -> set[str]:
    text = (ROOT / "tests/CMakeLists.txt").read_text(encoding="utf-8")
    formats = re.search(r"^set\(formats ([^)]*)\)", text, re.MULTILINE)
    names = set(re.findall(r"^\s*tutti_tests\((\w+)", text, re.MULTILINE))
    return names | {f"{each}_fuzz" for each in (formats.group(1).split() if formats else [])}


def check(changes: list[Change]) -> list[str]:
    problems = []
    targets = known_targets()
    names = [change.name for change in changes]
    for change in changes:
        where = f"{LIST.name}:{change.line}: {change.name}: "
        if names.count(change.name) > 1:
            problems.append(where + "there are two changes of this name")
        if change.target not in targets:
            problems.append(where + f'there is no test program "{change.target}"')
        path = ROOT / change.file
        if not change.file or not path.is_file():
            problems.append(where + f'there is no file "{change.file}"')
            continue
        count = path.read_text(encoding="utf-8").count(change.old) if change.old_lines else 0
        if count != 1:
            problems.append(where + f"the old text occurs {count} times in {change.file}, not once")
        if change.old == change.new:
            problems.append(where + "it changes nothing")
    return problems


def run(command: list[str], seconds: float, log: Path) -> int | None:
    """Returns the exit code, or None after a timeout. None of its processes is left."""
    with log.open("wb") as out:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT,
            start_new_session=True)
        try:
            return process.wait(seconds)
        except subprocess.TimeoutExpired:
            return None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def copy_sources(to: Path) -> None:
    """Copies what git does not ignore. Equal files keep their times and are not recompiled."""
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                            cwd=ROOT, capture_output=True, check=True).stdout.decode().split("\0")
    wanted = {name for name in listed if name and (ROOT / name).is_file()}
    for name in wanted:
        source, copy = ROOT / name, to / name
        if copy.is_file() and copy.read_bytes() == source.read_bytes():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, copy)
    for old in [path for path in to.rglob("*") if path.is_file()]:
        if str(old.relative_to(to)) not in wanted:
            old.unlink()


class Runner:
    def __init__(self, tree: Path, build: Path, arguments: argparse.Namespace):
        self.tree = tree
        self.build = build
        self.arguments = arguments
        self.logs = build / "mutants"
        self.logs.mkdir(parents=True, exist_ok=True)

    def compile(self, targets: list[str], seconds: float, log: str) -> int | None:
        command = ["cmake", "--build", str(self.build), "-j", str(self.arguments.jobs), "--target"]
        return run(command + targets, seconds, self.logs / log)

    def test(self, change: Change, log: str) -> int | None:
        command = [str(self.build / "bin" / change.target)]
        if change.target.endswith("_fuzz"):
            name = change.target.removesuffix("_fuzz")
            command.append(str(self.tree / "tests/fuzz/corpus" / name))
        else:
            command += [f"--gtest_filter={change.filter}", "--gtest_fail_fast"]
        return run(command, self.arguments.test_seconds, self.logs / log)

    def passes_unchanged(self, change: Change) -> bool:
        """A test that fails anyway, or does not exist, proves nothing."""
        log = f"{change.name}.before.log"
        if self.test(change, log) != 0:
            return False
        text = (self.logs / log).read_text(encoding="utf-8", errors="replace")
        return re.search(r"\[  PASSED  \] [1-9]|replay: [1-9]", text) is not None

    def result_of(self, change: Change) -> str:
        path = self.tree / change.file
        before = path.read_text(encoding="utf-8")
        try:
            path.write_text(change.applied_to(before), encoding="utf-8")
            built = self.compile([change.target], self.arguments.build_seconds,
                                 f"{change.name}.build.log")
            if built != 0:
                return "does not build" if built is not None else "does not build in time"
            code = self.test(change, f"{change.name}.test.log")
            if code is None:
                return "killed (time limit)"
            return "SURVIVED" if code == 0 else "killed"
        finally:
            path.write_text(before, encoding="utf-8")

    def run_all(self, changes: list[Change]) -> int:
        started = time.monotonic()
        # Done before the first change, since a program keeps the last one until it is rebuilt.
        useless = {change.name for change in changes if not self.passes_unchanged(change)}
        results = []
        for number, change in enumerate(changes, 1):
            begin = time.monotonic()
            print(f"[{number}/{len(changes)}] {change.name} ... ", end="", flush=True)
            results.append("its test does not pass without it" if change.name in useless
                           else self.result_of(change))
            print(f"{results[-1]} ({time.monotonic() - begin:.0f} s)", flush=True)
        killed = sum(result.startswith("killed") for result in results)
        print(f"mutants: {killed} of {len(changes)} killed in {time.monotonic() - started:.0f} s.")
        for change, result in zip(changes, results):
            if not result.startswith("killed"):
                print(f"mutants: {change.name} ({change.file}): {result}; see {self.logs}")
        return 0 if killed == len(changes) else 1


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--list", action="store_true",
                        help="print each change with its file and its tests, and run nothing")
    parser.add_argument("--check", action="store_true",
                        help="only check that each change still fits the sources")
    parser.add_argument("--only", metavar="NAME", action="append",
                        help="run this change alone; may be given several times")
    parser.add_argument("--scratch", metavar="FOLDER", type=Path, default=ROOT / "build/mutants",
                        help="where the copy and its build are kept (%(default)s)")
    parser.add_argument("--define", metavar="NAME=VALUE", action="append", default=[],
                        help="a variable for CMake; may be given several times")
    parser.add_argument("--jobs", type=int, default=1, help="of the build (%(default)s)")
    for name, seconds, what in [
            ("first", 7200, "build of the unchanged sources"),
            ("build", 900, "build of a change"),
            ("test", 180, "run of the tests of a change")]:
        parser.add_argument(f"--{name}-seconds", metavar="SECONDS", type=float, default=seconds,
                            help=f"time limit of the {what} (%(default)s)")
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    changes, problems = read_list()
    problems += check(changes)
    for problem in problems:
        print(f"mutants: {problem}")
    if problems or arguments.check:
        if not problems:
            print(f"mutants: {len(changes)} changes fit the sources.")
        return 1 if problems else 0
    if arguments.only:
        unknown = set(arguments.only) - {change.name for change in changes}
        if unknown:
            print(f"mutants: no change is called {', '.join(sorted(unknown))}; see --list")
            return 2
        changes = [change for change in changes if change.name in arguments.only]
    if arguments.list:
        for change in changes:
            print(f"{change.name:40} {change.file} {change.target} {change.filter}")
        return 0
    # Lets the running processes be ended first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    scratch = arguments.scratch.resolve()
    tree, build = scratch / "source", scratch / "build"
    runner = Runner(tree, build, arguments)
    copy_sources(tree)
    configure = ["cmake", "--preset", "release", "-S", str(tree), "-B", str(build)]
    configure += CMAKE_OPTIONS + [f"-D{each}" for each in arguments.define]
    if run(configure, 600, runner.logs / "configure.log") != 0:
        print(f"mutants: CMake failed; see {runner.logs / 'configure.log'}")
        return 2
    print("mutants: building the tests as they are ...", flush=True)
    targets = sorted({change.target for change in changes})
    if runner.compile(targets, arguments.first_seconds, "before.log") != 0:
        print(f"mutants: the tree does not build; see {runner.logs / 'before.log'}")
        return 2
    return runner.run_all(changes)


if __name__ == "__main__":
    sys.exit(main())
