// SPDX-License-Identifier: Apache-2.0
//
// A test program can be started again as another program: its first argument then names which one.
// It serves tests of several processes, which must not be forked from one that has threads.

#pragma once

#include <string>

namespace tutti::test {

/// Replaces main() when the first argument is `argument`. Declare it as a static object of a test.
class Program {
 public:
  using Main = int (*)();

  Program(std::string argument, Main main);

  /// Returns null when no program has this argument.
  static const Program* find(const std::string& argument);
  int run() const { return main_(); }

 private:
  const std::string argument_;
  const Main main_;
  const Program* const next_;
};

}  // namespace tutti::test
