#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# tidy.sh [--all] [--seconds N] [--tree FOLDER]: clang-tidy, with Clang's thread-safety warnings, on the sources that
# changed since origin/main (on main itself: since the first commit), the latest change first. No
# file is started after N seconds; skipped files are listed. Needs `cmake --preset analyze`. Tests
# are left to the compilers' warnings and the sanitizers: GoogleTest imposes its own names.
set -euo pipefail
cd "$(dirname "$0")/.."

all=0
seconds=86400
tree=build/analyze
while [[ $# -gt 0 ]]; do
  case $1 in
    --all) all=1 ;;
    --seconds) seconds=$2 && shift ;;
    --tree) tree=$2 && shift ;;
    *) echo "tidy: unknown argument $1." >&2 && exit 2 ;;
  esac
  shift
done

database=$tree/compile_commands.json
[[ -f $database ]] || { echo "tidy: run \`cmake --preset analyze\` first." >&2 && exit 1; }
tidy=$(command -v clang-tidy-14 || command -v clang-tidy) ||
  { echo "tidy: clang-tidy is not installed (make install-lint-deps)." >&2 && exit 1; }

# Sources in the database, and those of them that changed or whose header did, latest first.
candidates() {
  local built base file
  built=$(sed -n "s|^ *\"file\": \"$PWD/\(.*\.cc\)\",\?\$|\1|p" "$database" | grep -v ^tests/ | sort -u)
  if [[ $all -eq 1 ]]; then
    echo "$built"
    return
  fi
  base=$(git merge-base HEAD origin/main 2>/dev/null || true)
  if [[ -z $base || $base == $(git rev-parse HEAD 2>/dev/null) ]]; then
    base=$(git hash-object -t tree /dev/null)
  fi
  { git diff --name-only --diff-filter=d "$base" && git ls-files --others --exclude-standard; } |
    sed -n 's/\.\(h\|cc\)$/.cc/p' | sort -u | comm -12 - <(echo "$built") |
    while read -r file; do
      echo "$(git log -1 --format=%ct -- "$file" 2>/dev/null | grep . || date +%s) $file"
    done | sort -rn | cut -d' ' -f2-
}

check_one() {
  if (($(date +%s) >= deadline)); then
    echo "tidy: no time left for $1"
  elif output=$("$tidy" -p "$tree" --quiet "$1" 2>/dev/null); then
    echo "tidy: $1 is clean"
  else
    echo "$output"
    echo "tidy: $1 has findings"
    return 1
  fi
}
export -f check_one
export tidy tree deadline=$(($(date +%s) + seconds))

if ! candidates | xargs -r -P "$(tools/jobs.sh)" -I{} bash -c 'check_one {}'; then
  echo "tidy: findings above." >&2
  exit 1
fi
