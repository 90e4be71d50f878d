#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# check_install.sh <build tree> [installed]: builds and installs by the commands of README.md, but
# with the LibTorch of the tree and into a scratch folder. Then builds and runs tests/install against
# it in each way a user may: find_package, pkg-config, add_subdirectory. An installed Tutti must find
# its LibTorch by itself. With `installed`, installs the tree as it is, and leaves out what builds the
# library once more.
set -euo pipefail
cd "$(dirname "$0")/.."

tree=$1
work=$(realpath -m "$tree")-consumer
prefix=$work/prefix
cached() { sed -n "s/^$2:[A-Z]*=//p" "$1/CMakeCache.txt"; }
# The consumer's speed does not matter here, so it is compiled quickly.
options=(-G Ninja -Wno-dev -DCMAKE_BUILD_TYPE=RelWithDebInfo
  "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O0 -DNDEBUG" "-DCMAKE_PREFIX_PATH=$prefix")
if command -v ccache >/dev/null; then
  options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache)
  export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
fi

quietly() {
  local log
  log=$(mktemp "$work/log.XXXXXX")
  "$@" >"$log" 2>&1 || {
    cat "$log"
    exit 1
  }
}

expect_ok() {
  local output
  output=$("$2")
  [[ $output == *"consumer ok"* ]] || { echo "consumer: $1 printed: $output" && exit 1; }
  echo "consumer: $1 works."
}

expect_same_torch() {
  local found
  found=$(cached "$2" Torch_DIR)
  [[ $found == "$(cached "$tree" Torch_DIR)" ]] ||
    { echo "consumer: $1 found the LibTorch in $found, not that in $(cached "$tree" Torch_DIR)." && exit 1; }
}

rm -rf "$work"
mkdir -p "$work"

install_as_in_readme() {
  # The tree is at the same depth as the other, so that ccache recognises its files; only the
  # name has a suffix.
  local fresh commands words
  fresh=$(realpath -m "$tree")-readme
  rm -rf "$fresh"
  commands=$(awk '/^With an installed tree:/ {found = 1} found && /^cmake / {print} found && /^```$/ {exit}' README.md)
  [[ $(wc -l <<<"$commands") -eq 3 ]] || { echo "consumer: README.md does not have three install commands." && exit 1; }
  commands=${commands/--preset release/--preset release -B build\/release -DTUTTI_TORCH=$(cached "$tree" TUTTI_TORCH)}
  commands=${commands//build\/release/$fresh}
  while read -ra words; do quietly "${words[@]}"; done <<<"${commands//\/opt\/tutti/$prefix}"
  echo "consumer: the commands of README.md install."
}

if [[ ${2-} == installed ]]; then
  quietly cmake --install "$tree" --prefix "$prefix"
else
  install_as_in_readme
fi

with_find_package() {
  quietly cmake -S tests/install -B "$work/find_package" "${options[@]}"
  quietly cmake --build "$work/find_package" -j 1
  expect_same_torch find_package "$work/find_package"
  expect_ok find_package "$work/find_package/consumer"
}

with_pkg_config() {
  local pkgconfig flags
  pkgconfig=$(dirname "$(find "$prefix" -name tutti.pc)")
  read -ra flags <<<"$(PKG_CONFIG_PATH=$pkgconfig pkg-config --cflags --libs tutti)"
  quietly "${CXX:-g++}" -O0 tests/install/main.cc -o "$work/with_pkg_config" "${flags[@]}"
  expect_ok pkg-config "$work/with_pkg_config"
}

expect_no_grpc() {
  local linked
  linked=$(readelf -d "$work/with_pkg_config" | grep -E 'NEEDED.*(grpc|libssl|libcrypto)' || true)
  [[ -z $linked ]] || { echo "consumer: a build without gRPC links $linked." && exit 1; }
}

# Each of the two compiles one file, so they run in parallel if there are cores for both.
with_find_package &
[[ $(tools/jobs.sh) -gt 1 ]] || wait $!
with_pkg_config
wait $!
[[ $(cached "$tree" TUTTI_WITH_GRPC) != OFF ]] || expect_no_grpc

[[ ${2-} == installed ]] && exit
quietly cmake -S tests/install -B "$work/add_subdirectory" "${options[@]}" \
  -DTUTTI_SOURCE_DIR="$PWD" -DTUTTI_UNITY=ALL -DTUTTI_TORCH="$(cached "$tree" TUTTI_TORCH)"
quietly cmake --build "$work/add_subdirectory" -j "$(tools/jobs.sh)" --target consumer
expect_same_torch add_subdirectory "$work/add_subdirectory"
expect_ok add_subdirectory "$work/add_subdirectory/consumer"
