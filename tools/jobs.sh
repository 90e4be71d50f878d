#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Prints how many compilers may run in parallel: one per usable core, each with 1.5 GB of memory.
set -euo pipefail

jobs=$(nproc)
if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [[ $quota != max ]]; then
  cores=$(((quota + period - 1) / period))
  ((cores < jobs)) && jobs=$cores
fi

kilobytes=$(awk '/^MemAvailable:/ {print $2}' /proc/meminfo)
if read -r limit 2>/dev/null </sys/fs/cgroup/memory.max && [[ $limit != max ]]; then
  ((limit / 1024 < kilobytes)) && kilobytes=$((limit / 1024))
fi
by_memory=$((kilobytes / 1500000))
((by_memory < jobs)) && jobs=$by_memory
echo $((jobs > 0 ? jobs : 1))
