// SPDX-License-Identifier: Apache-2.0
//
// Reductions over every backend: the bits are those of the canonical tree, computed here one
// element at a time, and no more bytes are sent than necessary.

#include <cstring>
#include <map>
#include <tuple>

#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include "tutti/base/mutex.h"
#include "tutti/collectives/worker_all_reduce.h"

#include "tests/group/rank_runs.h"
#include "tests/support/tensors.h"
#include "tests/support/tree_reference.h"

namespace tutti::group_tests {
namespace all_reduces {

struct Case {
  at::ScalarType dtype = at::kFloat;
  ReduceOp op = ReduceOp::kSum;
  int64_t count = 0;
  bool in_place = false;  // where dtypes allow it
};

std::ostream& operator<<(std::ostream& out, const Case& each) {
  return out << each.op << " of " << each.count << " " << each.dtype
             << (each.in_place ? ", in place" : "");
}

// Repeats random numbers, from a different offset for each replica.
at::Tensor value_of(int replica, const Case& each) {
  at::Tensor value = at::empty({each.count}, at::TensorOptions().dtype(each.dtype));
  test::with_type(each.dtype, [&]<class T>() {
    static const std::vector<T> random = [] {
      std::vector<T> numbers(4093);
      test::RandomNumbers source(3);
      for (T& number : numbers) number = source.of<T>();
      return numbers;
    }();
    size_t at = static_cast<size_t>(replica) * 389 % random.size();
    T* const data = value.data_ptr<T>();
    for (int64_t i = 0; i < each.count; ++i) {
      data[i] = random[at];
      if (++at == random.size()) at = 0;
    }
  });
  return value;
}

// Uses the plain loops of tree_reference.h, once for all ranks of a process.
at::Tensor expected_of(const Case& each, int replicas) {
  static Mutex mutex;
  static std::map<std::tuple<at::ScalarType, ReduceOp, int64_t, int>, at::Tensor> known;
  const MutexLock lock(mutex);
  at::Tensor& expected = known[{each.dtype, each.op, each.count, replicas}];
  if (!expected.defined()) {
    std::vector<at::Tensor> values;
    for (int g = 0; g < replicas; ++g) values.push_back(value_of(g, each));
    expected = test::expected_tensor(each.op, values);
  }
  return expected;
}

// What one rank does: its nodes, then the reduction, of which `outputs` are the results.
class Job {
 public:
  Job(Rank& rank, const WorkerTree& tree, const Case& each)
      : rank_(rank), tree_(tree), case_(each) {
    const at::ScalarType inner = node_dtype(each.op, each.dtype);
    reduction_.op = each.op;
    reduction_.dtype = each.dtype;
    reduction_.count = each.count;
    for (const TreeNode& node : tree.nodes(rank.index())) {
      std::vector<at::Tensor> values;
      std::vector<const void*> inputs;
      for (int g = node.begin; g < node.end; ++g) {
        values.push_back(value_of(g, each));
        inputs.push_back(values.back().data_ptr());
      }
      nodes_.push_back(empty(inner));
      reduce_to_node(each.op, each.dtype, inputs, nodes_.back().data_ptr(), 0, each.count);
      reduction_.nodes.push_back(nodes_.back().data_ptr());
    }
    if (each.in_place && inner == each.dtype) {
      outputs_ = {nodes_[0], empty(each.dtype)};
    } else {
      outputs_ = {empty(each.dtype), empty(each.dtype), empty(each.dtype)};
    }
    for (const at::Tensor& output : outputs_) reduction_.outputs.push_back(output.data_ptr());
  }

  WorkerReduction& reduction() { return reduction_; }

  std::unique_ptr<Transfer> start() {
    Lane& lane = rank_.lane(LaneKind::kGradients);
    const std::array<int64_t, 1> sizes = {case_.count};
    return start_all_reduce(lane, tree_, reduction_, {.name = "value", .sizes = sizes},
                            lane.deadline());
  }

  void expect_result() {
    const at::Tensor expected = expected_of(case_, tree_.replicas());
    for (size_t i = 0; i < outputs_.size(); ++i) {
      const bool same = case_.count == 0 || std::memcmp(outputs_[i].data_ptr(), expected.data_ptr(),
                                                        expected.nbytes()) == 0;
      rank_.expect(same, message(case_, ": output ", i, " with ", tree_.workers(), " workers of ",
                                 tree_.local_replicas()));
    }
  }

