#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks who includes what. docs/architecture.md explains the tables below."""
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent

# The folders of tutti/, by level. A folder includes only folders of strictly lower levels, and only
# those that its line names.
LEVELS = [
    {"base": set()},
    {
        "device": {"base"},
        "nest": {"base"},
        "cluster": {"base"},
        "rpc": {"base"},
        "files": {"base"},
        "update_rules": {"base"},
    },
    {
        "values": {"nest", "device", "base"},
        "data": {"files", "nest", "device", "base"},
    },
    {"group": {"rpc", "values", "nest", "device", "base"}},
    {"collectives": {"group", "values", "nest", "device", "base"}},
    {"strategy": {"collectives", "group", "cluster", "rpc", "values", "data", "update_rules", "nest", "device", "base"}},
    {"train": {"strategy", "collectives", "group", "values", "data", "update_rules", "nest", "device", "base"}},
    {"program": {"strategy", "base"}},
    {
        "compat": {"strategy", "collectives", "cluster", "values", "data", "nest", "device", "base"},
        "testing": {"strategy", "collectives", "group", "values", "nest", "device", "base"},
    },
]
LAYERS = {room: sees for level in LEVELS for room, sees in level.items()}


class Part(NamedTuple):
    """A part of a room that fewer files may include than may include the room."""

    path: str  # a header, or a folder (with a slash at its end)
    only_from: set[str]  # files and folders; those of the part itself may anyway
    entrances: set[str] = set()  # if there are any, the only headers that others may include


# The longest path counts.
PARTS = [
    # Each backend of a group has one entrance, and one file that knows it.
    Part("group/grpc/", {"group/join.cc"}, {"factory.h"}),
    Part("group/shared_memory/", {"group/connect.cc"}, {"shared_memory_mesh.h"}),
    Part("group/rendezvous/", {"group/join.cc"}, {"rendezvous.h"}),
    # What has gRPC behind it, so that a build without gRPC leaves out whole folders and join.cc.
    Part("rpc/", {"group/grpc/", "group/rendezvous/", "group/join.cc"}),
    Part("rpc/security.h", {"group/", "strategy/multi_worker_mirrored_strategy.h"}),
    Part("rpc/shared_memory/", {"group/shared_memory/"}),
]

# Third-party headers by their first path component, for each folder and kind of file.
TORCH = {"ATen", "c10"}
WITHOUT_TORCH = {"base", "cluster", "rpc", "files", "update_rules"}
THIRD_PARTY_H = {room: set() if room in WITHOUT_TORCH else TORCH for room in LAYERS} | {
    "train": TORCH | {"torch"},
}
THIRD_PARTY_CC = {room: set() if room in WITHOUT_TORCH else TORCH | {"torch"} for room in LAYERS} | {
    "cluster": {"curl", "nlohmann"},
    "rpc": {"grpc", "grpcpp", "openssl"},
    "rpc/security.cc": set(),
    "rpc/shared_memory": set(),
    "group": TORCH | {"nlohmann"},
    "group/rendezvous": {"nlohmann"},
    "strategy": TORCH | {"torch", "nlohmann"},
    "program": TORCH | {"nlohmann"},
}

# They cost 7 and 17 seconds in every file that includes them.
HEAVY = {"torch/torch.h", "ATen/ATen.h"}

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)
SYSTEM = {"sys", "linux", "net", "netinet", "arpa"}

# Conditions may ask about the machine, the compiler, the system and versions of libraries. What a
# build contains is not theirs to ask: CMake chooses files.
CONDITION = re.compile(r"^\s*#\s*(?:if|ifdef|ifndef|elif)\b(.*)$", re.MULTILINE)
ASKED = re.compile(r"defined|__(?!has_include)\w+|thread_sanitizer|POSIX_\w+|(LIBCURL|TORCH)_VERSION_\w+")


