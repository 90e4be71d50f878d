// SPDX-License-Identifier: Apache-2.0
//
// How the benchmarks measure. Variants of one case are timed in alternating
// rounds (ours, peer, peer, ours); the result is the median of the ratios of the
// rounds. Rounds in which other programs used more than 0.35 cores are dropped.

#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace bench {

/// One way to do the work.
struct Variant {
  std::string name;
  /// Does the work `iterations` times and returns the seconds it took.
  std::function<double(int64_t iterations)> run;
  /// Whether this is an upper limit rather than a competitor.
  bool is_limit = false;
  /// The ratio that ours should reach against it; 0 if none was set.
  double target = 0;
  /// The same for our second and further variants.
  std::vector<double> more_targets = {};
};

/// Seconds of one iteration of each variant.
struct Comparison {
  std::vector<std::vector<double>> times;  // [variant][quiet round]
  std::vector<double> best;                // [variant], of all rounds
  bool noisy = false;                      // too few quiet rounds

  /// The median over the rounds of how much longer one variant takes than another; if the case is
  /// noisy, the difference of their best times.
  double difference(size_t longer, size_t shorter) const;

  /// The median of the ratios of their times, and of the times of one; if the case is noisy, of
  /// their best times.
  double ratio(size_t longer, size_t shorter) const;
  double typical(size_t variant) const;
};

class Harness {
 public:
  /// Reads --smoke (a short run that only proves that the program works),
  /// --filter=TEXT (cases whose name contains it) and --help.
  Harness(std::string topic, int argc, char** argv);

  bool smoke() const { return smoke_; }

  /// Whether the case was asked for.
  bool wants(const std::string& case_name) const;

  /// Times variants[0], ours, against each of the others and prints for each
  ///   ratio <topic>/<case>/<peer> <value>  (ours ..., <peer> ..., limit ..., quartiles, ...)
  /// where a value above 1 means that ours is faster. Against a limit the value is
  /// the fraction of it that ours reaches.
  /// The first `ours` variants are ours; if there are several, each is compared and named in the
  /// case.
  Comparison compare(const std::string& case_name, const std::vector<Variant>& variants,
                     size_t ours = 1);

  /// Stops the program with a message when a result is wrong.
  static void check(bool ok, const std::string& what);

 private:
  void report(const std::string& case_name, const std::vector<Variant>& variants, size_t o,
              size_t v, const Comparison& result, const std::vector<double>& loads,
              int dropped) const;

  std::string topic_;
  std::string filter_;
  bool smoke_ = false;
};

/// Counts CPU time of a process that works for this one: it is not foreign load.
void count_as_own(double cpu_seconds);

/// Pins the calling thread to the k-th core this process may use.
void pin_to_core(int k);

/// "4 B", "64 KB", "100 MB"
std::string size_name(int64_t bytes);

double now_seconds();

/// The page faults of this process that did not need the disk.
int64_t minor_faults();

}  // namespace bench
