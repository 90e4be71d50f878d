// SPDX-License-Identifier: Apache-2.0
//
// Parameters whose gradients are sparse: tables of which a step uses few rows. Only rows that a
// replica has used are summed, updated and copied. They lie outside of the flat buffers.

#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/train/replicated_modules.h"
#include "tutti/update_rules/update_rule.h"

namespace tutti::internal {

/// Indices of the weights of embeddings that were made with sparse(true).
std::vector<size_t> find_sparse_parameters(const ReplicatedModules& modules);

/// Whether the rule leaves rows without a gradient unchanged.
bool keeps_other_rows(const UpdateRule& rule);

/// A step calls collect() on each replica, sum() by all in a meeting, then update() by all in the
/// next, and publish() on each. Replica r does the r-th part of every table's rows. Calls that take
/// a replica may overlap the same call of other replicas; every other call that changes it must be
/// alone.
class SparseParameters {
 public:
  struct Entry {
    size_t parameter;
    size_t group;
  };

  SparseParameters(const ReplicatedModules& modules, const std::vector<Entry>& entries);

  bool empty() const { return tables_.empty(); }
  void clear(size_t replica);
  void collect(size_t replica);

  /// Call it after collect() on all replicas, before sum(), by one thread, if there are several
  /// workers.
  void gather(StrategyExtended& strategy);
  void sum(size_t replica);

  // Call these after sum(), by one thread.
  double square_sum() const;
  bool is_finite() const { return non_finite().empty(); }
  std::vector<std::string> non_finite() const;
  void scale(double factor);
  void prepare(std::span<const UpdateRule> rules);

  /// Counts an update for the tables that any replica has a gradient of. Call it after sum(), by
  /// one thread, if an update follows.
  void count_update();
  void update(size_t replica, std::span<const UpdateRule> rules, double factor);

  /// Replaces update() when something else has updated the first replica's tables.
  void copy_tables(size_t replica);

  /// Takes over the state of the same tables, possibly in another dtype. Their sums are not taken
  /// over: they must be collected and summed again.
  void take_over(const SparseParameters& old);

  /// Makes replicas that share parameters share the tables again, with the values of the first.
  void alias();

  void publish(size_t replica);

  /// Copies of the states of a parameter; none before its first update.
  std::vector<at::Tensor> states_of(size_t parameter) const;

  size_t parameter_bytes() const;
  size_t state_bytes() const;

 private:
  struct Gradient {
    at::Tensor rows;     // int64, ascending
    at::Tensor values;   // a row of values for each
    bool given = false;  // by backward, possibly without rows
  };
  struct Part {  // what one worker has summed
    std::vector<int64_t> rows;
    at::Tensor values;
  };
  struct Table {
    Entry entry;
    int64_t num_rows = 0;
    int64_t row_size = 0;
    std::vector<Gradient> gradients;  // of each local replica
    std::vector<Gradient> of_all;     // of each replica of all workers, if there are several
    std::vector<Part> parts;          // of each worker
    std::vector<at::Tensor> state;
    int64_t updates = 0;
  };

  static bool has_gradient(const Table& table);  // on any replica
  void sum_part(Table& table, size_t worker) const;
  template <class T>
  void update_rows(const Table& table, const Part& part, const UpdateRule& rule, double factor);
  void copy_row(const Table& table, int64_t row) const;
  at::Tensor& parameter(const Table& table, size_t replica) const {
    return modules_.parameter(replica, table.entry.parameter);
  }

  const ReplicatedModules& modules_;
  bool shared_;
  std::vector<Table> tables_;
};

}  // namespace tutti::internal
