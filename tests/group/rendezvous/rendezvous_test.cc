// SPDX-License-Identifier: Apache-2.0
//
// Processes that find each other, run as threads with a listener each.

#include "tutti/group/rendezvous/rendezvous.h"

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tests/rpc/rpc_fixture.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_capture.h"

namespace tutti::rpc::rendezvous_test {

using namespace tutti::rpc::test;  // NOLINT
using std::chrono::milliseconds;

/// One rank: a listener and what rendezvous() gave or threw.
struct Rank {
  std::unique_ptr<Listener> listener = std::make_unique<Listener>(listener_options());
  Membership result;
  std::exception_ptr error;
};

using Change = std::function<void(RendezvousOptions&)>;

struct Job {
  explicit Job(int world) : ranks(static_cast<size_t>(world)) {}

  std::vector<std::string> addresses(size_t known_by) const {
    std::vector<std::string> list(ranks.size());
    list[0] = ranks[0].listener->address();
    list[known_by] = ranks[known_by].listener->address();
    return list;
  }
  /// Runs one rank to its end.
  void run(size_t rank, const Change& change = {}) {
    RendezvousOptions options{.listener = *ranks[rank].listener,
                              .rank = static_cast<int>(rank),
                              .addresses = addresses(rank),
                              .job = "train",
                              .facts = {{"version", "1"}},
                              .info = {{"threads", std::to_string(rank)}},
                              .timeout = std::chrono::seconds(20),
                              .report_interval = milliseconds(100),
                              .channel = channel_options()};
    if (change) change(options);
    try {
      ranks[rank].result = rendezvous(options);
    } catch (...) {
      ranks[rank].error = std::current_exception();
    }
  }
  void run_all(const std::vector<size_t>& order, const std::function<Change(size_t)>& change = {}) {
    std::vector<std::thread> threads;
    for (const size_t rank : order) {
      threads.emplace_back([this, rank, change] { run(rank, change ? change(rank) : Change{}); });
    }
    for (std::thread& thread : threads) thread.join();
  }
  void expect_error(size_t rank, ErrorCode code, const std::vector<std::string>& parts) {
    ASSERT_NE(ranks[rank].error, nullptr) << rank;
    try {
      std::rethrow_exception(ranks[rank].error);
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), code) << rank << ": " << error.what();
      for (const std::string& part : parts) {
        EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
            << rank << ": " << part << " is not in: " << error.what();
      }
    }
  }

  std::vector<Rank> ranks;
};

TEST(Rendezvous, AllRanksLeaveWithTheSameEpochAddressesAndInfo) {
  Job job(4);
  job.run_all({0, 1, 2, 3});
  for (const Rank& rank : job.ranks) {
    ASSERT_EQ(what_of(rank.error), "");
    EXPECT_NE(rank.result.epoch, 0u);
    EXPECT_EQ(rank.result.epoch, job.ranks[0].result.epoch);
    ASSERT_EQ(rank.result.addresses.size(), 4u);
    for (size_t i = 0; i < 4; ++i) {
      EXPECT_EQ(rank.result.addresses[i], job.ranks[i].listener->address());
      EXPECT_EQ(rank.result.info[i].at("threads"), std::to_string(i));
    }
  }
}

TEST(Rendezvous, OneRankNeedsNoOther) {
  Job job(1);
  job.run(0);
  EXPECT_EQ(what_of(job.ranks[0].error), "");
  EXPECT_EQ(job.ranks[0].result.addresses.size(), 1u);
}

TEST(Rendezvous, RankZeroMayJoinLast) {
  tutti::test::LogCapture log;
  Job job(3);
  std::vector<std::thread> threads;
  for (const size_t rank : {1, 2}) threads.emplace_back([&job, rank] { job.run(rank); });
  ASSERT_TRUE(eventually([&] { return log.count("waiting for worker 0 of 3 (127.0.0.1:") >= 2; }));
  job.run(0);
  for (std::thread& thread : threads) thread.join();
  for (const Rank& rank : job.ranks) EXPECT_EQ(what_of(rank.error), "");
}

TEST(Rendezvous, EveryRankLogsWhichOnesItWaitsFor) {
  tutti::test::LogCapture log;
  Job job(3);
  std::vector<std::thread> threads;
  for (const size_t rank : {0, 1}) threads.emplace_back([&job, rank] { job.run(rank); });
  EXPECT_TRUE(eventually([&] { return log.count("job train: waiting for worker 2 of 3") >= 4; }));
  job.run(2);
  for (std::thread& thread : threads) thread.join();
  for (const Rank& rank : job.ranks) EXPECT_EQ(what_of(rank.error), "");
  EXPECT_EQ(log.count(kSecret), 0);
}

