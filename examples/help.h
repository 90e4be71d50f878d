// SPDX-License-Identifier: Apache-2.0
//
// --help for the examples that take the flags of make_strategy().

#pragma once

#include <cstdio>
#include <cstring>

#include <tutti/program/make_strategy.h>

/// Returns whether the program was called with --help; if so, prints the help text.
inline bool printed_help(int argc, char** argv, const char* what) {
  for (int i = 1; i < argc; ++i) {
    if (std::strcmp(argv[i], "--help") != 0) continue;
    std::printf("%s\n\n%s", what, tutti::strategy_flags_help());
    return true;
  }
  return false;
}
