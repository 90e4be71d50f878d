// SPDX-License-Identifier: Apache-2.0
//
// Ranks that disagree: one of them leaves out a call, makes an extra one, uses a different order or
// different arguments. All ranks must get an error that names it, and no rank may get wrong
// numbers.

#include <algorithm>
#include <array>
#include <cstring>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "tutti/collectives/worker_all_reduce.h"

#include "tests/group/rank_runs.h"

namespace tutti::group_tests {
namespace desync {

// A program is three calls, each with its own variable.
struct Call {
  OperationKind kind = OperationKind::kAllReduce;
  std::string name;
  std::vector<int64_t> sizes;
  at::ScalarType dtype = at::kFloat;
  ReduceOp op = ReduceOp::kSum;
};

using Calls = std::vector<Call>;

Calls program(OperationKind kind, int64_t rows) {
  return {{kind, "dense/weight", {rows, 8}},
          {kind, "dense/bias", {rows, 4}},
          {kind, "output/weight", {rows, 6}}};
}

// What the odd rank does instead.
struct Change {
  const char* name;
  void (*apply)(Calls& calls);
  bool seen_by_deadline_only = false;
  const char* variable = "dense/bias";  // which the error must name
};

const std::array kChanges = {
    Change{"missing call", [](Calls& calls) { calls.erase(calls.begin() + 1); }},
    Change{"missing last call", [](Calls& calls) { calls.pop_back(); }, true, "output/weight"},
    Change{"call made twice", [](Calls& calls) { calls.insert(calls.begin() + 1, calls[1]); }},
    Change{"extra call",
           [](Calls& calls) {
             calls.insert(calls.begin() + 1, {calls[0].kind, "extra", {1, 8}});
           },
           false, "extra"},
    Change{"extra last call",
           [](Calls& calls) {
             calls.push_back({calls[0].kind, "extra", {1, 8}});
           },
           true, "extra"},
    Change{"other order", [](Calls& calls) { std::swap(calls[1], calls[2]); }},
    Change{"other shape", [](Calls& calls) { std::swap(calls[1].sizes[0], calls[1].sizes[1]); }},
    Change{"other number of sizes", [](Calls& calls) { calls[1].sizes.push_back(1); }},
    Change{"other dtype", [](Calls& calls) { calls[1].dtype = at::kInt; }},
    Change{"other op", [](Calls& calls) { calls[1].op = ReduceOp::kMax; }},
    Change{"other name", [](Calls& calls) { calls[1].name = "dense/scale"; }, false, "dense/scale"},
    Change{"other kind",
           [](Calls& calls) {
             calls[1].kind = calls[1].kind == OperationKind::kAllGather ? OperationKind::kAllReduce
                                                                        : OperationKind::kAllGather;
           }},
};

const Change& change_named(const std::string& name) {
  return *std::find_if(kChanges.begin(), kChanges.end(),
                       [&](const Change& each) { return each.name == name; });
}

at::Tensor filled(const Call& call, int value) {
  return at::full(call.sizes, value, at::TensorOptions().dtype(call.dtype));
}

std::span<std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<std::byte*>(tensor.data_ptr()), tensor.nbytes()};
}

void expect_all(Rank& rank, const Call& call, const at::Tensor& got, int value) {
  rank.expect(got.equal(filled(call, value)), message("wrong numbers for ", call.name));
}

void all_reduce(Rank& rank, const Call& call, Operation operation) {
  const WorkerTree tree(rank.size(), 1);
  const at::Tensor value = filled(call, rank.index() + 1);
  WorkerReduction job;
  job.op = call.op;
  job.dtype = call.dtype;
  job.count = value.numel();
  job.nodes = {value.data_ptr()};
  job.outputs = {value.data_ptr()};
  Lane& lane = rank.lane();
  start_all_reduce(lane, tree, job, operation, lane.deadline())->wait();
  const int sum = rank.size() * (rank.size() + 1) / 2;
  expect_all(rank, call, value, call.op == ReduceOp::kSum ? sum : rank.size());
}

