#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""get_libtorch.py [--cached|--pytorch]: fetches LibTorch once into a cache and prints its folder.

LibTorch is the CPU part of the torch wheel of Python's package index, in the version and with the
checksums of cmake/libtorch/requirements.txt. Any pip can fetch it; Python itself does not need to
be the one that the wheel was made for. The cache is $TUTTI_CACHE, else $XDG_CACHE_HOME/tutti, else
~/.cache/tutti.

--cached only prints the folder, and fails if it is not there.

--pytorch makes a virtual environment there with Python's PyTorch of the same version, which the
benchmarks compare with, and prints its Python: 6 GB, since PyTorch cannot be imported without its
CUDA packages.

Exit code 3: the package index could not be reached, now or within the last hours, or does not have
the files, or there is no pip.
"""

import os
import pathlib
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import zipfile

PACKAGE = pathlib.Path(__file__).resolve().parent.parent / "cmake" / "libtorch"
REQUIREMENTS = PACKAGE / "requirements.txt"
VERSION = re.search(r"^torch==([0-9.]+)", REQUIREMENTS.read_text(), re.MULTILINE).group(1)
WHEEL_TAGS = ["--python-version=3.11", "--implementation=cp", "--abi=cp311"] + [
    f"--platform=manylinux{tag}_x86_64" for tag in ("_2_28", "_2_25", "_2_17", "2014")]
LIBRARIES = {"libtorch_cpu.so", "libc10.so", "libgomp.so.1", "libgfortran.so.5",
             "libcudart.so.13", "libcupti.so.13"}
# LibTorch's own headers do not need these, and they would hide a program's own versions.
FOREIGN_HEADERS = ("google/", "pybind11/")
DOWNLOAD_MB = 555
PATIENCE_HOURS = 4
UNPACKED_MB = 600


def fail(text, code=1):
    print(f"get_libtorch: {text}", file=sys.stderr)
    sys.exit(code)


def say(text):
    print(f"get_libtorch: {text}", file=sys.stderr, flush=True)


def cache_folder():
    if os.environ.get("TUTTI_CACHE"):
        return pathlib.Path(os.environ["TUTTI_CACHE"]).absolute()
    if os.environ.get("XDG_CACHE_HOME"):
        return pathlib.Path(os.environ["XDG_CACHE_HOME"]).absolute() / "tutti"
    return pathlib.Path.home() / ".cache" / "tutti"


def find_pip():
    """Returns the first Python with pip: the first in the PATH may not see Debian's packages."""
    for python in (sys.executable, "/usr/bin/python3"):
        if python and subprocess.run([python, "-m", "pip", "--version"], capture_output=True,
                                     check=False).returncode == 0:
            return [python, "-m", "pip"]
    return fail("Python's pip is missing (Debian: apt-get install python3-pip).", code=3)


def size_of(folder):
    total = 0
    for place, _, names in os.walk(folder):  # leaves out folders that vanish
        for name in names:
            try:
                total += os.stat(os.path.join(place, name)).st_size
            except FileNotFoundError:
                pass  # pip has moved it in the meantime
    return total


class Progress:
    """Reports progress: on one line of a terminal, elsewhere every ten seconds."""

    def __init__(self, folder):
        self._folder = folder
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *unused):
        self._done.set()
        self._thread.join()
        if sys.stderr.isatty():
            print(file=sys.stderr)

    def _run(self):
        terminal = sys.stderr.isatty()
        start = time.monotonic()
        while not self._done.wait(0.5 if terminal else 10):
            megabytes = size_of(self._folder) / 1e6
            text = (f"get_libtorch: {megabytes:.0f} of {DOWNLOAD_MB} MB, "
                    f"{megabytes / (time.monotonic() - start):.1f} MB/s")
            print(("\r" + text) if terminal else text, end="" if terminal else "\n",
                  file=sys.stderr, flush=True)


# Without this, a machine that cannot reach the index would wait for it in every build.
def remember_failure(cache):
    (cache / "index-unreachable").touch()


def failed_lately(cache):
    try:
        age = time.time() - (cache / "index-unreachable").stat().st_mtime
    except FileNotFoundError:
        return False
    return 0 <= age < PATIENCE_HOURS * 3600


