// SPDX-License-Identifier: Apache-2.0
//
// A peer in Python: a script of this folder that runs beside the program, does the work of each
// line "<case> <number>" it reads and answers with the seconds and the CPU seconds it took. The
// number is that of the rows of an epoch, or of the steps to make.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/support/harness.h"

namespace bench {

/// Outlives the variants it adds. For one thread.
class PythonPeer {
 public:
  /// Starts the script, in a Python whose PyTorch has the version of this LibTorch. Says so, and
  /// has no variants, if there is none. A smoke run starts nothing.
  PythonPeer(const std::string& script, bool smoke);
  ~PythonPeer();
  PythonPeer(const PythonPeer&) = delete;
  PythonPeer& operator=(const PythonPeer&) = delete;

  bool is_there() const { return process_ != nullptr; }

  /// Adds the variant "python" if there is one; an iteration is an epoch of so many rows.
  void add(const std::string& case_name, int64_t rows, std::vector<Variant>& variants) const;

  /// Adds the variant under another name; an iteration is a step, and all those of a measurement
  /// are asked for at once.
  void add_steps(const std::string& case_name, const std::string& variant_name, double target,
                 std::vector<Variant>& variants) const;

  /// The answer to another line. Stops the program if there is none.
  std::string ask(const std::string& line) const;

 private:
  struct Process;

  double seconds_of(const std::string& case_name, int64_t number) const;

  std::shared_ptr<Process> process_;
};

}  // namespace bench