void all_gather(Rank& rank, const Call& call, const Operation& operation) {
  std::vector<at::Tensor> got;
  for (int r = 0; r < rank.size(); ++r) got.push_back(filled(call, 0));
  Lane& lane = rank.lane();
  lane.all_gather(
          operation, bytes_of(filled(call, rank.index() + 1)),
          [&](int r, size_t) { return bytes_of(got[static_cast<size_t>(r)]); }, lane.deadline())
      ->wait();
  for (int r = 0; r < rank.size(); ++r) {
    expect_all(rank, call, got[static_cast<size_t>(r)], r + 1);
  }
}

void broadcast(Rank& rank, const Call& call, const Operation& operation) {
  const at::Tensor value = filled(call, rank.index() + 1);
  Lane& lane = rank.lane();
  lane.broadcast(operation, 0, bytes_of(value), lane.deadline())->wait();
  expect_all(rank, call, value, 1);
}

void make(Rank& rank, const Call& call) {
  const Operation operation{
      .name = call.name, .dtype = call.dtype, .sizes = call.sizes, .op = call.op};
  if (call.kind == OperationKind::kAllReduce) return all_reduce(rank, call, operation);
  if (call.kind == OperationKind::kAllGather) return all_gather(rank, call, operation);
  broadcast(rank, call, operation);
}

// "kind;rows;odd rank;change"
std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts(1);
  for (const char c : text) {
    if (c == ';') {
      parts.emplace_back();
    } else {
      parts.back() += c;
    }
  }
  return parts;
}

const Scenario kDesync("Desync", [](Rank& rank) {
  const std::vector<std::string> parts = split(rank.argument());
  Calls calls =
      program(static_cast<OperationKind>(std::stoi(parts.at(0))), std::stoll(parts.at(1)));
  if (rank.index() == std::stoi(parts.at(2))) change_named(parts.at(3)).apply(calls);
  for (const Call& each : calls) make(rank, each);
  rank.meet();  // a rank that detected nothing gets the error here
});

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

class LaneDesync : public ::testing::TestWithParam<Backend> {
 protected:
  static void expect_named(const RunResult& result, const Change& change, int odd) {
    result.expect_no_failures();
    const ErrorCode code =
        change.seen_by_deadline_only ? ErrorCode::kUnavailable : ErrorCode::kInvalidArgument;
    for (size_t r = 0; r < result.ranks.size(); ++r) {
      SCOPED_TRACE(message("rank ", r));
      const Outcome& rank = result.ranks[r];
      if (!rank.error) {
        ADD_FAILURE() << "no error";
        continue;
      }
      EXPECT_EQ(*rank.error, code) << rank.error_text;
      EXPECT_TRUE(contains(rank.error_text, rank_name(odd))) << rank.error_text;
      EXPECT_TRUE(contains(rank.error_text, message('"', change.variable, '"'))) << rank.error_text;
      EXPECT_TRUE(contains(rank.error_text, "(operation ")) << rank.error_text;
    }
    EXPECT_TRUE(contains(result.log, "the last operations of /job:worker/task:")) << result.log;
    EXPECT_TRUE(contains(result.log, "\n  0: ")) << result.log;
  }

