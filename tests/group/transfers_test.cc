// SPDX-License-Identifier: Apache-2.0
//
// What a lane promises about bytes: all of them arrive, in order, whatever their number and
// wherever they lie.

#include <algorithm>
#include <cstring>
#include <deque>
#include <random>
#include <thread>

#include <gtest/gtest.h>

#include "tests/group/rank_runs.h"

namespace tutti::group_tests {
namespace transfers {

constexpr size_t kKilo = 1024;
constexpr size_t kMega = 1024 * kKilo;
const std::vector<size_t> kSizes = {
    0,      1,      15,     16,        17,    64,        4 * kKilo, 16383,     16384,        16385,
    262143, 262144, 262145, kMega - 1, kMega, kMega + 1, 5 * kMega, 4 * kMega, 4 * kMega + 1};

// Bytes that depend on sender, receiver and round: a window into random ones.
std::span<const std::byte> pattern(size_t size, int from, int to, int round) {
  static const std::vector<std::byte> random = [] {
    std::vector<std::byte> bytes(7 * kMega);
    std::mt19937_64 engine(5);
    for (size_t i = 0; i + 8 <= bytes.size(); i += 8) {
      const uint64_t word = engine();
      std::memcpy(bytes.data() + i, &word, 8);
    }
    return bytes;
  }();
  const auto start = static_cast<size_t>((from * 8 + to) * 4099 + (round % 64) * 12289);
  return std::span(random).subspan(start, size);
}

// Memory of a rank: private, or memory that others may read directly.
class Memory {
 public:
  Memory(Rank& rank, bool in_arena) : rank_(rank), in_arena_(in_arena) {}

  std::span<std::byte> take(size_t size) {
    if (in_arena_) {
      tensors_.push_back(rank_.group().arena()->empty({static_cast<int64_t>(size)}, at::kByte));
      auto* const data = static_cast<std::byte*>(tensors_.back().data_ptr());
      if (size > 0) std::memset(data, 0xee, size);
      return {data, size};
    }
    heap_.emplace_back(size, std::byte{0xee});
    return heap_.back();
  }
  std::span<std::byte> take(std::span<const std::byte> contents) {
    const std::span<std::byte> bytes = take(contents.size());
    if (!contents.empty()) std::memcpy(bytes.data(), contents.data(), contents.size());
    return bytes;
  }

