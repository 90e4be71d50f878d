#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# format.sh [--check]: formats all C++ sources in place, or only lists those not formatted.
set -euo pipefail
cd "$(dirname "$0")/.."

formatter=$(command -v clang-format-14 || command -v clang-format) || {
  echo "format: clang-format 14 is not installed (make install-lint-deps)." >&2
  exit 1
}
if ! "$formatter" --version | grep -q 'version 14\.'; then
  echo "format: clang-format 14 is needed; $formatter is $("$formatter" --version)." >&2
  exit 1
fi

mapfile -t files < <(find tutti cli tests examples benchmarks -regex '.*\.\(h\|cc\|inc\)' | sort)
if [[ ${1:-} != --check ]]; then
  "$formatter" -i "${files[@]}"
  exit
fi
status=0
for file in "${files[@]}"; do
  "$formatter" "$file" | cmp -s "$file" - || { echo "format: $file is not formatted" && status=1; }
done
if [[ $status -eq 0 ]]; then
  echo "format: ${#files[@]} files are formatted."
else
  echo "format: run \`make format\`."
fi
exit $status