def download(work):
    """Fetches the wheels into a folder, with checksums compared by pip, and returns their paths."""
    temporary = work / "pip"
    temporary.mkdir()
    command = find_pip() + [
        "download", "--quiet", "--disable-pip-version-check", "--no-cache-dir", "--no-deps",
        "--only-binary=:all:", "--require-hashes", "--retries=2", "--timeout=20",
        f"--dest={work / 'wheels'}", f"--requirement={REQUIREMENTS}"] + WHEEL_TAGS
    with Progress(work):
        result = subprocess.run(command, env={**os.environ, "TMPDIR": str(temporary)}, text=True,
                                stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if result.returncode != 0:
        text = (result.stderr or result.stdout).strip()
        if "DO NOT MATCH THE HASHES" in text:
            fail(f"the package index returned files not in {REQUIREMENTS.name}:\n{text}")
        if "No space left" in text:
            fail(f"the disk of {work} is full; {DOWNLOAD_MB + UNPACKED_MB} MB are needed.")
        if re.search(r"Retrying|Connection|Temporary failure|timed out|No matching distribution", text):
            remember_failure(work.parent)
            fail(f"pip could not fetch torch {VERSION}: the package index cannot be reached, or does "
                 "not have it.", code=3)
        fail(f"pip could not fetch torch {VERSION}:\n{text}")
    return sorted((work / "wheels").glob("*.whl"))


def unpack(wheels, folder):
    """Extracts headers and libraries, and adds a package file for CMake: the wheel's own requires a
    CUDA toolkit."""
    (folder / "lib").mkdir(parents=True)
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                name = entry.filename
                inside = re.sub(r"^torch/include/", "", name)
                if inside != name and not name.endswith("/") and not inside.startswith(FOREIGN_HEADERS):
                    target = folder / "include" / inside
                elif name.rsplit("/", 1)[-1] in LIBRARIES:
                    target = folder / "lib" / name.rsplit("/", 1)[-1]
                else:
                    continue
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, open(target, "wb") as sink:
                    shutil.copyfileobj(source, sink, 1 << 20)
    missing = LIBRARIES - {path.name for path in (folder / "lib").iterdir()}
    if missing or not (folder / "include/torch/csrc/api/include/torch/torch.h").is_file():
        fail(f"the wheels lack {', '.join(sorted(missing)) or 'headers'}.")


def refresh_package_files(folder):
    """Compares package files, since the folder outlives the sources that made it."""
    for name in ("TorchConfig.cmake", "TorchConfigVersion.cmake"):
        text = (PACKAGE / name).read_text().replace("@VERSION@", VERSION)
        target = folder / "share/cmake/Torch" / name
        if not target.is_file() or target.read_text() != text:
            target.parent.mkdir(parents=True, exist_ok=True)
            scratch = target.with_suffix(f".{os.getpid()}")
            scratch.write_text(text)
            scratch.replace(target)


def fetch(folder):
    if (platform.system(), platform.machine()) != ("Linux", "x86_64"):
        fail(f"there is no pinned LibTorch for {platform.system()} on {platform.machine()}.", code=3)
    if failed_lately(folder.parent):
        fail(f"the package index could not be reached within the last {PATIENCE_HOURS} hours (remove "
             f"{folder.parent / 'index-unreachable'} to try again).", code=3)
    folder.parent.mkdir(parents=True, exist_ok=True)
    say(f"fetching LibTorch {VERSION} ({DOWNLOAD_MB} MB) for {folder}; this happens once.")
    work = pathlib.Path(tempfile.mkdtemp(prefix="fetch-", dir=folder.parent))
    try:
        wheels = download(work)
        say("unpacking headers and libraries.")
        unpack(wheels, work / "libtorch")
        refresh_package_files(work / "libtorch")
        try:
            (work / "libtorch").rename(folder)
        except OSError:
            if not folder.is_dir():  # else another process was faster
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def make_environment(folder):
    if not folder.is_dir():
        say(f"installing PyTorch {VERSION} into {folder}; this happens once and takes 6 GB.")
        scratch = folder.with_name(f"{folder.name}.{os.getpid()}")
        try:
            run = [sys.executable, "-m", "venv", str(scratch)]
            subprocess.run(run, check=True, stdout=sys.stderr)
            subprocess.run([str(scratch / "bin/python"), "-m", "pip", "install", "--no-cache-dir",
                            "--disable-pip-version-check", f"torch=={VERSION}", "numpy"],
                           check=True, stdout=sys.stderr)
            scratch.rename(folder)
        except subprocess.CalledProcessError as error:
            fail(f"PyTorch {VERSION} could not be installed: {error}.", code=3)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    print(folder / "bin/python")


def main():
    if sys.argv[1:] not in ([], ["--cached"], ["--pytorch"]):
        print(__doc__.strip())
        sys.exit(0 if sys.argv[1:] in (["--help"], ["-h"]) else 2)
    folder = cache_folder() / f"libtorch-{VERSION}"
    try:
        if sys.argv[1:] == ["--pytorch"]:
            make_environment(cache_folder() / f"pytorch-{VERSION}")
            return
        if not folder.is_dir():
            if sys.argv[1:] == ["--cached"]:
                sys.exit(1)
            fetch(folder)
        refresh_package_files(folder)
    except OSError as error:
        fail(f"{error.filename or folder}: {error.strerror}.")
    print(folder)


main()
