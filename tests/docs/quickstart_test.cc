// SPDX-License-Identifier: Apache-2.0
//
// The code of docs/quickstart.md and docs/environment.md.

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include "tutti/tutti.h"

namespace {

// Collects what is printed to a stream while an object lives.
class Printed {
 public:
  explicit Printed(std::ostream& stream) : stream_(stream), before_(stream.rdbuf(text_.rdbuf())) {}
  ~Printed() { stream_.rdbuf(before_); }
  Printed(const Printed&) = delete;
  Printed& operator=(const Printed&) = delete;

  std::string text() const { return text_.str(); }

 private:
  std::ostream& stream_;
  std::ostringstream text_;
  std::streambuf* before_;
};

TEST(Quickstart, RunsAFunctionOnceForEachReplica) {
  const Printed printed(std::cout);
  // [snippet run]
  tutti::MirroredStrategy strategy({"CPU:0", "CPU:1"});
  auto ids = strategy.run([] { return tutti::get_replica_context()->replica_id_in_sync_group(); });
  std::cout << ids << "\n";
  // [/snippet]
  EXPECT_EQ(printed.text(), "PerReplica:{\n  0: 0,\n  1: 1\n}\n");
}

TEST(Quickstart, GivesEachReplicaItsShareAndAddsUp) {
  tutti::MirroredStrategy strategy({"CPU:0", "CPU:1"});
  // [snippet share]
  at::Tensor batch = torch::arange(8.0);
  auto shares = strategy.distribute_values_from_function([&](tutti::ValueContext replica) {
    return batch.tensor_split(replica.num_replicas_in_sync)[replica.replica_id_in_sync_group];
  });
  auto sums = strategy.run([](const at::Tensor& share) { return share.sum(); }, shares);
  at::Tensor total = strategy.reduce(tutti::ReduceOp::kSum, sums);  // 28
  // [/snippet]
  EXPECT_EQ(sums[0].item<double>(), 6);
  EXPECT_EQ(sums[1].item<double>(), 22);
  EXPECT_EQ(total.item<double>(), 28);
}

TEST(Quickstart, SynchronizesInsideTheStep) {
  tutti::MirroredStrategy strategy({"CPU:0", "CPU:1"});
  auto shares = strategy.distribute_values_from_function([](tutti::ValueContext replica) {
    return torch::arange(4) + 4.0 * replica.replica_id_in_sync_group;
  });
  // [snippet all_reduce]
  auto centred = strategy.run(
      [](const at::Tensor& share) {
        tutti::ReplicaContext* replica = tutti::get_replica_context();
        at::Tensor mean = replica->all_reduce(tutti::ReduceOp::kMean, share.mean());
        return share - mean;
      },
      shares);
  // [/snippet]
  EXPECT_EQ(strategy.reduce(tutti::ReduceOp::kSum, centred, 0).item<double>(), 0);
}

TEST(Quickstart, ReadsTheStrategyFromFlags) {
  std::vector<std::string> words = {"train", "--strategy=mirrored", "--devices=CPU:0,CPU:1",
                                    "--epochs=3"};
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  pointers.push_back(nullptr);
  int argc = static_cast<int>(words.size());
  char** argv = pointers.data();
  // [snippet flags]
  // ./train --strategy=mirrored --devices=CPU:0,CPU:1 --epochs=3
  tutti::Strategy strategy = tutti::make_strategy(argc, argv);  // leaves --epochs=3 in argv
  // [/snippet]
  EXPECT_EQ(strategy.num_replicas_in_sync(), 2);
  ASSERT_EQ(argc, 2);
  EXPECT_STREQ(argv[1], "--epochs=3");
}

TEST(Quickstart, ReadsTheStrategyFromJson) {
  // [snippet json]
  tutti::Strategy strategy = tutti::make_strategy(tutti::StrategyConfig::from_json(R"({
    "strategy": "mirrored",
    "devices": ["CPU:0", "CPU:1"],
    "threads_per_replica": 1
  })"));
  // [/snippet]
  EXPECT_EQ(strategy.num_replicas_in_sync(), 2);
}

TEST(Quickstart, SendsLogLinesToTheProgramsOwnSink) {
  std::vector<std::string> lines;
  // [snippet log_sink]
  tutti::set_log_level(tutti::LogLevel::kInfo);
  tutti::LogSink before =
      tutti::set_log_sink([&](tutti::LogLevel, const std::string& line) { lines.push_back(line); });
  tutti::MirroredStrategy strategy({"CPU:0", "CPU:1"}, {.runner = {.threads_per_replica = 1}});
  tutti::set_log_sink(before);
  // [/snippet]
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_EQ(lines[0].find("Using MirroredStrategy with devices "
                          "('/job:localhost/replica:0/task:0/device:CPU:0', "
                          "'/job:localhost/replica:0/task:0/device:CPU:1'); 1 thread per replica"),
            0u);
}

}  // namespace
