#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# check_planted_race.sh <program> <runs>: the program contains a data race on purpose. Passes only
# if the thread sanitizer reports it in every run.
set -uo pipefail

program=$1
runs=$2
for ((run = 1; run <= runs; ++run)); do
  output=$("$program" 2>&1)
  status=$?
  if [[ $status -eq 0 ]] || ! grep -q 'WARNING: ThreadSanitizer: data race' <<<"$output"; then
    echo "$output"
    echo "planted race: run $run of $runs was not reported (exit status $status)."
    exit 1
  fi
done
echo "planted race: reported in each of $runs runs."