 private:
  Rank& rank_;
  bool in_arena_;
  std::vector<at::Tensor> tensors_;
  std::deque<std::vector<std::byte>> heap_;
};

bool equal(std::span<const std::byte> got, std::span<const std::byte> expected) {
  if (got.size() != expected.size()) return false;
  return got.empty() || std::memcmp(got.data(), expected.data(), got.size()) == 0;
}

std::vector<size_t> sizes_for(const Rank& rank) {
  std::vector<size_t> sizes = kSizes;
  // Large messages show nothing new with many ranks.
  if (rank.size() > 3) std::erase_if(sizes, [](size_t each) { return each > kMega + 1; });
  return sizes;
}

template <class Body>
void for_sizes_and_memories(Rank& rank, const Body& body) {
  int round = 0;
  for (const bool in_arena : {false, true}) {
    for (const size_t size : sizes_for(rank)) {
      Memory memory(rank, in_arena);
      body(memory, size, round++);
    }
  }
}

std::string place_of(const char* what, size_t size, int from, int round) {
  return message(what, " of ", size, " bytes from rank ", from, " in round ", round);
}

const Scenario kExchange("Exchange", [](Rank& rank) {
  for_sizes_and_memories(rank, [&](Memory& memory, size_t size, int round) {
    std::vector<Lane::Outgoing> outgoing;
    std::vector<Lane::Expected> expected;
    for (int r = 0; r < rank.size(); ++r) {
      if (r == rank.index()) continue;
      // Every pair has a different size.
      const size_t extra = static_cast<size_t>(r + rank.index());
      outgoing.push_back({r, memory.take(pattern(size + extra, rank.index(), r, round))});
      expected.push_back({r, memory.take(size + extra)});
    }
    Lane& lane = rank.lane();
    const Operation operation{.name = "all to all"};
    lane.exchange(operation, outgoing, expected, lane.deadline())->wait();
    for (const auto& each : expected) {
      rank.expect(equal(each.bytes, pattern(each.bytes.size(), each.rank, rank.index(), round)),
                  place_of("exchange", each.bytes.size(), each.rank, round));
    }
  });
});

// Some ranks send to one neighbour only.
const Scenario kRing("Ring", [](Rank& rank) {
  const int right = (rank.index() + 1) % rank.size();
  const int left = (rank.index() + rank.size() - 1) % rank.size();
  for_sizes_and_memories(rank, [&](Memory& memory, size_t size, int round) {
    const auto mine = memory.take(pattern(size, rank.index(), right, round));
    const auto theirs = memory.take(size);
    Lane& lane = rank.lane();
    lane.exchange({.name = "ring"}, {{right, mine}}, {{left, theirs}}, lane.deadline())->wait();
    rank.expect(equal(theirs, pattern(size, left, rank.index(), round)),
                place_of("ring", size, left, round));
  });
});

const Scenario kAllGather("AllGather", [](Rank& rank) {
  for_sizes_and_memories(rank, [&](Memory& memory, size_t size, int round) {
    // Sizes are uneven; in every third round all but one rank have nothing.
    const auto size_of = [&](int r) {
      if (round % 3 == 2) return r == round % rank.size() ? size : size_t{0};
      return size + static_cast<size_t>(r * 5);
    };
    const auto mine = memory.take(pattern(size_of(rank.index()), rank.index(), 0, round));
    std::vector<std::span<std::byte>> places(static_cast<size_t>(rank.size()));
    std::vector<int> asked(static_cast<size_t>(rank.size()));
    const auto place = [&](int r, size_t bytes) {
      ++asked[static_cast<size_t>(r)];
      return places[static_cast<size_t>(r)] = memory.take(bytes);
    };
    Lane& lane = rank.lane();
    lane.all_gather({.name = "gathered"}, mine, place, lane.deadline())->wait();
    for (int r = 0; r < rank.size(); ++r) {
      rank.expect(equal(places[static_cast<size_t>(r)], pattern(size_of(r), r, 0, round)),
                  place_of("all_gather", size_of(r), r, round));
      rank.expect(asked[static_cast<size_t>(r)] == 1, "a place is asked for once");
    }
  });
});

const Scenario kBroadcast("Broadcast", [](Rank& rank) {
  for_sizes_and_memories(rank, [&](Memory& memory, size_t size, int round) {
    for (int root = 0; root < rank.size(); ++root) {
      const auto bytes =
          rank.index() == root ? memory.take(pattern(size, root, 1, round)) : memory.take(size);
      Lane& lane = rank.lane();
      lane.broadcast({.name = "initial"}, root, bytes, lane.deadline())->wait();
      rank.expect(equal(bytes, pattern(size, root, 1, round)),
                  place_of("broadcast", size, root, round));
    }
  });
});

// Rank 0 sends to every rank, and each sends back what it got.
const Scenario kSendReceive("SendReceive", [](Rank& rank) {
  for_sizes_and_memories(rank, [&](Memory& memory, size_t size, int round) {
    Lane& lane = rank.lane();
    for (int peer = 1; peer < rank.size(); ++peer) {
      if (rank.index() == 0) {
        const auto mine = memory.take(pattern(size, 0, peer, round));
        const auto back = memory.take(size);
        send(lane, {.name = "there"}, peer, mine)->wait();
        // The memory is the caller's again.
        if (!mine.empty()) std::memset(mine.data(), 0, mine.size());
        receive(lane, {.name = "back"}, peer, back)->wait();
        rank.expect(equal(back, pattern(size, 0, peer, round)),
                    place_of("what came back", size, peer, round));
      } else if (rank.index() == peer) {
        const auto got = memory.take(size);
        receive(lane, {.name = "there"}, 0, got)->wait();
        rank.expect(equal(got, pattern(size, 0, peer, round)), place_of("send", size, 0, round));
        send(lane, {.name = "back"}, 0, got)->wait();
      }
    }
  });
});

// A barrier is done only when every rank has begun it, which a counter of begun ones shows.
const Scenario kBarrier("Barrier", [](Rank& rank) {
  Lane& lane = rank.lane();
  for (int round = 0; round < 50; ++round) {
    const int64_t begun = steady_now();
    lane.barrier({.name = "barrier"}, lane.deadline())->wait();
    const int64_t done = steady_now();
    std::vector<int64_t> all(static_cast<size_t>(rank.size()));
    const auto place = [&](int r, size_t) {
      return std::as_writable_bytes(std::span(all).subspan(static_cast<size_t>(r), 1));
    };
    lane.all_gather({.name = "times"}, std::as_bytes(std::span(&begun, 1)), place, lane.deadline())
        ->wait();
    rank.expect(*std::max_element(all.begin(), all.end()) <= done, "a barrier ended too early");
  }
});

const Scenario kManySmall("ManySmall", [](Rank& rank) {
  Lane& lane = rank.lane();
  const uint64_t before = lane.operations();
  // Each rank sends to each other one: as many messages per rank in every group.
  const uint64_t operations = 1500 / static_cast<uint64_t>(rank.size());
  for (uint64_t i = 0; i < operations; ++i) {
    const uint64_t mine = i * 100 + static_cast<uint64_t>(rank.index());
    std::vector<uint64_t> all(static_cast<size_t>(rank.size()));
    const auto place = [&](int r, size_t) {
      return std::as_writable_bytes(std::span(all).subspan(static_cast<size_t>(r), 1));
    };
    lane.all_gather({.name = "small"}, std::as_bytes(std::span(&mine, 1)), place, lane.deadline())
        ->wait();
    for (size_t r = 0; r < all.size(); ++r) {
      rank.expect(all[r] == i * 100 + r, message("operation ", i, " of rank ", r));
    }
  }
  rank.expect(lane.operations() == before + operations, "operations are counted");
});

// A sender may be ahead of the receiver by as much as there is room for; nothing overtakes.
const Scenario kOrder("Order", [](Rank& rank) {
  Lane& lane = rank.lane();
  const int last = rank.size() - 1;
  for (int i = 0; i < 200; ++i) {
    const auto size = static_cast<size_t>((i * 37) % 600 * (i % 7 == 0 ? 100 : 1));
    const std::string name = message("message ", i);
    if (rank.index() == 0) {
      const auto bytes = pattern(size, 0, last, i);
      send(lane, {.name = name}, last, bytes)->wait();
    } else if (rank.index() == last) {
      std::vector<std::byte> got(size);
      receive(lane, {.name = name}, 0, got)->wait();
      rank.expect(equal(got, pattern(size, 0, last, i)), name);
    }
  }
});

void gather_rounds(Rank& rank, LaneKind which, int rounds) {
  Lane& lane = rank.lane(which);
  Memory memory(rank, which == LaneKind::kGradients);
  const size_t size = which == LaneKind::kGradients ? 300'000 : 500;
  const int salt = static_cast<int>(which);
  const auto mine = memory.take(pattern(size, rank.index(), salt, 0));
  std::vector<std::span<std::byte>> places;
  for (int r = 0; r < rank.size(); ++r) places.push_back(memory.take(size));
  for (int i = 0; i < rounds; ++i) {
    const auto place = [&](int r, size_t) { return places[static_cast<size_t>(r)]; };
    lane.all_gather({.name = "lane"}, mine, place, lane.deadline())->wait();
    for (int r = 0; r < rank.size(); ++r) {
      auto& got = places[static_cast<size_t>(r)];
      if (!equal(got, pattern(size, r, salt, 0))) {
        throw Error(ErrorCode::kDataLoss, message("wrong bytes on lane ", salt));
      }
      std::memset(got.data(), 0, got.size());
    }
  }
}

const Scenario kChannels("Lanes", [](Rank& rank) {
  constexpr std::array kAll = {LaneKind::kCollectives, LaneKind::kGradients, LaneKind::kInput};
  std::array<std::exception_ptr, kAll.size()> errors;
  std::vector<std::thread> threads;
  for (size_t i = 0; i < kAll.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        // The order and number differ on each rank.
        gather_rounds(rank, kAll[i], 40 + 40 * static_cast<int>(i));
      } catch (...) {
        errors[i] = std::current_exception();
      }
    });
  }
  for (std::thread& each : threads) each.join();
  for (const std::exception_ptr& each : errors) {
    if (each != nullptr) std::rethrow_exception(each);
  }
});

