// SPDX-License-Identifier: Apache-2.0
//
// A peer in Python: a script of this folder that runs next to the program, does the work of each
// line "<case> <number>" it reads, and answers with the seconds and the CPU seconds it took. The
// number is that of the rows of an epoch, or of the steps to make.

#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "benchmarks/support/harness.h"

namespace bench {

/// It must outlive the variants it adds. For one thread only.
class PythonPeer {
 public:
  /// Starts the script in a Python whose PyTorch has the version of this LibTorch. If there is
  /// none, prints so and has no variants. A smoke run starts nothing.
  PythonPeer(const std::string& script, bool smoke);
  ~PythonPeer();
  PythonPeer(const PythonPeer&) = delete;
  PythonPeer& operator=(const PythonPeer&) = delete;

  bool is_there() const { return process_ != nullptr; }

  /// Adds the variant "python" if there is one; an iteration is an epoch of `rows` rows.
  void add(const std::string& case_name, int64_t rows, std::vector<Variant>& variants) const;

  /// Adds the variant under another name; an iteration is a step, and one request covers all
  /// those of a measurement.
  void add_steps(const std::string& case_name, const std::string& variant_name, double target,
                 std::vector<Variant>& variants) const;

  /// Returns the answer to any other line. Stops the program if there is none.
  std::string ask(const std::string& line) const;

 private:
  struct Process;

  double seconds_of(const std::string& case_name, int64_t number) const;

  std::shared_ptr<Process> process_;
};

}  // namespace bench
