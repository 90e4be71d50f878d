// SPDX-License-Identifier: Apache-2.0
//
// Tests that run on several workers, as threads of the test, over shared memory and over gRPC.

#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <initializer_list>
#include <ostream>
#include <string>
#include <string_view>

#include <gtest/gtest.h>

#include "tests/multi_worker/training.h"
#include "tests/support/expect_error.h"

namespace tutti::testing {

struct Shape {
  int workers;
  int local;
  CommunicationImplementation way = CommunicationImplementation::kAuto;
};

inline void PrintTo(const Shape& shape, std::ostream* out) {
  *out << shape.workers << "x" << shape.local << " " << shape.way;
}

class MultiWorker : public ::testing::TestWithParam<Shape> {
 protected:
  int workers() const { return GetParam().workers; }
  int local() const { return GetParam().local; }
  int all() const { return workers() * local(); }

  InProcessClusterOptions options() const {
    InProcessClusterOptions options;
    options.devices = cpus(local());
    options.runner.threads_per_replica = 1;
    options.communication_options.implementation = GetParam().way;
    options.timeout = std::chrono::seconds(30);
    return options;
  }

  void run(const std::function<void(const Strategy&)>& fn) const {
    InProcessCluster(workers(), options()).run(fn);
  }

  // Every worker must throw an error with this code and these parts in its text; all but one may
  // instead report that of a peer.
  void expect_all_refuse(const std::function<void(const Strategy&)>& fn, ErrorCode code,
                         std::initializer_list<std::string_view> parts) const {
    const auto errors = InProcessCluster(workers(), options()).try_run(fn);
    int heard = 0;
    for (size_t w = 0; w < errors.size(); ++w) {
      const auto rethrow = [&] {
        if (errors[w] != nullptr) std::rethrow_exception(errors[w]);
      };
      if (test::throws_error(rethrow, ErrorCode::kCancelled, parts)) {
        ++heard;
      } else {
        EXPECT_TRUE(test::throws_error(rethrow, code, parts)) << "worker " << w;
      }
    }
    EXPECT_LT(heard, workers());
  }

  // What fn returns on each worker must be what it returns with as many replicas in one process.
  void expect_as_mirrored(const std::function<at::Tensor(const Strategy&)>& fn) const {
    at::Tensor expected;
    torch::manual_seed(5);
    InProcessCluster(1).run([&](const Strategy&) {
      expected = fn(MirroredStrategy(cpus(all()), {.runner = {.threads_per_replica = 1}}));
    });
    torch::manual_seed(5);
    run([&](const Strategy& strategy) {
      const at::Tensor found = fn(strategy);
      EXPECT_TRUE(at::equal(found, expected)) << found << " instead of " << expected;
    });
  }
};

inline auto shapes() {
  return ::testing::Values(Shape{2, 1}, Shape{2, 2}, Shape{3, 1}, Shape{2, 3}, Shape{1, 2},
                           Shape{2, 1, CommunicationImplementation::kGrpc},
                           Shape{3, 2, CommunicationImplementation::kGrpc});
}

inline std::string shape_name(const ::testing::TestParamInfo<Shape>& each) {
  return std::to_string(each.param.workers) + "x" + std::to_string(each.param.local) +
         to_string(each.param.way);
}

}  // namespace tutti::testing