// One thread advances operations of three lanes, and waits for none.
const Scenario kFutures("Futures", [](Rank& rank) {
  constexpr size_t kSize = 3 * kMega + 5;
  std::vector<std::unique_ptr<Transfer>> transfers;
  Memory memory(rank, false);
  std::vector<std::vector<std::span<std::byte>>> places(kLanes);
  for (size_t c = 0; c < kLanes; ++c) {
    // Ranks begin them in different orders.
    const size_t which = (c + static_cast<size_t>(rank.index())) % kLanes;
    const int salt = static_cast<int>(which);
    Lane& lane = rank.lane(static_cast<LaneKind>(which));
    places[which].resize(static_cast<size_t>(rank.size()));
    const auto place = [&memory, &slots = places[which]](int r, size_t bytes) {
      return slots[static_cast<size_t>(r)] = memory.take(bytes);
    };
    transfers.push_back(lane.all_gather({.name = "future"},
                                        memory.take(pattern(kSize, rank.index(), salt, 0)), place,
                                        lane.deadline()));
  }
  size_t done = 0;
  while (done < transfers.size()) {
    done = 0;
    for (const auto& each : transfers) done += each->advance() ? 1 : 0;
    std::this_thread::yield();
  }
  for (const auto& each : transfers) {
    rank.expect(each->advance(), "what is done stays done");
    each->wait();
  }
  for (size_t c = 0; c < kLanes; ++c) {
    for (int r = 0; r < rank.size(); ++r) {
      rank.expect(
          equal(places[c][static_cast<size_t>(r)], pattern(kSize, r, static_cast<int>(c), 0)),
          message("lane ", c, " from rank ", r));
    }
  }
});

