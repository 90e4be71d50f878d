#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# test_under_load.sh <build tree> [<times all>] [<times many>]: runs all tests of a built tree, and
# those of many processes and failures more often, while two busy loops per core run beside them. A
# test that fails here depends on timing: fix it, do not raise its limit.
set -euo pipefail
cd "$(dirname "$0")/.."

tree=$1
all=${2:-3}
many=${3:-20}

loops=()
trap 'kill "${loops[@]}" 2>/dev/null || true' EXIT
for ((i = 0; i < 2 * $(nproc); ++i)); do
  while :; do :; done &
  loops+=($!)
done

run() {
  local times=$1
  shift
  ctest --test-dir "$tree" -j "$(tools/jobs.sh)" --output-on-failure --no-tests=error -LE slow --repeat "until-fail:$times" "$@"
}
echo "== All tests, $all times"
run "$all"
echo "== Tests of many processes and of failures, $many times"
run "$many" -L multiprocess
echo "== Failures of replicas, $many times"
"$tree/bin/strategy_tests" --gtest_filter='*NeverHangs*:*ReplicaErrors*:*ReplicaRunner*' \
  --gtest_repeat="$many" --gtest_brief=1