def check_library_file(path: Path, text: str) -> list[str]:
    parts = path.relative_to(ROOT / "tutti").parts
    folder = parts[0] if len(parts) > 1 else None  # None: tutti.h itself
    errors = []
    if folder is not None and folder not in LAYERS:
        return [f"the folder tutti/{folder} is not in the table of tools/check_layers.py"]
    name_in_library = "/".join(parts)
    errors += check_conditions(text)
    if "getenv" in text and path != ROOT / "tutti/base/env.cc":
        errors.append("only tutti/base/env.cc may call getenv")
    for quote, name in INCLUDE.findall(text):
        if name in HEAVY:
            errors.append(f"{name} is too heavy for the library; include the ops you use")
        elif name.startswith("tutti/"):
            errors += check_own_include(folder, quote, name) + check_part(name_in_library, name)
        elif quote == '"':
            errors.append(f'"{name}" must be written from the root: "tutti/<folder>/<file>.h"')
        elif "/" in name and folder is not None:
            first = name.split("/")[0]
            table = THIRD_PARTY_H if name_in_library in INSTALLED else THIRD_PARTY_CC
            places = ["/".join(parts[:count]) for count in range(len(parts), 0, -1)]
            place = next(each for each in places if each in table)
            if first not in table[place] | SYSTEM:
                errors.append(f"<{name}> may not be included in a {path.suffix} of {place}")
    return errors


def check_conditions(text: str) -> list[str]:
    """Checks that no file asks what the build contains. A file may ask what it defines itself."""
    defined = set(re.findall(r"^\s*#\s*define\s+(\w+)", text, re.MULTILINE))
    errors = []
    for condition in CONDITION.findall(text):
        words = set(re.findall(r"\b[A-Za-z_]\w*", condition.split("//")[0]))
        errors += [
            f"#if may not ask for {word}; let CMake choose between two files"
            for word in sorted(words - defined)
            if not ASKED.fullmatch(word)
        ]
    return errors


def is_in(name: str, place: str) -> bool:
    return name == place or place.endswith("/") and name.startswith(place)


def check_part(file: str, include: str) -> list[str]:
    """Checks an include of tutti/<include> in tutti/<file> against the table of parts."""
    name = include.removeprefix("tutti/")
    around = [part for part in PARTS if is_in(name, part.path)]
    if not around or any(is_in(file, part.path) for part in around):
        return []
    part = max(around, key=lambda each: len(each.path))
    if not any(is_in(file, place) for place in part.only_from):
        return [f"{include} may be included only in {', '.join(sorted(part.only_from))}"]
    if part.entrances and name.removeprefix(part.path) not in part.entrances:
        return [f"{include} is private to {part.path}; include {', '.join(sorted(part.entrances))} of it"]
    return []


def check_parts_exist() -> list[str]:
    """Checks that the tables name files and folders that are there."""
    named = [part.path for part in PARTS]
    named += [place for part in PARTS for place in part.only_from]
    named += [part.path + header for part in PARTS for header in part.entrances]
    named += THIRD_PARTY_CC
    return [f"tools/check_layers.py: tutti/{name} is not there" for name in named if not (ROOT / "tutti" / name).exists()]


def installed_headers() -> set[str]:
    """Paths from tutti/ on, as the folders' CMakeLists.txt list them under HEADERS."""
    headers = set()
    for path in sorted((ROOT / "tutti").glob("*/CMakeLists.txt")):
        text = re.sub(r"#.*", "", path.read_text(encoding="utf-8"))
        for section in re.findall(r"\bHEADERS\s+((?:[\w./]+\.h\s*)+)", text):
            headers |= {f"{path.parent.name}/{name}" for name in section.split()}
    return headers


INSTALLED = installed_headers()


# Headers that users may include besides tutti.h: those for writing a backend or calling other
# processes.
EXTENSION_POINTS = [
    "compat/contrib.h",
    "compat/tf_v1.h",
    "compat/v1/step.h",
    "group/connect.h",
    "group/text_gather.h",
    "rpc/channel.h",
    "rpc/listener.h",
    "testing/in_process_cluster.h",
]


