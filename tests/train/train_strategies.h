// SPDX-License-Identifier: Apache-2.0
//
// What tests of training functions share: strategies with 1 to 4 replicas, and batches whose rows
// are split unevenly.

#pragma once

#include <cstdint>
#include <ostream>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>
#include <gtest/gtest.h>

#include "tutti/strategy/central_storage_strategy.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/values/per_replica.h"

#include "tests/contract/strategy_contract.h"

namespace tutti::test {

struct TrainCase {
  bool central = false;
  int replicas = 1;

  Strategy make() const {
    if (central) return CentralStorageStrategy(cpus(replicas));
    return MirroredStrategy(cpus(replicas));
  }
};

inline void PrintTo(const TrainCase& each, std::ostream* out) {
  *out << (each.central ? "CentralStorage" : "Mirrored") << each.replicas;
}

inline const auto kTrainCases = testing::Values(
    TrainCase{false, 1}, TrainCase{false, 2}, TrainCase{false, 3}, TrainCase{false, 4},
    TrainCase{true, 1}, TrainCase{true, 2}, TrainCase{true, 3}, TrainCase{true, 4});

inline std::string train_case_name(const testing::TestParamInfo<TrainCase>& each) {
  return (each.param.central ? "CentralStorage" : "Mirrored") + std::to_string(each.param.replicas);
}

/// Numbers of rows on each replica, even and uneven, some of them 0.
inline std::vector<std::vector<int64_t>> ragged_splits(int replicas) {
  const std::vector<std::vector<int64_t>> all = {{3, 3, 3, 3}, {5, 3, 1, 2}, {4, 0, 2, 0},
                                                 {0, 1, 0, 7}, {1, 0, 0, 0}, {0, 2, 3, 1}};
  std::vector<std::vector<int64_t>> splits;
  for (const std::vector<int64_t>& each : all) {
    splits.emplace_back(each.begin(), each.begin() + replicas);
  }
  return splits;
}

/// Splits off consecutive rows for each replica.
inline PerReplica<at::Tensor> split_rows(const at::Tensor& rows,
                                         const std::vector<int64_t>& counts) {
  std::vector<at::Tensor> parts;
  int64_t begin = 0;
  for (const int64_t count : counts) {
    parts.push_back(rows.slice(0, begin, begin + count));
    begin += count;
  }
  return PerReplica<at::Tensor>(std::move(parts));
}

}  // namespace tutti::test