 private:
  at::Tensor empty(at::ScalarType dtype) {
    return at::empty({case_.count}, at::TensorOptions().dtype(dtype));
  }

  Rank& rank_;
  const WorkerTree& tree_;
  const Case case_;
  WorkerReduction reduction_;
  std::vector<at::Tensor> nodes_;
  std::vector<at::Tensor> outputs_;
};

void run_case(Rank& rank, const WorkerTree& tree, const Case& each) {
  Job job(rank, tree, each);
  job.start()->wait();
  job.expect_result();
}

WorkerTree tree_of(const Rank& rank) { return {rank.size(), std::stoi(rank.argument())}; }

bool is_defined(ReduceOp op, at::ScalarType dtype) {
  bool defined = false;
  test::with_type(dtype, [&]<class T>() { defined = test::is_defined<T>(op); });
  return defined;
}

const Scenario kMatrix("AllReduceMatrix", [](Rank& rank) {
  const WorkerTree tree = tree_of(rank);
  int turn = 0;
  for (const at::ScalarType dtype :
       {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16, at::kInt, at::kLong, at::kByte,
        at::kChar, at::kShort, at::kComplexFloat, at::kComplexDouble}) {
    for (const ReduceOp op : test::kAllOps) {
      if (!is_defined(op, dtype)) continue;
      for (const int64_t count : {0, 1, 5, 1000, 16411}) {
        ++turn;
        run_case(rank, tree, {dtype, op, count, turn % 2 == 0});
      }
    }
  }
});

// The sizes are around those where messages change their kind, and some have many blocks.
const Scenario kSizes("AllReduceSizes", [](Rank& rank) {
  const WorkerTree tree = tree_of(rank);
  std::vector<int64_t> counts = {3, 4, 63, 64, 65, 4095, 4096, 4097, 150'007};
  const auto part = static_cast<int64_t>(rank.group().options().chunk_bytes / sizeof(float));
  for (const int64_t delta : {-1, 0, 1}) counts.push_back(part * rank.size() + delta);
  for (const int64_t count : counts) {
    run_case(rank, tree, {at::kFloat, ReduceOp::kSum, count, false});
    run_case(rank, tree, {at::kFloat, ReduceOp::kSum, count, true});
  }
  run_case(rank, tree, {at::kHalf, ReduceOp::kMean, 150'007, true});
});

// prepare() is called before the nodes are read, once for every element.
const Scenario kPrepares("AllReducePrepares", [](Rank& rank) {
  const WorkerTree tree = tree_of(rank);
  for (const int64_t count : {100, 200'003}) {
    const Case each{at::kFloat, ReduceOp::kSum, count, false};
    Job job(rank, tree, each);
    WorkerReduction& reduction = job.reduction();
    std::vector<std::vector<float>> hidden;
    for (const void* node : reduction.nodes) {
      const auto* values = static_cast<const float*>(node);
      hidden.emplace_back(values, values + count);
      std::memset(const_cast<void*>(node), 0xff, static_cast<size_t>(count) * sizeof(float));
    }
    std::vector<int> prepared(static_cast<size_t>(count));
    reduction.prepare = [&](int64_t begin, int64_t end) {
      for (size_t n = 0; n < hidden.size(); ++n) {
        auto* values = static_cast<float*>(const_cast<void*>(reduction.nodes[n]));
        std::copy(hidden[n].begin() + begin, hidden[n].begin() + end, values + begin);
      }
      for (int64_t i = begin; i < end; ++i) ++prepared[static_cast<size_t>(i)];
    };
    job.start()->wait();
    job.expect_result();
    rank.expect(std::all_of(prepared.begin(), prepared.end(), [](int n) { return n == 1; }),
                "every element is prepared once");
  }
});

// Divisible by 64 elements x workers, and by every number of nodes.
constexpr int64_t kBytesCount = 64 * 12 * 1024;

const Scenario kBytes("AllReduceBytes", [](Rank& rank) {
  const WorkerTree tree = tree_of(rank);
  Lane& lane = rank.lane(LaneKind::kGradients);
  rank.note("nodes", static_cast<int64_t>(tree.nodes(rank.index()).size()));
  struct Kind {
    at::ScalarType dtype;
    const char* name;
  };
  for (const Kind& kind :
       {Kind{at::kFloat, "float"}, {at::kBFloat16, "bfloat16"}, {at::kDouble, "double"}}) {
    const uint64_t before = lane.bytes_sent();
    const at::ScalarType dtype = kind.dtype;
    const Case each{dtype, ReduceOp::kSum, kBytesCount, true};
    // The values do not matter here, nor where they lie.
    WorkerReduction reduction;
    reduction.op = each.op;
    reduction.dtype = dtype;
    reduction.count = each.count;
    std::vector<at::Tensor> nodes;
    for (size_t i = 0; i < tree.nodes(rank.index()).size(); ++i) {
      nodes.push_back(
          at::zeros({each.count}, at::TensorOptions().dtype(node_dtype(each.op, dtype))));
      reduction.nodes.push_back(nodes.back().data_ptr());
    }
    const at::Tensor output = at::zeros({each.count}, at::TensorOptions().dtype(dtype));
    reduction.outputs.push_back(output.data_ptr());
    start_all_reduce(lane, tree, reduction, {.name = "bytes"}, lane.deadline())->wait();
    rank.note(kind.name, static_cast<int64_t>(lane.bytes_sent() - before));
  }
});

const Scenario kInFlight("AllReduceOnTwoChannels", [](Rank& rank) {
  const WorkerTree tree = tree_of(rank);
  const Case large{at::kFloat, ReduceOp::kSum, 150'001, true};
  Job job(rank, tree, large);
  const std::unique_ptr<Transfer> under_way = job.start();
  for (int i = 0; i < 20; ++i) {
    under_way->advance();
    rank.meet();
  }
  while (!under_way->advance()) {
  }
  job.expect_result();
});

class LaneAllReduce : public ::testing::TestWithParam<Backend> {
 protected:
  struct Shape {
    int workers;
    int local;
  };
  static void run(const Scenario& scenario, std::initializer_list<Shape> shapes) {
    for (const auto& [workers, local] : shapes) {
      SCOPED_TRACE(message(workers, " workers of ", local));
      run_ranks(GetParam(), workers, scenario, {.argument = std::to_string(local)})
          .expect_success();
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, LaneAllReduce, ::testing::ValuesIn(all_backends()),
                         parameter_name);

TEST_P(LaneAllReduce, HasTheBitsOfTheTreeForEveryDtypeAndOp) {
  run(kMatrix, {{1, 1}, {1, 3}, {2, 1}, {2, 3}, {3, 1}, {3, 2}, {4, 1}, {5, 1}});
}

TEST_P(LaneAllReduce, HasTheBitsOfTheTreeForEverySize) {
  run(kSizes, {{1, 2}, {2, 1}, {2, 3}, {3, 1}, {4, 1}});
}

TEST_P(LaneAllReduce, PreparesEveryElementOnce) {
  run(kPrepares, {{1, 1}, {2, 1}, {2, 3}, {3, 2}});
}

TEST_P(LaneAllReduce, RunsBesideADifferentLane) { run(kInFlight, {{2, 1}, {3, 3}}); }

TEST_P(LaneAllReduce, SendsTheFewestPossibleBytes) {
  struct Expected {
    int local;
    int64_t nodes;
  };
  for (const auto& [local, nodes] : {Expected{1, 1}, {2, 1}, {3, 2}, {4, 1}, {8, 1}}) {
    for (const int workers : {2, 3, 4}) {
      SCOPED_TRACE(message(workers, " workers of ", local));
      const RunResult result =
          run_ranks(GetParam(), workers, kBytes, {.argument = std::to_string(local)});
      result.expect_success();
      for (const Outcome& rank : result.ranks) {
        EXPECT_EQ(rank.notes.at("nodes"), nodes);
        // (P + 1)(W - 1) / W of the bucket; partial sums of 16-bit types are float32.
        const int64_t share = kBytesCount / workers * (workers - 1);
        EXPECT_EQ(rank.notes.at("float"), share * 4 * (nodes + 1));
        EXPECT_EQ(rank.notes.at("double"), share * 8 * (nodes + 1));
        EXPECT_EQ(rank.notes.at("bfloat16"), share * (4 * nodes + 2));
      }
    }
  }
}

}  // namespace all_reduces
}  // namespace tutti::group_tests