TEST(Rendezvous, ReportsDifferentFactsOnEveryRank) {
  Job job(3);
  job.run_all({0, 1, 2}, [](size_t rank) -> Change {
    return [rank](RendezvousOptions& options) {
      if (rank == 2) options.facts["version"] = "2\n";
    };
  });
  for (size_t rank = 0; rank < 3; ++rank) {
    job.expect_error(rank, ErrorCode::kFailedPrecondition,
                     {"version is \"1\" at worker 0 (127.0.0.1:", "but \"2\\x0a\" at worker 2"});
  }
}

TEST(Rendezvous, TreatsAMissingFactAndADifferentWorldAsDifferences) {
  Job job(2);
  job.run_all({0, 1}, [](size_t rank) -> Change {
    return [rank](RendezvousOptions& options) {
      if (rank == 1) options.facts.clear();
    };
  });
  job.expect_error(1, ErrorCode::kFailedPrecondition,
                   {"version is \"1\"", "but not set at worker 1"});
  Job other(2);
  other.run_all({0, 1}, [](size_t rank) -> Change {
    return [rank](RendezvousOptions& options) {
      if (rank == 1) options.addresses.push_back("");
    };
  });
  other.expect_error(0, ErrorCode::kFailedPrecondition,
                     {"number of workers is \"2\" at worker 0", "but \"3\" at worker 1"});
}

TEST(Rendezvous, TreatsAFactThatOnlyANewcomerHasAsADifference) {
  Job job(2);
  job.run_all({0, 1}, [](size_t rank) -> Change {
    return [rank](RendezvousOptions& options) {
      if (rank == 1) options.facts["compression"] = "on";
    };
  });
  for (const size_t rank : {0, 1}) {
    job.expect_error(rank, ErrorCode::kFailedPrecondition,
                     {"compression is not set at worker 0 (127.0.0.1:", "but \"on\" at worker 1"});
  }
}

TEST(Rendezvous, NamesAMissingWorkerOnEveryRank) {
  Job job(3);
  job.run_all({0, 1}, [](size_t) -> Change {
    return [](RendezvousOptions& options) { options.timeout = milliseconds(300); };
  });
  for (const size_t rank : {0, 1}) {
    job.expect_error(
        rank, ErrorCode::kDeadlineExceeded,
        {"worker 2 of 3", "did not join within 0.3 s", job.ranks[0].listener->address(),
         "No process was refused", "Raise the timeout"});
  }
}

TEST(Rendezvous, SaysWhyAMissingWorkerWasRefused) {
  Job by_secret(2);
  Job by_job(2);
  for (Job* const job : {&by_secret, &by_job}) {
    job->run_all({0, 1}, [&](size_t rank) -> Change {
      return [&, rank](RendezvousOptions& options) {
        options.timeout = milliseconds(500);
        if (rank == 0) return;
        if (job == &by_secret) options.channel.security = with_secret(kOtherSecret);
        if (job == &by_job) options.job = "other";
      };
    });
  }
  by_secret.expect_error(0, ErrorCode::kDeadlineExceeded,
                         {"worker 1 of 2", "did not join within 0.5 s",
                          "Refused: a connection from 127.0.0.1:", "a different job secret"});
  by_job.expect_error(0, ErrorCode::kDeadlineExceeded,
                      {"Refused: worker 1 of 2", "it belongs to job \"other\""});
}

TEST(Rendezvous, NamesTheAddressWhenRankZeroIsMissing) {
  Job job(2);
  const std::string address = job.ranks[0].listener->address();
  job.ranks[0].listener.reset();
  RendezvousOptions options{.listener = *job.ranks[1].listener,
                            .rank = 1,
                            .addresses = {address, ""},
                            .timeout = milliseconds(200),
                            .channel = channel_options()};
  EXPECT_TUTTI_ERROR(rendezvous(options), ErrorCode::kUnavailable, address);
}

TEST(Rendezvous, RefusesTheSameRankTwice) {
  tutti::test::LogCapture log;
  Job job(3);
  Job twin(3);
  std::vector<std::thread> threads;
  for (const size_t rank : {0, 1}) threads.emplace_back([&job, rank] { job.run(rank); });
  ASSERT_TRUE(eventually([&] { return log.count("waiting for worker 2 of 3") >= 2; }));
  twin.run(1, [&](RendezvousOptions& options) {
    options.addresses[0] = job.ranks[0].listener->address();
  });
  twin.expect_error(1, ErrorCode::kFailedPrecondition,
                    {"worker 1 of 3", "twice: another process", job.ranks[1].listener->address()});
  job.run(2);
  for (std::thread& thread : threads) thread.join();
  for (const Rank& rank : job.ranks) EXPECT_EQ(what_of(rank.error), "");
}

