// SPDX-License-Identifier: Apache-2.0
//
// A group of one, which is legal and silent, and how ranks without links exchange texts.

#include "tutti/group/worker_group.h"

#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ops/full.h>
#include <gtest/gtest.h>

#include "tutti/group/text_gather.h"

#include "tests/support/expect_error.h"

namespace tutti::worker_group_test {

std::string never() { throw std::logic_error("a group of one has nobody to tell"); }

TEST(GroupOfOne, ReturnsWhatItWasGiven) {
  const auto group = WorkerGroup::alone();
  EXPECT_EQ(group->rank(), 0);
  EXPECT_EQ(group->size(), 1);
  EXPECT_EQ(group->place(), "");
  const at::Tensor mine = at::full({3}, 7);
  EXPECT_TRUE(group->gather(mine, "x").at(0).is_same(mine));
  EXPECT_TRUE(group->of_first(mine, "x").is_same(mine));
  group->broadcast(mine, "x");
  EXPECT_EQ(mine[1].item<int64_t>(), 7);
  EXPECT_EQ(group->concatenate(std::vector<double>{1.5, 2}, never), (std::vector<double>{1.5, 2}));
  EXPECT_EQ(group->agree([]() -> uint64_t { throw std::logic_error("asked"); }, "x"), std::nullopt);
  group->barrier("x");
  const InputTotals totals = group->add_up(
      {.pass = 4, .step = 2, .local_replicas_with_data = 3, .local_rows = 11, .stop = true});
  EXPECT_EQ(totals.replicas_with_data, 3);
  EXPECT_EQ(totals.rows, 11);
  EXPECT_TRUE(totals.stop);
  EXPECT_EQ(group->lane(LaneKind::kCollectives).operations(), 0U) << "it exchanges nothing";
}

TEST(GroupOfOne, GoesOnAfterAnAbort) {
  const auto group = WorkerGroup::alone();
  EXPECT_FALSE(group->abort(ErrorCode::kCancelled, "a replica failed"));
  EXPECT_FALSE(group->aborted());
  EXPECT_NO_THROW(group->check());
}

TEST(GroupOfOne, CountsPassesAfterARestoredOne) {
  const auto group = WorkerGroup::alone();
  EXPECT_EQ(group->begin_input_pass(), 0);
  group->go_on_after_input_pass(6);
  EXPECT_EQ(group->begin_input_pass(), 7);
  group->go_on_after_input_pass(2);  // never back
  EXPECT_EQ(group->begin_input_pass(), 8);
}

TEST(TextGather, GivesEveryRankTheTextsOfEachRound) {
  TextGather texts("test", {"a", "b"});
  const auto deadline = [] { return Deadline::after(std::chrono::seconds(20)); };
  std::thread other([&] {
    for (int round = 0; round < 20; ++round) {
      const std::string mine = "b" + std::to_string(round);
      EXPECT_EQ(texts.gather(1, mine, deadline()),
                (TextGather::Texts{"a" + std::to_string(round), mine}));
    }
  });
  for (int round = 0; round < 20; ++round) {
    const std::string mine = "a" + std::to_string(round);
    EXPECT_EQ(texts.gather(0, mine, deadline()),
              (TextGather::Texts{mine, "b" + std::to_string(round)}));
  }
  other.join();
}

TEST(TextGather, NamesTheRanksThatAreMissing) {
  TextGather texts("test", {"a", "b", "c"}, "Start them.");
  texts.put(1, 1, "here", nullptr);
  EXPECT_TUTTI_ERROR(texts.gather(0, "mine", Deadline::after(std::chrono::milliseconds(50))),
                     ErrorCode::kDeadlineExceeded, "test: did not hear from c", "Start them.");
  texts.fail();
  EXPECT_EQ(texts.gather(2, "late", Deadline::after(std::chrono::seconds(20))),
            (TextGather::Texts{"mine", "here", "late"}))
      << "a complete round is handed out";
  EXPECT_TUTTI_ERROR(texts.gather(0, "next", Deadline::after(std::chrono::seconds(20))),
                     ErrorCode::kCancelled, "a cannot be connected");
}

}  // namespace tutti::worker_group_test