def check_installed() -> list[str]:
    """Checks that exactly the headers that tutti.h and the extension points reach are installed."""
    reached: set[str] = set()
    waiting = ["tutti/tutti.h"] + [f"tutti/{name}" for name in EXTENSION_POINTS]
    while waiting:
        name = waiting.pop()
        path = ROOT / name
        if name in reached or not path.exists():
            continue
        reached.add(name)
        text = path.read_text(encoding="utf-8")
        waiting += [other for _, other in INCLUDE.findall(text) if other.startswith("tutti/")]
    listed = {f"tutti/{name}" for name in INSTALLED} | {"tutti/tutti.h"}
    return [f"{name}: no public header needs it; list it under SOURCES" for name in sorted(listed - reached)] + [
        f"{name}: a public header needs it; list it under HEADERS" for name in sorted(reached - listed)
    ]


def check_own_include(folder: str | None, quote: str, name: str) -> list[str]:
    parts = name.split("/")
    target = parts[1] if len(parts) > 2 else None
    errors = []
    if quote == "<":
        errors.append(f"<{name}> must be in quotes")
    if folder is not None and target is None and name != "tutti/version.h":
        errors.append(f"{name} may not be included inside the library")
    if folder is not None and target not in LAYERS[folder] | {folder, None}:
        errors.append(f"{folder}/ may not include {target}/ ({name})")
    if "internal" in parts and target != folder:
        errors.append(f"{name} is private to {target}/")
    return errors


# What programs include of the library although it is not installed: to time or to document a part
# of it by itself.
NOT_INSTALLED = {
    "benchmarks/data_bench.cc": {"base/crc32c.h"},
    "benchmarks/support/group_sum.h": {"collectives/worker_all_reduce.h"},
    "tests/api_examples/api_examples_test.cc": {"strategy/default_strategy.h"},
    "tests/interop/cluster_program.cc": {"base/env.h"},
    "tests/docs/formats_test.cc": {
        "group/grpc/remote_peer.h",
        "group/rendezvous/meeting_place.h",
        "group/shared_memory/segment.h",
        "rpc/internal/handshake.h",
    },
}


def check_program(path: Path, text: str) -> list[str]:
    """Checks that programs include only headers that are installed, as users do."""
    included = {name.removeprefix("tutti/") for _, name in INCLUDE.findall(text) if name.startswith("tutti/")}
    hidden = included - INSTALLED - {"tutti.h", "version.h"}  # the first is over the folders, the second generated
    listed = NOT_INSTALLED.get(path.relative_to(ROOT).as_posix(), set())
    return [f"tutti/{name} is not installed, so users cannot include it" for name in sorted(hidden - listed)] + [
        f"tutti/{name} need not be listed in tools/check_layers.py" for name in sorted(listed - hidden)
    ]


def check_levels() -> list[str]:
    """Checks the table itself: a folder may only name folders of lower levels."""
    errors = []
    below: set[str] = set()
    for level in LEVELS:
        for room, sees in level.items():
            for other in sorted(sees - below):
                errors.append(f"tools/check_layers.py: {room} may not see {other}: it is not on a lower level")
        below |= level.keys()
    return errors


def main() -> int:
    count = 0
    failures = check_levels() + check_parts_exist() + check_installed()
    for top, check in (
        ("tutti", check_library_file),
        ("cli", check_program),
        ("examples", check_program),
        ("benchmarks", check_program),
        ("tests/api_examples", check_program),
        ("tests/compile_fail", check_program),
        ("tests/docs", check_program),
        ("tests/install", check_program),
        ("tests/interop", check_program),
    ):
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in (".h", ".cc", ".inc"):
                count += 1
                for error in check(path, path.read_text(encoding="utf-8")):
                    failures.append(f"{path.relative_to(ROOT)}: {error}")
    print("\n".join(failures) if failures else f"layers: {count} files keep the rules.")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
