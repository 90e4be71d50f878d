// SPDX-License-Identifier: Apache-2.0
//
// The second part of the contract of CrossDeviceOps: all_reduce by a team of threads, by members
// one after the other and by a single member.

#include "tutti/strategy/mirrored_strategy.h"

#include "tests/contract/cross_device_ops_contract.h"
#include "tests/contract/strategy_contract.h"
#include "tests/support/expect_error.h"
#include "tests/support/team.h"

namespace tutti::cross_device_ops_team_contract_test {

using test::bit_equal;
using test::expected_tensor;
using test::random_tensor;
using test::TeamOptions;
using Grid = test::TensorGrid;

struct Like {
  int64_t numel;
  at::ScalarType dtype;
};

const std::vector<Like> kMixed = {{3, at::kFloat},        {0, at::kFloat},   {30000, at::kFloat},
                                  {1, at::kDouble},       {500, at::kHalf},  {4000, at::kInt},
                                  {17, at::kBFloat16},    {2000, at::kChar}, {811, at::kDouble},
                                  {0, at::kInt},          {7, at::kByte},    {300, at::kBFloat16},
                                  {70, at::kComplexFloat}};
const std::vector<Like> kFloats = {{40000, at::kFloat}, {7, at::kDouble},   {300, at::kHalf},
                                   {0, at::kFloat},     {1000, at::kFloat}, {5, at::kFloat}};

Grid random_grid(size_t replicas, const std::vector<Like>& tensors) {
  Grid grid(replicas);
  for (size_t r = 0; r < replicas; ++r) {
    for (size_t t = 0; t < tensors.size(); ++t) {
      grid[r].push_back(random_tensor({tensors[t].numel}, tensors[t].dtype, 100 * t + r));
    }
  }
  return grid;
}

Grid copy_of(const Grid& grid) {
  Grid copy = grid;
  for (auto& row : copy) {
    for (at::Tensor& each : row) each = each.clone();
  }
  return copy;
}

Grid outputs_for(ReduceOp op, const Grid& inputs) {
  Grid outputs = inputs;
  for (auto& row : outputs) {
    for (at::Tensor& each : row) {
      each = at::full(each.sizes(), 77, at::dtype(reduced_dtype(op, each.scalar_type())));
    }
  }
  return outputs;
}

// The reduction of every tensor of the grid.
std::vector<at::Tensor> expected_row(ReduceOp op, const Grid& inputs) {
  std::vector<at::Tensor> row;
  for (size_t t = 0; t < inputs[0].size(); ++t) {
    std::vector<at::Tensor> column;
    for (const auto& each : inputs) column.push_back(each[t]);
    row.push_back(expected_tensor(op, column));
  }
  return row;
}

void expect_rows(const Grid& outputs, const std::vector<at::Tensor>& wanted,
                 const std::string& what) {
  for (size_t r = 0; r < outputs.size(); ++r) {
    for (size_t t = 0; t < wanted.size(); ++t) {
      ASSERT_TRUE(bit_equal(outputs[r][t], wanted[t]))
          << "replica " << r << ", tensor " << t << ", " << what;
    }
  }
}

std::string describe_team(ReduceOp op, const TeamOptions& team) {
  return message(op, ", ", team.members, team.threads ? " threads" : " members");
}

std::vector<TeamOptions> teams(size_t replicas) {
  return {{.members = 1}, {.members = replicas}, {.members = replicas, .threads = true}};
}

TEST_P(CrossDeviceOpsContract, AllReduceIntoOutputs) {
  for (const size_t replicas : {1, 2, 3, 4, 5, 8}) {
    const Grid inputs = random_grid(replicas, kMixed);
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean, ReduceOp::kProduct}) {
      const auto wanted = expected_row(op, inputs);
      for (const TeamOptions& team : teams(replicas)) {
        Grid given = copy_of(inputs);
        Grid outputs = outputs_for(op, inputs);
        test::all_reduce(ops(), op, given, outputs, {}, team);
        expect_rows(outputs, wanted, describe_team(op, team));
        for (size_t r = 0; r < replicas; ++r) {
          for (size_t t = 0; t < kMixed.size(); ++t) {
            ASSERT_TRUE(bit_equal(given[r][t], inputs[r][t])) << "inputs are left alone";
          }
        }
      }
    }
  }
}