  // Processes take a second to start, and more numbers of them would not show more.
  static void run(OperationKind kind, int64_t rows, std::initializer_list<int> sizes) {
    for (const int size : sizes) {
      if (GetParam().processes && size != *sizes.begin()) continue;
      for (const int odd : {0, size - 1}) {
        for (const Change& change : kChanges) {
          // These wait for the deadline, whichever rank is odd.
          if (change.seen_by_deadline_only && (size != *sizes.begin() || odd != 0)) continue;
          // A root need not wait for any rank, so it cannot detect that none arrived.
          if (kind == OperationKind::kBroadcast && change.seen_by_deadline_only) continue;
          SCOPED_TRACE(message(change.name, " on rank ", odd, " of ", size));
          RunOptions options;
          options.argument = message(static_cast<int>(kind), ";", rows, ";", odd, ";", change.name);
          if (change.seen_by_deadline_only) options.timeout = std::chrono::milliseconds(300);
          // The code distinguishes a detected difference from a deadline that has passed.
          expect_named(run_ranks(GetParam(), size, kDesync, options), change, odd);
        }
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, LaneDesync, ::testing::ValuesIn(transfer_backends()),
                         parameter_name);

TEST_P(LaneDesync, NamesTheOddRankInSmallReductions) {
  run(OperationKind::kAllReduce, 2, {2, 3, 4});
}
TEST_P(LaneDesync, NamesTheOddRankInLargeReductions) {
  run(OperationKind::kAllReduce, 30'000, {2, 3});
}
TEST_P(LaneDesync, NamesTheOddRankInAllGathers) { run(OperationKind::kAllGather, 2, {2, 3, 4}); }
TEST_P(LaneDesync, NamesTheOddRankInLargeAllGathers) {
  run(OperationKind::kAllGather, 30'000, {2});
}
TEST_P(LaneDesync, NamesTheOddRankInBroadcasts) { run(OperationKind::kBroadcast, 2, {2, 3, 4}); }

// ---- sizes that the description does not contain

const Scenario kOtherBytes("OtherBytes", [](Rank& rank) {
  const size_t size = rank.argument() == "large" ? 3'000'000 : 100;
  std::vector<std::byte> mine(rank.index() == 1 ? size + 8 : size);
  std::vector<std::byte> theirs(size);
  const int other = 1 - rank.index();
  Lane& lane = rank.lane();
  lane.exchange({.name = "halo"}, {{other, mine}}, {{other, theirs}}, lane.deadline())->wait();
  rank.expect(rank.index() == 1, "got bytes that do not fit");
  rank.meet();
});

TEST_P(LaneDesync, NamesRanksWithDifferentByteCounts) {
  for (const char* size : {"small", "large"}) {
    const RunResult result = run_ranks(GetParam(), 2, kOtherBytes, {.argument = size});
    result.expect_no_failures();
    for (const Outcome& rank : result.ranks) {
      ASSERT_EQ(rank.error, ErrorCode::kInvalidArgument) << rank.error_text;
      EXPECT_TRUE(contains(rank.error_text, "\"halo\"")) << rank.error_text;
      EXPECT_TRUE(contains(rank.error_text, rank_name(1) + " sends")) << rank.error_text;
      EXPECT_TRUE(contains(rank.error_text, "Sizes must agree")) << rank.error_text;
    }
  }
}

// Counts that are cut into messages of the same sizes.
const Scenario kOtherCount("OtherCount", [](Rank& rank) {
  const int64_t count = rank.index() == 0 ? 4096 : 4096 * rank.size();
  const at::Tensor value = at::full({count}, rank.index() + 1.0F);
  const WorkerTree tree(rank.size(), 1);
  WorkerReduction job;
  job.count = count;
  job.nodes = {value.data_ptr()};
  job.outputs = {value.data_ptr()};
  Lane& lane = rank.lane();
  start_all_reduce(lane, tree, job, {.name = "bucket"}, lane.deadline())->wait();
  rank.expect(false, "reduced something with something else");
  rank.meet();
});

TEST_P(LaneDesync, NamesRanksWithDifferentElementCounts) {
  for (const int size : {2, 3}) {
    const RunResult result =
        run_ranks(GetParam(), size, kOtherCount, {.timeout = std::chrono::seconds(2)});
    result.expect_no_failures();
    for (const Outcome& rank : result.ranks) {
      ASSERT_EQ(rank.error, ErrorCode::kInvalidArgument) << rank.error_text;
      EXPECT_TRUE(contains(rank.error_text, "\"bucket\"")) << rank.error_text;
      EXPECT_TRUE(contains(rank.error_text, "/job:worker/task:0")) << rank.error_text;
      EXPECT_TRUE(contains(rank.error_text, "4096 elements")) << rank.error_text;
    }
  }
}

}  // namespace desync
}  // namespace tutti::group_tests