const Scenario kRulesOfUse("RulesOfUse", [](Rank& rank) {
  Lane& lane = rank.lane();
  std::vector<std::byte> bytes(4);
  const auto refused = [&](ErrorCode code, const char* part, auto&& call) {
    try {
      call();
      rank.expect(false, message("not refused: ", part));
    } catch (const Error& error) {
      rank.expect(error.code() == code, error.what());
      rank.expect(std::string(error.what()).find(part) != std::string::npos, error.what());
    }
  };
  refused(ErrorCode::kInvalidArgument, "there is no rank 9",
          [&] { lane.broadcast({.name = "x"}, 9, bytes, lane.deadline()); });
  refused(ErrorCode::kInvalidArgument, "cannot exchange bytes with rank -1",
          [&] { send(lane, {.name = "x"}, -1, bytes); });
  refused(ErrorCode::kInvalidArgument, message("with rank ", rank.index(), " of").c_str(),
          [&] { receive(lane, {.name = "x"}, rank.index(), bytes); });
  // A second operation begins while one is under way; the first is not affected.
  const auto first = lane.barrier({.name = "first"}, lane.deadline());
  refused(ErrorCode::kFailedPrecondition, "is still under way",
          [&] { lane.barrier({.name = "second"}, lane.deadline()); });
  first->wait();
  rank.meet();
});

class LaneTransfers : public ::testing::TestWithParam<Backend> {
 protected:
  static void run(const Scenario& scenario, std::initializer_list<int> sizes) {
    for (const int size : sizes) {
      SCOPED_TRACE(message(size, " ranks"));
      run_ranks(GetParam(), size, scenario).expect_success();
    }
  }
};
INSTANTIATE_TEST_SUITE_P(Backends, LaneTransfers, ::testing::ValuesIn(transfer_backends()),
                         parameter_name);

TEST_P(LaneTransfers, ExchangesAmongAllRanks) { run(kExchange, {1, 2, 3, 4, 5}); }
TEST_P(LaneTransfers, ExchangesInARing) { run(kRing, {2, 3, 5}); }
TEST_P(LaneTransfers, AllGathersUnevenAndEmptySizes) { run(kAllGather, {1, 2, 3, 4, 5}); }
TEST_P(LaneTransfers, BroadcastsFromEachRoot) { run(kBroadcast, {1, 2, 3, 4, 5}); }
TEST_P(LaneTransfers, SendsAndReceives) { run(kSendReceive, {2, 3}); }
TEST_P(LaneTransfers, WaitsForAllRanksInABarrier) { run(kBarrier, {1, 2, 3, 5}); }
TEST_P(LaneTransfers, RunsManySmallOperations) { run(kManySmall, {1, 2, 3, 5}); }
TEST_P(LaneTransfers, KeepsMessagesInOrder) { run(kOrder, {2, 4}); }
TEST_P(LaneTransfers, KeepsLanesIndependent) { run(kChannels, {2, 3}); }
TEST_P(LaneTransfers, AdvancesSeveralTransfersFromOneThread) { run(kFutures, {1, 2, 3}); }
TEST_P(LaneTransfers, RefusesWrongUseWithoutHarm) { run(kRulesOfUse, {1, 2}); }

}  // namespace transfers
}  // namespace tutti::group_tests
