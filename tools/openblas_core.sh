#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# openblas_core.sh: prints the value of OPENBLAS_CORETYPE that fits this CPU, or nothing. Debian 12's
# OpenBLAS does not recognise CPUs that are newer than itself and mistakes them for much older ones.
set -euo pipefail

flags=" $(sed -n '/^flags/{s/.*: //p;q}' /proc/cpuinfo 2>/dev/null || true) "
has() {
  local flag
  for flag in "$@"; do [[ $flags == *" $flag "* ]] || return 1; done
}

if has avx512f avx512cd avx512bw avx512dq avx512vl; then
  echo SkylakeX
elif has avx2 fma; then
  echo Haswell
fi
