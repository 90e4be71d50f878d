// SPDX-License-Identifier: Apache-2.0
//
// What workers, as threads with two replicas each, tell each other beside the gradients of a step.

#include "tutti/group/step_note.h"

#include <array>
#include <atomic>
#include <barrier>
#include <exception>
#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"
#include "tests/support/thread_ranks.h"

namespace tutti::step_note_test {

constexpr size_t kLocal = 2;

std::vector<uint8_t> list(std::span<const uint8_t> flags) { return {flags.begin(), flags.end()}; }

// Calls fn(replica) on a thread for each local replica; rethrows what the first has thrown.
void on_replicas(const std::function<void(size_t)>& fn) {
  std::vector<std::exception_ptr> errors(kLocal);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < kLocal; ++r) {
    threads.emplace_back([&, r] {
      try {
        fn(r);
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (std::thread& each : threads) each.join();
  for (const std::exception_ptr& each : errors) {
    if (each != nullptr) std::rethrow_exception(each);
  }
}

void run_workers(int workers, const std::function<void(WorkerGroup&)>& fn) {
  for (const std::exception_ptr& each : testing::run_thread_ranks(workers, fn)) {
    if (each != nullptr) std::rethrow_exception(each);
  }
}

TEST(StepNote, IsSilentInAGroupOfOne) {
  const auto group = WorkerGroup::alone();
  StepNote note(*group, 1, std::nullopt);
  note.set_num_flags(4);
  EXPECT_TRUE(note.flags().empty());
  note.state([](std::vector<double>&) { ADD_FAILURE() << "nobody reads it"; });
  note.attach([](std::vector<std::byte>&) { ADD_FAILURE() << "nobody reads it"; });
  int calls = 0;
  note.exchange(0, [&] { ++calls; });
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(note.flags_of_all().empty());
  EXPECT_FALSE(note.disagreement().has_value());
  EXPECT_TRUE(note.attachments().empty());
  note.exchange_dropped();
  EXPECT_EQ(group->lane(LaneKind::kFlags).operations(), 0U);
}

TEST(StepNote, CarriesFlagsStatementsAndAttachments) {
  run_workers(3, [&](WorkerGroup& group) {
    StepNote note(group, kLocal, std::nullopt);
    note.set_num_flags(7);
    const auto rank = static_cast<size_t>(group.rank());
    std::barrier all_here(kLocal);
    for (size_t step = 0; step < 4; ++step) {
      on_replicas([&](size_t r) {
        // In step 3 nobody has the flags of the second replicas.
        if (r == 0 || step < 3) {
          std::atomic_ref<uint8_t>(note.flags()[2 * rank + r]).store(1, std::memory_order_relaxed);
        }
        if (r == 0) {
          // In step 2 worker 1 states a different number from the others.
          note.state([&](std::vector<double>& numbers) {
            numbers = {1.5, step == 2 && rank == 1 ? 7.0 : 8.0, 0.25};
          });
          note.attach([&](std::vector<std::byte>& bytes) {
            bytes.assign(10 + rank, std::byte(rank + step));
          });
        }
        all_here.arrive_and_wait();
        int calls = 0;
        note.exchange(r, [&] { ++calls; });
        EXPECT_EQ(calls, 1);
        const uint8_t second = step < 3 ? 1 : 0;
        EXPECT_EQ(list(note.flags_of_all()),
                  (std::vector<uint8_t>{1, second, 1, second, 1, second, 0}));
        const auto attachments = note.attachments();
        ASSERT_EQ(attachments.size(), 3U);
        for (size_t w = 0; w < 3; ++w) {
          EXPECT_EQ(attachments[w].size(), 10 + w);
          EXPECT_EQ(attachments[w][9], std::byte(w + step));
        }
        const auto& difference = note.disagreement();
        ASSERT_EQ(difference.has_value(), step == 2);
        if (!difference) return;
        EXPECT_EQ(difference->number, 1U);
        EXPECT_EQ(difference->values, (std::array<double, 2>{8.0, 7.0}));
        EXPECT_EQ(difference->workers, (std::array<std::string, 2>{group.name(0), group.name(1)}));
      });
      EXPECT_EQ(group.lane(LaneKind::kFlags).operations(), step + 1) << "one note for each step";
    }
  });
}

TEST(StepNote, TellsStatementsOfDifferentLengthsApart) {
  run_workers(2, [&](WorkerGroup& group) {
    StepNote note(group, 1, std::nullopt);
    note.state([&](std::vector<double>& numbers) {
      numbers.assign(3 + static_cast<size_t>(group.rank()), 0.5);
    });
    note.exchange(0, [] {});
    ASSERT_TRUE(note.disagreement().has_value());
    EXPECT_TRUE(note.disagreement()->is_count);
    EXPECT_EQ(note.disagreement()->number, 3U);
    EXPECT_EQ(note.disagreement()->values, (std::array<double, 2>{3, 4}));
  });
}

TEST(StepNote, DiffersFromThatOfADroppedStep) {
  const auto errors = testing::run_thread_ranks(2, [&](WorkerGroup& group) {
    StepNote note(group, 1, std::nullopt);
    if (group.rank() == 0) {
      note.exchange(0, [] {});
    } else {
      note.exchange_dropped();
    }
  });
  for (const std::exception_ptr& each : errors) {
    ASSERT_NE(each, nullptr);
    EXPECT_TUTTI_ERROR(std::rethrow_exception(each), ErrorCode::kInvalidArgument, "flags of a step",
                       "dropped", "/job:worker/task:1");
  }
}

// A failure on the replica that exchanges the note reaches those that wait for it.
TEST(StepNote, FailsOnAllReplicas) {
  const auto errors = testing::run_thread_ranks(2, [&](WorkerGroup& group) {
    StepNote note(group, kLocal, std::nullopt);
    const bool fails = group.rank() == 1;
    std::atomic<size_t> failures{0};
    const auto exchange = [&](size_t r) {
      try {
        note.exchange(r, [&] {
          if (fails && r == 0) throw std::runtime_error("no sums");
        });
      } catch (const std::exception&) {
        ++failures;
      }
    };
    on_replicas(exchange);
    // The note may have reached the other worker before.
    EXPECT_TRUE(failures == kLocal || (failures == 0 && !fails)) << failures;
  });
  for (const std::exception_ptr& each : errors) EXPECT_EQ(each, nullptr);
}

}  // namespace tutti::step_note_test