TEST(Rendezvous, RefusesAnotherJobWithoutDisturbingThisOne) {
  tutti::test::LogCapture log;
  Job job(2);
  Job other(2);
  std::thread zero([&] { job.run(0); });
  other.run(1, [&](RendezvousOptions& options) {
    options.addresses[0] = job.ranks[0].listener->address();
    options.job = "other";
  });
  other.expect_error(1, ErrorCode::kFailedPrecondition, {"job \"other\"", "this is job \"train\""});
  job.run(1);
  zero.join();
  EXPECT_EQ(what_of(job.ranks[0].error), "");
  EXPECT_EQ(what_of(job.ranks[1].error), "");
}

TEST(Rendezvous, AWorkerThatLeftMayRejoinAsAnotherProcess) {
  tutti::test::LogCapture log;
  Job job(3);
  Job second(3);
  std::thread zero([&] { job.run(0); });
  // A process that joins by hand, and dies.
  auto channel = Channel::connect(job.ranks[0].listener->address(), channel_options(), soon());
  const std::string request =
      R"({"rank":1,"world":3,"job":"train","instance":"x","address":"127.0.0.1:1",)"
      R"("facts":{"version":"1"},"info":{}})";
  while (true) {
    try {
      EXPECT_NE(channel->call("rendezvous.join", request, soon()).find("waiting"),
                std::string::npos);
      break;
    } catch (const Error& error) {
      ASSERT_EQ(error.code(), ErrorCode::kUnimplemented);  // Rank 0 has not joined yet.
    }
  }
  std::thread dying([&] { EXPECT_ANY_THROW(channel->call("rendezvous.join", request, soon())); });
  ASSERT_TRUE(eventually([&] { return log.count("waiting for worker 2 of 3") >= 1; }));
  channel->abort();
  dying.join();
  ASSERT_TRUE(eventually([&] { return log.count("left the rendezvous") == 1; })) << log.text();
  std::thread one([&] { job.run(1); });
  job.run(2);
  zero.join();
  one.join();
  for (const Rank& rank : job.ranks) EXPECT_EQ(what_of(rank.error), "");
}

TEST(Rendezvous, TellsTheOthersImmediatelyWhenRankZeroDies) {
  Job job(2);
  Listener zero(listener_options());
  std::vector<Reply> kept;
  std::atomic<bool> joined{false};
  zero.handle_deferred("rendezvous.join", [&](const Caller&, std::string_view, const Reply& reply) {
    kept.push_back(reply);
    joined = true;
  });
  std::thread one([&] {
    job.run(1, [&](RendezvousOptions& options) {
      options.addresses[0] = zero.address();
      options.timeout = std::chrono::minutes(10);
    });
  });
  ASSERT_TRUE(eventually([&] { return joined.load(); }));
  zero.stop();
  one.join();
  job.expect_error(1, ErrorCode::kUnavailable, {"worker 1 of 2", "\"train\"", zero.address()});
}

TEST(Rendezvous, RefusesALoopbackAddressAmongOthers) {
  Listener listener(listener_options());
  RendezvousOptions options{.listener = listener,
                            .rank = 1,
                            .addresses = {"hostA:1234", ""},
                            .channel = channel_options()};
  EXPECT_TUTTI_ERROR(rendezvous(options), ErrorCode::kFailedPrecondition, listener.address(),
                     "only its own machine can reach", "hostA:1234");
}

TEST(Rendezvous, ChecksItsArguments) {
  Listener listener(listener_options());
  EXPECT_TUTTI_ERROR(rendezvous({.listener = listener, .rank = 2, .addresses = {"", ""}}),
                     ErrorCode::kInvalidArgument, "rank 2", "2 addresses");
  EXPECT_TUTTI_ERROR(rendezvous({.listener = listener, .rank = 1, .addresses = {"", ""}}),
                     ErrorCode::kInvalidArgument, "address of rank 0");
}

TEST(Rendezvous, ReportsMalformedJoinsOnlyToTheirSender) {
  Job job(2);
  std::thread zero([&] { job.run(0); });
  const auto channel =
      Channel::connect(job.ranks[0].listener->address(), channel_options(), soon());
  const auto code_of = [&](const std::string& request) {
    while (true) {
      try {
        channel->call("rendezvous.join", request, soon());
        return std::string("no error");
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kUnimplemented) return std::string(to_string(error.code()));
      }
    }
  };
  const std::string deep = "{\"a\":" + std::string(9, '[') + std::string(9, ']') + "}";
  const std::string large = "{\"a\":\"" + std::string(65 << 10, 'x') + "\"}";
  for (const std::string& request :
       {std::string("x"), std::string("[]"), std::string("{}"), deep, large,
        std::string(R"({"rank":1.5,"world":2})"), std::string(R"({"rank":7,"world":2})")}) {
    EXPECT_EQ(code_of(request), "kInvalidArgument") << request.substr(0, 40);
  }
  job.run(1);
  zero.join();
  EXPECT_EQ(what_of(job.ranks[1].error), "");
}

}  // namespace tutti::rpc::rendezvous_test
