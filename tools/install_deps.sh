#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# install_deps.sh [--lint|--fuzz|--bench]: installs the Debian packages that are missing; --lint adds
# those of the formatter and the analysis, --fuzz those of the fuzzer, --bench those that benchmarks
# compare with. Needs neither network nor root when nothing is missing.
#
# LibTorch is left to you if TORCH, or a folder of CMAKE_PREFIX_PATH, is an unpacked LibTorch.
set -euo pipefail

packages=(g++ cmake ninja-build ccache make pkgconf python3 nlohmann-json3-dev libgtest-dev
  librapidcheck-dev zlib1g-dev libgrpc++-dev libssl-dev python3-numpy python3-crc32c python3-protobuf
  iproute2)
[[ ${1:-} == --lint ]] && packages+=(clang clang-format clang-tidy git)
[[ ${1:-} == --fuzz ]] && packages+=(clang libclang-rt-dev)
[[ ${1:-} == --bench ]] && packages+=(python3-torch libgloo-dev libopenmpi-dev openmpi-bin libmpich-dev mpich)

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

if [[ -n ${TORCH:-} && ! -f $TORCH/share/cmake/Torch/TorchConfig.cmake ]]; then
  fail "TORCH=$TORCH is not an unpacked LibTorch (no share/cmake/Torch/TorchConfig.cmake in it)."
fi
# Without OpenBLAS Debian's LibTorch multiplies matrices by the reference BLAS, many times slower.
has_own_torch || packages+=(libtorch-dev libopenblas0-pthread)

command -v dpkg-query >/dev/null && command -v apt-get >/dev/null ||
  fail "this machine has no apt-get; install yourself: ${packages[*]}."

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query --show --showformat='${db:Status-Status}' "$package" 2>/dev/null || true)
  [[ $status == installed ]] || missing+=("$package")
done
if [[ ${#missing[@]} -eq 0 ]]; then
  echo "install_deps: all packages are there."
  exit 0
fi

as_root=()
if [[ $(id -u) -ne 0 ]]; then
  command -v sudo >/dev/null ||
    fail "installing needs root, and there is no sudo; run as root: apt-get install ${missing[*]}"
  as_root=(sudo)
fi

echo "install_deps: installing ${missing[*]}"
[[ " ${missing[*]} " == *" libtorch-dev "* ]] &&
  echo "install_deps: libtorch-dev with what it needs is a download of about 250 MB, 1 GB on disk."

apt() { "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -qq "$@"; }

log=$(mktemp)
trap 'rm -f "$log"' EXIT
apt update >"$log" 2>&1 || true # A stale package list may still do; the next line decides.
if ! apt install --yes --no-install-recommends "${missing[@]}" >>"$log" 2>&1; then
  tail -n 15 "$log" >&2
  fail "apt-get could not install ${missing[*]} (no network, or a package this release lacks)."
fi
echo "install_deps: done."
