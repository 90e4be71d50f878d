#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Checks which folder includes which. docs/architecture.md explains the table below."""
import re
import sys
from pathlib import Path

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
    {"strategy": {"collectives", "group", "cluster", "rpc", "values", "data", "nest", "device", "base"}},
    {"train": {"strategy", "collectives", "group", "values", "data", "update_rules", "nest", "device", "base"}},
    {"program": {"strategy", "rpc", "base"}},
    {
        "compat": {"strategy", "collectives", "cluster", "values", "data", "nest", "device", "base"},
        "testing": {"strategy", "collectives", "group", "rpc", "values", "nest", "device", "base"},
    },
]
LAYERS = {room: sees for level in LEVELS for room, sees in level.items()}

# Third-party headers by their first path component, for each folder and kind of file.
TORCH = {"ATen", "c10"}
WITHOUT_TORCH = {"base", "cluster", "rpc", "files", "update_rules"}
THIRD_PARTY_H = {room: set() if room in WITHOUT_TORCH else TORCH for room in LAYERS} | {
    "train": TORCH | {"torch"},
}
THIRD_PARTY_CC = {room: set() if room in WITHOUT_TORCH else TORCH | {"torch"} for room in LAYERS} | {
    "cluster": {"curl", "nlohmann"},
    "rpc": {"grpc", "grpcpp", "nlohmann", "openssl"},
    "group": TORCH | {"nlohmann"},
    "strategy": TORCH | {"torch", "nlohmann"},
    "program": TORCH | {"nlohmann"},
}

# They cost 7 and 17 seconds in every file that includes them.
HEAVY = {"torch/torch.h", "ATen/ATen.h"}

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]', re.MULTILINE)
SYSTEM = {"sys", "linux", "net", "netinet", "arpa"}


def check_library_file(path: Path, text: str) -> list[str]:
    parts = path.relative_to(ROOT / "tutti").parts
    folder = parts[0] if len(parts) > 1 else None  # None: tutti.h itself
    errors = []
    if folder is not None and folder not in LAYERS:
        return [f"the folder tutti/{folder} is not in the table of tools/check_layers.py"]
    if "getenv" in text and path != ROOT / "tutti/base/env.cc":
        errors.append("only tutti/base/env.cc may call getenv")
    for quote, name in INCLUDE.findall(text):
        if name in HEAVY:
            errors.append(f"{name} is too heavy for the library; include the ops you use")
        elif name.startswith("tutti/"):
            errors += check_own_include(folder, quote, name)
        elif quote == '"':
            errors.append(f'"{name}" must be written from the root: "tutti/<folder>/<file>.h"')
        elif "/" in name and folder is not None:
            first = name.split("/")[0]
            table = THIRD_PARTY_H if "/".join(parts) in INSTALLED else THIRD_PARTY_CC
            if first not in table[folder] | SYSTEM:
                errors.append(f"<{name}> may not be included in a {path.suffix} of {folder}/")
    return errors


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
    "rpc/server.h",
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


def check_program(path: Path, text: str) -> list[str]:
    """Checks that commands, examples and benchmarks include only public headers, as users do."""
    return [
        f"{name} is private to the library"
        for _, name in INCLUDE.findall(text)
        if name.startswith("tutti/") and "/internal/" in name
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
    failures = check_levels() + check_installed()
    for top, check in (
        ("tutti", check_library_file),
        ("cli", check_program),
        ("examples", check_program),
        ("benchmarks", check_program),
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
