// SPDX-License-Identifier: Apache-2.0
//
// An all-reduce without a strategy: tensors in a grid, and a team that reduces them on one thread
// or on several.

#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/base/thread.h"
#include "tutti/collectives/cross_device_ops.h"

namespace tutti::test {

using TensorGrid = std::vector<std::vector<at::Tensor>>;  // [replica][tensor]

struct TeamOptions {
  size_t members = 1;
  bool threads = false;  ///< Each member runs on its own thread; else one by one, the last first.
};

inline void all_reduce(CrossDeviceOps& ops, ReduceOp op, TensorGrid& inputs, TensorGrid& outputs,
                       const CommunicationOptions& options = {}, TeamOptions team = {}) {
  std::vector<at::Tensor*> like;
  for (at::Tensor& each : inputs[0]) like.push_back(&each);
  std::deque<std::atomic<int64_t>> counters(team.members);
  const auto member = [&](size_t me) {
    const auto input = [&](size_t r, size_t t) -> at::Tensor& { return inputs[r][t]; };
    const auto output = [&](size_t r, size_t t) -> at::Tensor& { return outputs[r][t]; };
    const auto memory = [&](size_t r, size_t t) {
      return AllReduceBatch::Memory{inputs[r][t].data_ptr(), outputs[r][t].data_ptr()};
    };
    const auto claims = [&](size_t m) -> std::atomic<int64_t>& { return counters[m]; };
    ops.all_reduce(
        AllReduceBatch(op, inputs.size(), like, input, output, memory, {me, team.members, claims}),
        options);
  };
  if (!team.threads) {
    for (size_t me = team.members; me-- > 0;) member(me);
    return;
  }
  std::vector<std::unique_ptr<Thread>> threads;
  for (size_t me = 0; me < team.members; ++me) {
    threads.push_back(std::make_unique<Thread>("member", [&member, me] { member(me); }));
  }
}

}  // namespace tutti::test
