// SPDX-License-Identifier: Apache-2.0
//
// Ranks that give up, leave or die: all ranks that wait for them soon get an error that names them.

#include <algorithm>
#include <thread>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "tutti/collectives/worker_all_reduce.h"

#include "tests/group/rank_runs.h"

namespace tutti::group_tests {
namespace failures {

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// The bytes of every rank, each with the value rank + 1, and last those that this rank sends.
using Gathered = std::vector<std::vector<std::byte>>;

std::vector<std::byte> bytes_of(int rank, size_t size) {
  return std::vector<std::byte>(size, std::byte{static_cast<unsigned char>(rank + 1)});
}

std::unique_ptr<Transfer> start_gather(Rank& rank, Gathered& memory, size_t size,
                                       const char* name) {
  memory.assign(static_cast<size_t>(rank.size()), std::vector<std::byte>(size));
  memory.push_back(bytes_of(rank.index(), size));
  Lane& lane = rank.lane();
  return lane.all_gather(
      {.name = name}, memory.back(),
      [&](int r, size_t) { return std::span(memory[static_cast<size_t>(r)]); }, lane.deadline());
}

// The last rank never joins; a thread beside the operation of rank 0 gives up.
const Scenario kAbort("Abort", [](Rank& rank) {
  rank.meet();
  if (rank.index() == rank.size() - 1) {
    Lane& other = rank.lane(LaneKind::kGradients);
    std::vector<std::byte> bytes(8);
    receive(other, {.name = "never sent"}, 0, bytes)->wait();
    return;
  }
  std::thread helper;
  Gathered memory;
  const auto transfer = start_gather(rank, memory, 2'000'000, "waits");
  transfer->advance();
  if (rank.index() == 0) {
    helper = std::thread([&rank] {
      rank.group().abort(ErrorCode::kCancelled, "replica 3 threw: the loss is not finite");
      rank.group().abort(ErrorCode::kInternal, "too late: the first one counts");
    });
  }
  try {
    transfer->wait();
  } catch (const Error&) {
    if (helper.joinable()) helper.join();
    rank.expect(rank.group().aborted(), "the group knows");
    try {
      rank.lane(LaneKind::kGradients)
          .barrier({.name = "later"}, Deadline::after(std::chrono::seconds(1)));
      rank.expect(false, "a later operation began");
    } catch (const Error& error) {
      rank.expect(contains(error.what(), "the loss is not finite"), error.what());
    }
    throw;
  }
  if (helper.joinable()) helper.join();
});

// One rank has begun to send its part of a large operation when it dies. A thread cannot die, so it
// leaves before it begins.
//
// The promise: an operation is complete or it fails. A rank that has received all that the dead
// rank sent may complete the operation, with the whole result; the next operation fails.
template <class Start, class Complete>
void die_in_the_middle(Rank& rank, const Start& start, const Complete& complete) {
  const bool victim = rank.index() == std::stoi(rank.argument());
  std::unique_ptr<Transfer> transfer;
  if (victim && rank.is_process()) {
    transfer = start();
    rank.expect(!transfer->advance(), "done alone");
  }
  rank.meet();
  if (victim) return rank.die();
  start()->wait();
  rank.expect(complete(), "done with a part of the result");
  start()->wait();
  rank.expect(false, "done without a rank that died");
}

const Scenario kDieInReduction("DieInReduction", [](Rank& rank) {
  const at::Tensor value = rank.group().arena()->empty({2'000'000}, at::kFloat);
  const WorkerTree tree(rank.size(), 1);
  const auto start = [&] {
    value.fill_(1);
    WorkerReduction job;
    job.count = value.numel();
    job.nodes = {value.data_ptr()};
    job.outputs = {value.data_ptr()};
    Lane& lane = rank.lane(LaneKind::kGradients);
    return start_all_reduce(lane, tree, job, {.name = "dense/weight"}, lane.deadline());
  };
  die_in_the_middle(rank, start, [&] { return value.eq(rank.size()).all().item<bool>(); });
});

const Scenario kDieInGather("DieInGather", [](Rank& rank) {
  constexpr size_t kBytes = 9'000'000;
  Gathered memory;
  const auto complete = [&] {
    for (int r = 0; r < rank.size(); ++r) {
      if (memory[static_cast<size_t>(r)] != bytes_of(r, kBytes)) return false;
    }
    return true;
  };
  die_in_the_middle(
      rank, [&] { return start_gather(rank, memory, kBytes, "dense/weight"); }, complete);
});

const Scenario kDieInBarrier("DieInBarrier", [](Rank& rank) {
  rank.meet();
  if (rank.index() == std::stoi(rank.argument())) return rank.die();
  Lane& lane = rank.lane();
  lane.barrier({.name = "dense/weight"}, lane.deadline())->wait();
  rank.expect(false, "done without a rank that died");
});

// It has left messages that were not asked for yet, which must not hide that it is gone.
const Scenario kDieWithMessages("DieWithMessages", [](Rank& rank) {
  Lane& lane = rank.lane();
  if (rank.index() == 1) {
    std::vector<std::byte> early(8);
    send(lane, {.name = "early"}, 0, early)->wait();
    rank.meet();
    return rank.die();
  }
  rank.meet();
  if (rank.index() == 0) {
    const std::vector<std::byte> bytes(5'000'000);  // more than is sent before the receiver reads
    send(lane, {.name = "dense/weight"}, 1, bytes)->wait();
    rank.expect(false, "sent to a rank that died");
  }
});

// Rank 0 sends and then leaves; the others continue without it.
const Scenario kLeave("Leave", [](Rank& rank) {
  Lane& lane = rank.lane();
  std::vector<std::byte> last(rank.argument() == "large" ? 3'000'000 : 1000, std::byte{7});
  lane.broadcast({.name = "farewell"}, 0, last, lane.deadline())->wait();
  rank.expect(std::count(last.begin(), last.end(), std::byte{7}) ==
                  static_cast<std::ptrdiff_t>(last.size()),
              "wrong bytes");
  if (rank.index() == 0) return rank.die();
  for (int i = 0; i < 500; ++i) {
    std::vector<Lane::Outgoing> outgoing;
    std::vector<Lane::Expected> expected;
    const std::byte mine{static_cast<unsigned char>(rank.index())};
    std::vector<std::byte> theirs(static_cast<size_t>(rank.size()));
    for (int r = 1; r < rank.size(); ++r) {
      if (r == rank.index()) continue;
      outgoing.push_back({r, std::span(&mine, 1)});
      expected.push_back({r, std::span(theirs).subspan(static_cast<size_t>(r), 1)});
    }
    lane.exchange({.name = "goes on"}, outgoing, expected, lane.deadline())->wait();
    for (const auto& each : expected) {
      rank.expect(each.bytes[0] == std::byte{static_cast<unsigned char>(each.rank)}, "wrong byte");
    }
  }
});

// The receiver leaves as soon as it has read, while the sender polls whether it has.
const Scenario kLastRead("LastRead", [](Rank& rank) {
  constexpr int64_t kBytes = 200'000;
  const at::Tensor memory = rank.group().arena()->empty({kBytes}, at::kByte);
  const std::span<std::byte> bytes(static_cast<std::byte*>(memory.data_ptr()), kBytes);
  Lane& lane = rank.lane();
  if (rank.index() == 0) {
    const auto transfer = send(lane, {.name = "last"}, 1, bytes);
    while (!transfer->advance()) {
    }
  } else {
    receive(lane, {.name = "last"}, 0, bytes)->wait();
  }
});

// Messages that a rank left are read, however late.
const Scenario kReadLate("ReadLate", [](Rank& rank) {
  Lane& lane = rank.lane();
  std::vector<std::byte> bytes(100);
  if (rank.index() == 0) {
    std::fill(bytes.begin(), bytes.end(), std::byte{9});
    send(lane, {.name = "left behind"}, 1, bytes)->wait();
    return rank.die();
  }
  // Rank 0 is gone once this fails.
  Lane& control = rank.lane(LaneKind::kInput);
  try {
    control.barrier({.name = "gone?"}, control.deadline())->wait();
  } catch (const Error& error) {
    rank.expect(error.code() == ErrorCode::kUnavailable, error.what());
    rank.expect(contains(error.what(), rank_name(0)), error.what());
    return;
  }
  rank.expect(false, "a barrier without rank 0");
});

const Scenario kDrop("Drop", [](Rank& rank) {
  rank.meet();
  Gathered memory;
  {
    const auto transfer = start_gather(rank, memory, 3'000'000, "dropped");
    if (rank.index() != 1) transfer->wait();
  }
  rank.meet();
});

// Rank 1 throws in the middle of an operation; others may have done their part of it by then.
const Scenario kThrowInside("ThrowInside", [](Rank& rank) {
  rank.meet();
  const std::vector<std::byte> mine(100);
  std::vector<std::vector<std::byte>> memory(static_cast<size_t>(rank.size()), mine);
  Lane& lane = rank.lane();
  const auto place = [&](int r, size_t) {
    if (rank.index() == 1 && r != 1) throw Error(ErrorCode::kDataLoss, "there is no room for it.");
    return std::span(memory[static_cast<size_t>(r)]);
  };
  lane.all_gather({.name = "thrown"}, mine, place, lane.deadline())->wait();
  lane.barrier({.name = "after it"}, lane.deadline())->wait();
  rank.expect(false, "went on after an error of rank 1");
});

const Scenario kDeadline("Deadline", [](Rank& rank) {
  rank.meet();
  if (rank.index() == 0) return rank.meet();
  for (int step = 1; step <= 17; ++step) rank.group().begin_step();
  Lane& lane = rank.lane();
  const auto transfer =
      lane.barrier({.name = "late"}, lane.deadline(std::chrono::milliseconds(50)));
  if (rank.argument() == "wait") transfer->wait();
  while (!transfer->advance()) std::this_thread::yield();
});

class LaneFailures : public ::testing::TestWithParam<Backend> {
 protected:
  // Every rank but `who` got kUnavailable that names it because it is gone, not because a deadline
  // has passed, which has a different text.
  static void expect_noticed(const RunResult& result, int who) {
    result.expect_no_failures();
    const Outcome& gone = result.ranks[static_cast<size_t>(who)];
    EXPECT_EQ(gone.died, GetParam().processes);
    for (size_t r = 0; r < result.ranks.size(); ++r) {
      if (static_cast<int>(r) == who) continue;
      SCOPED_TRACE(message("rank ", r));
      const Outcome& rank = result.ranks[r];
      EXPECT_FALSE(rank.died);
      EXPECT_EQ(rank.error, ErrorCode::kUnavailable) << rank.error_text;
      EXPECT_TRUE(contains(rank.error_text, rank_name(who) + " is gone")) << rank.error_text;
      EXPECT_TRUE(contains(rank.error_text, "\"dense/weight\"")) << rank.error_text;
    }
  }

