#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# install_deps.sh [--lint|--fuzz|--bench|--slurm]: installs the Debian packages that are missing, and fetches
# LibTorch; --lint adds the packages of the formatter and the analysis, --fuzz those of the fuzzer,
# --bench those that benchmarks compare with, --slurm those of a Slurm on this machine. Needs neither
# network nor root when nothing is missing.
#
# TORCH=debian takes Debian's LibTorch. No LibTorch is installed if TORCH, or a folder of
# CMAKE_PREFIX_PATH, is an unpacked one. Debian's is also taken when Python's package index, the
# source of the pinned one, cannot be reached now or could not be within the last hours.
set -euo pipefail
cd "$(dirname "$0")/.."

packages=(g++ cmake ninja-build ccache make pkgconf python3 nlohmann-json3-dev libgtest-dev
  librapidcheck-dev zlib1g-dev libgrpc++-dev libssl-dev libcurl4-openssl-dev python3-numpy python3-crc32c
  python3-protobuf iproute2)
[[ ${1:-} == --lint ]] && packages+=(clang clang-format clang-tidy git)
[[ ${1:-} == --fuzz ]] && packages+=(clang libclang-rt-dev)
[[ ${1:-} == --slurm ]] && packages+=(slurmctld slurmd slurm-client munge)
[[ ${1:-} == --bench ]] && packages+=(python3-venv libgloo-dev libopenmpi-dev openmpi-bin libmpich-dev mpich)

fail() {
  echo "install_deps: $*" >&2
  exit 1
}

has_own_torch() {
  local folder
  local -a folders
  IFS=':;' read -ra folders <<<"${TORCH:-}:${CMAKE_PREFIX_PATH:-}"
  for folder in "${folders[@]}"; do
    [[ -n $folder && -f $folder/share/cmake/Torch/TorchConfig.cmake ]] && return 0
  done
  return 1
}

# Without OpenBLAS, Debian's LibTorch multiplies matrices by the reference BLAS, many times slower.
debian_torch=(libtorch-dev libopenblas0-pthread)
fetch_torch=0
if [[ ${TORCH:-} == debian ]]; then
  packages+=("${debian_torch[@]}")
elif [[ -n ${TORCH:-} && ! -f $TORCH/share/cmake/Torch/TorchConfig.cmake ]]; then
  fail "TORCH=$TORCH is neither \"debian\" nor an unpacked LibTorch (no share/cmake/Torch/TorchConfig.cmake in it)."
elif ! has_own_torch && ! tools/get_libtorch.py --cached >/dev/null 2>&1; then
  fetch_torch=1
fi

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  fail "this machine has no apt-get; install yourself: ${packages[*]}."

apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@"; }

# install <packages>: those that are missing.
install() {
  local package status missing=() as_root=() log
  for package in "$@"; do
    status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
    [[ $status == installed ]] || missing+=("$package")
  done
  [[ ${#missing[@]} -gt 0 ]] || return 0
  if [[ $(id -u) -ne 0 ]]; then
    command -v sudo >/dev/null ||
      fail "installing needs root, and there is no sudo; run as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  echo "install_deps: installing ${missing[*]}"
  [[ " ${missing[*]} " == *" libtorch-dev "* ]] &&
    echo "install_deps: libtorch-dev and its dependencies are a download of about 250 MB, 1 GB on disk."
  log=$(mktemp)
  apt update >"$log" 2>&1 || true # a stale package list may be good enough; see the next line
  if ! apt install --yes --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
    tail -n 15 "$log" >&2
    rm -f "$log"
    fail "apt-get could not install ${missing[*]} (no network, or a package this release lacks)."
  fi
  rm -f "$log"
}

install "${packages[@]}"
if [[ $fetch_torch -eq 1 ]]; then
  # Runs in a subshell: without pip, Debian's LibTorch is still an option.
  python3 -m pip --version >/dev/null 2>&1 || (install python3-pip) || true
  code=0
  tools/get_libtorch.py >/dev/null || code=$?
  if [[ $code -eq 3 ]]; then
    echo "install_deps: Debian's LibTorch is used instead (as with TORCH=debian)."
    install "${debian_torch[@]}"
    TORCH=debian
  elif [[ $code -ne 0 ]]; then
    fail "LibTorch could not be fetched. TORCH=debian takes Debian's."
  fi
fi
if [[ ${1:-} == --bench && ${TORCH:-} == debian ]]; then
  install python3-torch
elif [[ ${1:-} == --bench && -z ${TORCH:-} ]]; then
  tools/get_libtorch.py --pytorch >/dev/null
fi
echo "install_deps: everything is installed."
