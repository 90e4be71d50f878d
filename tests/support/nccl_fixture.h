// SPDX-License-Identifier: Apache-2.0
//
// NcclAllReduce without GPUs: tensors in host memory count as tensors of fake GPUs, and a stand-in
// takes the place of NCCL. Needs its own process, see fake_gpus.h.

#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/base/thread.h"
#include "tutti/collectives/nccl/nccl_all_reduce.h"
#include "tutti/collectives/nccl/nccl_engine.h"

#include "tests/support/fake_gpus.h"
#include "tests/support/nccl_standin/nccl_standin.h"
#include "tests/support/team.h"
#include "tests/support/tensors.h"

namespace tutti::test {

inline const internal::NcclFunctions& standin_functions() {
  static const internal::NcclFunctions functions =
      internal::load_nccl(std::vector<std::string>{TUTTI_NCCL_STANDIN});
  return functions;
}

/// Replica r is on cuda:r.
inline internal::NcclSeams standin_seams() {
  FakeGpus::install();
  return {.functions = &standin_functions(),
          .device_of =
              [](size_t replica, const at::Tensor&) {
                return c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(replica));
              },
          .abort_grace = std::chrono::milliseconds(100)};
}

inline TensorGrid random_grid(size_t replicas, const std::vector<int64_t>& sizes,
                              at::ScalarType dtype, uint64_t seed = 1) {
  TensorGrid grid(replicas);
  for (size_t r = 0; r < replicas; ++r) {
    for (size_t t = 0; t < sizes.size(); ++t) {
      grid[r].push_back(random_tensor({sizes[t]}, dtype, seed * 1000 + r * 100 + t));
    }
  }
  return grid;
}

inline TensorGrid empty_like(const TensorGrid& grid) {
  TensorGrid result(grid.size());
  for (size_t r = 0; r < grid.size(); ++r) {
    for (const at::Tensor& each : grid[r]) result[r].push_back(at::empty_like(each));
  }
  return result;
}

/// Runs one thread for each replica; returns what each of them threw, or null.
inline std::vector<std::exception_ptr> all_reduce_by_threads(
    CrossDeviceOps& ops, ReduceOp op, TensorGrid& inputs, TensorGrid& outputs,
    const CommunicationOptions& options = {}) {
  std::vector<at::Tensor*> like;
  for (at::Tensor& each : inputs[0]) like.push_back(&each);
  std::deque<std::atomic<int64_t>> counters(inputs.size());
  std::vector<std::exception_ptr> errors(inputs.size());
  const auto member = [&](size_t me) {
    const auto input = [&](size_t r, size_t t) -> at::Tensor& { return inputs[r][t]; };
    const auto output = [&](size_t r, size_t t) -> at::Tensor& { return outputs[r][t]; };
    const auto memory = [&](size_t r, size_t t) {
      return AllReduceBatch::Memory{inputs[r][t].data_ptr(), outputs[r][t].data_ptr()};
    };
    const auto claims = [&](size_t m) -> std::atomic<int64_t>& { return counters[m]; };
    try {
      ops.all_reduce(AllReduceBatch(op, inputs.size(), like, input, output, memory,
                                    {me, inputs.size(), claims}),
                     options);
    } catch (const std::exception&) {
      errors[me] = std::current_exception();
    }
  };
  {
    std::vector<std::unique_ptr<Thread>> threads;
    for (size_t me = 0; me < inputs.size(); ++me) {
      threads.push_back(std::make_unique<Thread>("member", [&member, me] { member(me); }));
    }
  }
  return errors;
}

/// Runs on the threads of all replicas, or on this one; throws the first error.
inline void all_reduce_as(bool threads, CrossDeviceOps& ops, ReduceOp op, TensorGrid& inputs,
                          TensorGrid& outputs, const CommunicationOptions& options = {}) {
  if (!threads) return all_reduce(ops, op, inputs, outputs, options);
  for (const std::exception_ptr& error : all_reduce_by_threads(ops, op, inputs, outputs, options)) {
    if (error != nullptr) std::rethrow_exception(error);
  }
}

inline int count_calls(const std::string& function) {
  int count = 0;
  for (const nccl_standin::Call& call : nccl_standin::calls()) count += call.function == function;
  return count;
}

/// Every test ends with this check.
inline void expect_no_violations() {
  for (const std::string& text : nccl_standin::violations()) ADD_FAILURE() << text;
}

}  // namespace tutti::test