  static void run_deaths(const Scenario& scenario) {
    for (const int size : {2, 4}) {
      for (const int who : {0, size - 1}) {
        SCOPED_TRACE(message("rank ", who, " of ", size));
        expect_noticed(run_ranks(GetParam(), size, scenario, {.argument = std::to_string(who)}),
                       who);
      }
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, LaneFailures, ::testing::ValuesIn(transfer_backends()),
                         parameter_name);

TEST_P(LaneFailures, WakesAllRanksWithTheTextOfAnAbort) {
  for (const int size : {2, 3, 5}) {
    SCOPED_TRACE(message(size, " ranks"));
    const RunResult result = run_ranks(GetParam(), size, kAbort);
    result.expect_no_failures();
    for (const Outcome& rank : result.ranks) {
      EXPECT_EQ(rank.error, ErrorCode::kCancelled) << rank.error_text;
      EXPECT_EQ(rank.error_text, "replica 3 threw: the loss is not finite");
    }
  }
}

TEST_P(LaneFailures, DetectsADeathInAReduction) { run_deaths(kDieInReduction); }
TEST_P(LaneFailures, DetectsADeathInAnAllGather) { run_deaths(kDieInGather); }
TEST_P(LaneFailures, DetectsADeathBeforeABarrier) { run_deaths(kDieInBarrier); }

TEST_P(LaneFailures, DetectsADeathDespiteUnreadMessages) {
  // Between machines a message counts as sent once the network has it.
  if (GetParam().name.rfind("Grpc", 0) == 0) return;
  const RunResult result = run_ranks(GetParam(), 2, kDieWithMessages);
  expect_noticed(result, 1);
}

TEST_P(LaneFailures, LetsARankLeaveAfterTheLastOperation) {
  for (const int size : {2, 4}) {
    for (const char* last : {"small", "large"}) {
      SCOPED_TRACE(message(size, " ranks, ", last));
      const RunResult result = run_ranks(GetParam(), size, kLeave, {.argument = last});
      result.expect_no_failures();
      for (int r = 1; r < size; ++r) {
        const Outcome& rank = result.ranks[static_cast<size_t>(r)];
        EXPECT_FALSE(rank.error.has_value()) << rank.error_text;
      }
    }
  }
}

TEST_P(LaneFailures, LetsAReaderLeaveImmediately) {
  for (int i = 0; i < 300; ++i) {
    run_ranks(GetParam(), 2, kLastRead).expect_success();
    if (HasFailure()) break;
  }
}

TEST_P(LaneFailures, DetectsARankThatLeftInTheNextOperation) {
  run_ranks(GetParam(), 2, kReadLate).expect_no_failures();
}

TEST_P(LaneFailures, EndsTheGroupWhenATransferIsDropped) {
  for (const int size : {2, 3, 4}) {
    const RunResult result = run_ranks(GetParam(), size, kDrop);
    result.expect_no_failures();
    for (const Outcome& rank : result.ranks) {
      EXPECT_EQ(rank.error, ErrorCode::kCancelled) << rank.error_text;
      EXPECT_TRUE(contains(rank.error_text, rank_name(1) + " dropped all_gather"))
          << rank.error_text;
      EXPECT_TRUE(contains(rank.error_text, "\"dropped\"")) << rank.error_text;
    }
  }
}

TEST_P(LaneFailures, TellsAllRanksTheCodeOfAnErrorInsideATransfer) {
  for (const int size : {2, 3}) {
    SCOPED_TRACE(message(size, " ranks"));
    const RunResult result = run_ranks(GetParam(), size, kThrowInside);
    result.expect_no_failures();
    for (size_t r = 0; r < result.ranks.size(); ++r) {
      SCOPED_TRACE(message("rank ", r));
      const Outcome& rank = result.ranks[r];
      EXPECT_EQ(rank.error, ErrorCode::kDataLoss) << rank.error_text;
      EXPECT_TRUE(contains(rank.error_text, "there is no room for it.")) << rank.error_text;
      if (r == 1) continue;
      EXPECT_TRUE(contains(rank.error_text, rank_name(1) + " failed in all_gather"))
          << rank.error_text;
    }
  }
}

TEST_P(LaneFailures, NamesTheMissingRankAtADeadline) {
  for (const char* how : {"wait", "advance"}) {
    for (const int size : {2, 4}) {
      const RunResult result = run_ranks(GetParam(), size, kDeadline, {.argument = how});
      for (const Outcome& rank : result.ranks) {
        EXPECT_EQ(rank.error, ErrorCode::kUnavailable) << rank.error_text;
        EXPECT_TRUE(contains(rank.error_text, rank_name(0) + " did not join barrier \"late\""))
            << rank.error_text;
        EXPECT_TRUE(contains(rank.error_text, "in step 17")) << rank.error_text;
      }
    }
  }
}

}  // namespace failures
}  // namespace tutti::group_tests
