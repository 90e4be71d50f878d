// SPDX-License-Identifier: Apache-2.0
//
// A peer in Python: a script of this folder that runs beside the program, does one epoch for
// each line "<case> <rows>" it reads and answers with the seconds and the CPU seconds it took.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/support/harness.h"

namespace bench {

class PythonPeer {
 public:
  /// Starts the script. Says so, and has no variants, if python3 has no torch. A smoke run
  /// starts nothing.
  PythonPeer(const std::string& script, bool smoke);
  ~PythonPeer();
  PythonPeer(const PythonPeer&) = delete;
  PythonPeer& operator=(const PythonPeer&) = delete;

  /// Adds the variant "python" if there is one.
  void add(const std::string& case_name, int64_t rows, std::vector<Variant>& variants) const;

 private:
  struct Process;
  std::shared_ptr<Process> process_;
};

}  // namespace bench
