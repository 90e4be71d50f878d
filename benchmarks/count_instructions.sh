#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# count_instructions.sh [--perf] [bench_training]: instructions of a training step on one replica
# against those of the plain LibTorch loop. Each is counted for two numbers of steps, and the
# difference divided, so that the program's startup does not count.
#
# Counts with callgrind, which takes about 2 minutes for each of 8 runs; --perf uses the
# processor's counters.
set -euo pipefail
shopt -s inherit_errexit  # a failure inside $(...) ends the script
cd "$(dirname "$0")/.."

fail() {
  echo "count_instructions: $*" >&2
  exit 1
}

tool=callgrind
if [[ ${1:-} == --perf ]]; then
  tool=perf
  shift
fi
program=${1:-build/release/bin/bench_training}
[[ -x $program ]] || fail "there is no $program; build it: make bench TOPIC=training"
if [[ $tool == callgrind ]]; then
  command -v valgrind >/dev/null ||
    fail "valgrind is not installed (Debian: apt-get install valgrind); --perf needs only perf."
else
  command -v perf >/dev/null || fail "perf is not installed (Debian: apt-get install linux-perf)."
fi
export OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1

# count plain|tutti <model> <steps>
count() {
  local -a command=("$program" --instructions "$1" --model "$2" --steps "$3")
  local text
  if [[ $tool == callgrind ]]; then
    text=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null "${command[@]}" 2>&1) ||
      fail "${command[*]}: $text"
    sed -n 's/.*Collected : \([0-9]*\).*/\1/p' <<<"$text"
  else
    text=$(perf stat -x, -e instructions:u "${command[@]}" 2>&1 >/dev/null) ||
      fail "${command[*]}: $text"
    [[ $text != *"not supported"* ]] ||
      fail "perf cannot count instructions here (a virtual machine without counters?); leave out --perf."
    sed -n 's/^\([0-9]*\),.*instructions.*/\1/p' <<<"$text"
  fi
}

# per_step plain|tutti <model>: steps 6 to 25
per_step() {
  local few many
  few=$(count "$1" "$2" 5)
  many=$(count "$1" "$2" 25)
  [[ -n $few && -n $many ]] || fail "$tool gave no number."
  echo $(((many - few) / 20))
}

for model in mlp many; do
  plain=$(per_step plain "$model")
  tutti=$(per_step tutti "$model")
  awk -v model="$model" -v plain="$plain" -v tutti="$tutti" -v tool="$tool" 'BEGIN {
    printf "instructions training/%s %+.2f %%  (ours %d, libtorch_1_thread %d per step, %s, " \
           "target at most +2 %%)\n", model, 100 * (tutti / plain - 1), tutti, plain, tool }'
done