TEST_P(CrossDeviceOpsContract, AllReduceInPlace) {
  for (const size_t replicas : {1, 2, 3, 4, 5, 8}) {
    const Grid inputs = random_grid(replicas, kFloats);
    for (const ReduceOp op : test::kAllOps) {
      const auto wanted = expected_row(op, inputs);
      for (const TeamOptions& team : teams(replicas)) {
        Grid values = copy_of(inputs);
        test::all_reduce(ops(), op, values, values, {}, team);
        expect_rows(values, wanted, describe_team(op, team));
      }
    }
  }
}

TEST_P(CrossDeviceOpsContract, AllReduceOfOneTensor) {
  for (const int64_t numel : {0, 1, 5, 300000}) {
    for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16, at::kInt}) {
      const Grid inputs = random_grid(4, {{numel, dtype}});
      const auto wanted = expected_row(ReduceOp::kSum, inputs);
      for (const TeamOptions& team : teams(4)) {
        Grid values = copy_of(inputs);
        test::all_reduce(ops(), ReduceOp::kSum, values, values, {}, team);
        expect_rows(values, wanted, message(numel, " elements"));
      }
    }
  }
}

TEST_P(CrossDeviceOpsContract, PacksDoNotChangeABit) {
  const Grid inputs = random_grid(3, kMixed);
  const auto wanted = expected_row(ReduceOp::kMean, inputs);
  for (const int64_t bytes_per_pack : {1, 100, 4096, 1 << 20}) {
    for (const TeamOptions& team : teams(3)) {
      Grid outputs = outputs_for(ReduceOp::kMean, inputs);
      Grid given = inputs;
      test::all_reduce(ops(), ReduceOp::kMean, given, outputs, {.bytes_per_pack = bytes_per_pack},
                       team);
      expect_rows(outputs, wanted, message("bytes_per_pack ", bytes_per_pack));
    }
  }
}

TEST_P(CrossDeviceOpsContract, AllReduceWritesToTensorsThatNeedAGradient) {
  Grid values = random_grid(2, {{5, at::kFloat}});
  const Grid inputs = copy_of(values);
  for (auto& row : values) row[0].requires_grad_();
  test::all_reduce(ops(), ReduceOp::kSum, values, values);
  expect_rows(values, expected_row(ReduceOp::kSum, inputs), "leaf tensors");
  EXPECT_TRUE(values[0][0].is_leaf());
}

TEST_P(CrossDeviceOpsContract, AllReduceChecksItsOptions) {
  Grid grid = random_grid(1, {{1, at::kFloat}});
  EXPECT_TUTTI_ERROR(test::all_reduce(ops(), ReduceOp::kSum, grid, grid, {.bytes_per_pack = -1}),
                     ErrorCode::kInvalidArgument, "bytes_per_pack is -1");
}

TEST_P(CrossDeviceOpsContract, TwoTeamsMayShareAnObject) {
  std::vector<std::unique_ptr<Thread>> users;
  for (int k = 0; k < 2; ++k) {
    users.push_back(std::make_unique<Thread>("user", [this, k] {
      const Grid inputs = random_grid(static_cast<size_t>(2 + k), kFloats);
      const auto wanted = expected_row(ReduceOp::kMean, inputs);
      for (int i = 0; i < 10; ++i) {
        Grid values = copy_of(inputs);
        test::all_reduce(ops(), ReduceOp::kMean, values, values, {},
                         {.members = inputs.size(), .threads = true});
        expect_rows(values, wanted, "shared");
      }
    }));
  }
}

TEST_P(CrossDeviceOpsContract, ReplicasOfAStrategyUseIt) {
  const std::shared_ptr<CrossDeviceOps> shared = GetParam().make();
  for (const int replicas : {1, 2, 3}) {
    const MirroredStrategy strategy(test::cpus(replicas), {.cross_device_ops = shared});
    for (const int64_t numel : {1, 1000, 50000}) {
      const Grid inputs = random_grid(static_cast<size_t>(replicas),
                                      {{numel, at::kFloat}, {numel, at::kHalf}, {9, at::kDouble}});
      const auto results = strategy.run([&] {
        const auto me = static_cast<size_t>(test::my_id());
        return get_replica_context()->all_reduce(ReduceOp::kMean, inputs[me]);
      });
      Grid outputs;
      for (const auto& each : results) outputs.push_back(each);
      expect_rows(outputs, expected_row(ReduceOp::kMean, inputs), message(numel, " elements"));
    }
  }
}

}  // namespace tutti::cross_device_ops_team_contract_test
