// SPDX-License-Identifier: Apache-2.0
//
// Workers that should do the same and do not: every one of them must learn of it, and nobody may
// get wrong numbers.

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/strategy/internal/multi_worker_extended.h"

#include "tests/multi_worker/shapes.h"
#include "tests/support/log_capture.h"

namespace tutti::multi_worker_agreement_test {

class WorkersThatDiffer : public testing::MultiWorker {};

INSTANTIATE_TEST_SUITE_P(Shapes, WorkersThatDiffer,
                         ::testing::Values(testing::Shape{2, 1}, testing::Shape{3, 2},
                                           testing::Shape{2, 1, CommunicationImplementation::kGrpc},
                                           testing::Shape{2, 2,
                                                          CommunicationImplementation::kGrpc}),
                         testing::shape_name);

using Net = torch::nn::LinearImpl;
using Sgd = DistributedOptimizer<torch::optim::SGD>;

at::Tensor loss_of(const Replicated<Net>& model, int64_t rows = 2) {
  return average_loss(model->forward(at::ones({rows, 3})).square().flatten());
}

bool is_worker(const Strategy& strategy, int worker) {
  return strategy.extended().worker_index() == worker;
}

// The calls that follow are the same again, so they could be taken for those that were left out.
TEST_P(WorkersThatDiffer, LeaveOutACallOfRun) {
  const auto sums = [](const Strategy& strategy) {
    for (int step = 0; step < 6; ++step) {
      strategy.run([&] {
        if (step == 2 && is_worker(strategy, 1)) return;
        get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({4}));
      });
    }
  };
  expect_all_refuse(sums, ErrorCode::kFailedPrecondition,
                    {"all_reduce(kSum) of float32[4]", "in step 3", "in step 4",
                     "/job:worker/task:1", "one has left out a call"});
}

TEST_P(WorkersThatDiffer, LeaveOutAStepOfTraining) {
  const auto training = [](const Strategy& strategy) {
    auto model = replicate<Net>(strategy, 3, 2);
    Sgd optimizer(model, torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 6; ++step) {
      strategy.run([&] {
        if (step == 2 && is_worker(strategy, 1)) return;  // "no rows"
        optimizer.minimize(model->forward(at::ones({2, 3})).sum());
      });
    }
  };
  expect_all_refuse(training, ErrorCode::kFailedPrecondition,
                    {"in step 3", "in step 4", "/job:worker/task:1", "one has left out a call"});
}

TEST_P(WorkersThatDiffer, DropAStepThatOthersMake) {
  const auto training = [](const Strategy& strategy) {
    auto model = replicate<Net>(strategy, 3, 2);
    Sgd optimizer(model, torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 6; ++step) {
      strategy.run([&] {
        optimizer.zero_grad();
        model->forward(at::ones({2, 3})).sum().backward();
        const bool skip = step == 2 && is_worker(strategy, 1);  // "its loss is not finite"
        if (!skip) optimizer.step();
      });
    }
  };
  expect_all_refuse(training, ErrorCode::kFailedPrecondition,
                    {"flags of a step", "dropped", "/job:worker/task:1"});
}

TEST_P(WorkersThatDiffer, HaveOtherLearningRates) {
  const auto training = [](const Strategy& strategy) {
    auto model = replicate<Net>(strategy, 3, 2);
    Sgd optimizer(model, torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 4; ++step) {
      if (step == 2 && is_worker(strategy, 1)) {  // a schedule that looks at something local
        static_cast<torch::optim::SGDOptions&>(optimizer.param_groups()[0].options()).lr(0.05);
      }
      strategy.run([&] { optimizer.minimize(loss_of(model)); });
    }
  };
  expect_all_refuse(training, ErrorCode::kFailedPrecondition,
                    {"the learning rate of group 0 is 0.1 on /job:worker/task:0", "but 0.05 on",
                     "/job:worker/task:1", "in step 3"});
}

TEST_P(WorkersThatDiffer, HaveOtherOptions) {
  const auto training = [](const Strategy& strategy) {
    auto model = replicate<Net>(strategy, 3, 2);
    const double norm = is_worker(strategy, 1) ? 2 : 1;
    Sgd optimizer(model, torch::optim::SGDOptions(0.1), {.clip_norm = norm});
    strategy.run([&] { optimizer.minimize(loss_of(model)); });
  };
  expect_all_refuse(training, ErrorCode::kFailedPrecondition,
                    {"clip_norm is 1 on /job:worker/task:0", "but 2 on"});
}

TEST_P(WorkersThatDiffer, SumGradientsEarlierThanOthers) {
  const auto training = [](const Strategy& strategy) {
    auto model = replicate<Net>(strategy, 3, 2);
    Sgd optimizer(model, torch::optim::SGDOptions(0.1));
    strategy.run([&] {
      optimizer.zero_grad();
      loss_of(model).backward();
      if (is_worker(strategy, 1)) optimizer.synchronize();
      optimizer.step();
    });
  };
  expect_all_refuse(training, ErrorCode::kFailedPrecondition, {"whether step() or synchronize()"});
}

// All parameters are looked at in `check_every` steps.
TEST_P(WorkersThatDiffer, ChangeAParameterOnOneWorker) {
  const auto training = [](const Strategy& strategy) {
    auto model = replicate<Net>(strategy, 3, 40);
    Sgd optimizer(model, torch::optim::SGDOptions(0.1), {.check_every = 5});
    for (int step = 0; step < 12; ++step) {
      if (step == 3 && is_worker(strategy, 1)) {
        const torch::NoGradGuard no_grad;
        model.for_each([](Net& net) { net.bias.mul_(1.5); });
      }
      strategy.run([&] { optimizer.minimize(loss_of(model)); });
    }
  };
  expect_all_refuse(
      training, ErrorCode::kDataLoss,
      {"parameters of /job:worker/task:1", "differ from those of /job:worker/task:0", "'bias'"});
}

TEST_P(WorkersThatDiffer, AreNotLookedAtIfNobodyWantsTo) {
  run([](const Strategy& strategy) {
    auto model = replicate<Net>(strategy, 3, 2);
    Sgd optimizer(model, torch::optim::SGDOptions(0.1), {.check_every = 0});
    for (int step = 0; step < 3; ++step) {
      if (step == 1 && is_worker(strategy, 1)) {
        const torch::NoGradGuard no_grad;
        model.for_each([](Net& net) { net.bias.mul_(1.5); });
      }
      strategy.run([&] { optimizer.minimize(loss_of(model)); });
    }
  });
}

TEST_P(WorkersThatDiffer, ShowTheirLastOperations) {
  test::LogCapture log(LogLevel::kError);
  const auto sums = [](const Strategy& strategy) {
    for (int step = 0; step < 3; ++step) {
      strategy.run([&] {
        const int64_t size = step == 2 && is_worker(strategy, 1) ? 5 : 4;
        get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({size}));
      });
    }
  };
  expect_all_refuse(sums, ErrorCode::kFailedPrecondition, {"float32[5]", "float32[4]"});
  for (int w = 0; w < workers(); ++w) {
    const std::string name = message("the last operations of /job:worker/task:", w);
    EXPECT_NE(log.text().find(name), std::string::npos) << log.text();
  }
}

// ---- workers that stay away

class WorkersThatStayAway : public WorkersThatDiffer {
 protected:
  // Worker 1 does not come to the call; the others must say so, within the time the call has.
  void expect_missed(const std::function<void(const Strategy&)>& call,
                     std::chrono::milliseconds timeout,
                     std::initializer_list<std::string_view> parts) const {
    InProcessClusterOptions used = options();
    used.communication_options.timeout = timeout;
    std::atomic<int> left{workers() - 1};
    const auto errors = InProcessCluster(workers(), used).try_run([&](const Strategy& strategy) {
      strategy.run([] { get_replica_context()->all_reduce(ReduceOp::kSum, 1.0); });
      if (is_worker(strategy, 1)) {
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
        while (left > 0 && std::chrono::steady_clock::now() < limit) std::this_thread::yield();
        return;
      }
      const auto begin = std::chrono::steady_clock::now();
      try {
        call(strategy);
      } catch (...) {
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(10));
        --left;
        throw;
      }
      --left;
    });
    for (int w = 0; w < workers(); ++w) {
      if (w == 1) continue;
      const auto rethrow = [&] {
        if (errors[static_cast<size_t>(w)]) std::rethrow_exception(errors[static_cast<size_t>(w)]);
      };
      // One that is a little later hears that another has given up, and why.
      if (test::throws_error(rethrow, ErrorCode::kCancelled, parts)) continue;
      EXPECT_TRUE(test::throws_error(rethrow, ErrorCode::kUnavailable, parts)) << "worker " << w;
    }
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, WorkersThatStayAway,
                         ::testing::Values(testing::Shape{2, 1}, testing::Shape{3, 2},
                                           testing::Shape{2, 1,
                                                          CommunicationImplementation::kGrpc}),
                         testing::shape_name);

constexpr std::chrono::milliseconds kShort{200};
constexpr std::chrono::milliseconds kLong{60'000};

TEST_P(WorkersThatStayAway, AreNamedInARun) {
  expect_missed(
      [](const Strategy& strategy) {
        strategy.run([] { get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({4})); });
      },
      kShort,
      {"/job:worker/task:1 (a thread) did not come to all_reduce(kSum) of float32[4]",
       "in step 2"});
}

TEST_P(WorkersThatStayAway, AreNamedInAReduction) {
  expect_missed(
      [](const Strategy& strategy) {
        strategy.reduce(ReduceOp::kSum, strategy.run([] { return at::ones({4}); }));
      },
      kShort, {"/job:worker/task:1 (a thread) did not come to", "\"reduce\"", "in step 2"});
}

TEST_P(WorkersThatStayAway, AreNamedInAnUpdate) {
  InProcessClusterOptions used = options();
  used.communication_options.timeout = kShort;
  const auto errors = InProcessCluster(workers(), used).try_run([&](const Strategy& strategy) {
    auto model = replicate<Net>(strategy, 3, 2);
    Sgd optimizer(model, torch::optim::SGDOptions(0.1));
    strategy.run([&] { optimizer.minimize(model->forward(at::ones({2, 3})).sum()); });
    if (is_worker(strategy, 1)) {
      std::this_thread::sleep_for(3 * kShort);
      return;
    }
    strategy.run([&] { optimizer.minimize(model->forward(at::ones({2, 3})).sum()); });
  });
  const auto rethrow = [&] { std::rethrow_exception(errors[0]); };
  EXPECT_TRUE(test::throws_error(
      rethrow, ErrorCode::kUnavailable,
      {"/job:worker/task:1 (a thread) did not come to", "gradients 0: ", "in step 2"}));
}

TEST_P(WorkersThatStayAway, AreNamedByTheReaderOfTheInput) {
  expect_missed(
      [](const Strategy& strategy) {
        for (auto& batch : strategy.distribute_datasets_from_function(
                 [](const InputContext&) { return data::range(8).batch(2); })) {
          static_cast<void>(batch);
        }
      },
      kShort, {"/job:worker/task:1 (a thread) did not say whether it has data"});
}

// A call's own timeout wins over that of the strategy.
TEST_P(WorkersThatStayAway, AreNamedAfterTheTimeoutOfTheCall) {
  const CommunicationOptions soon{.timeout = kShort};
  expect_missed(
      [&](const Strategy& strategy) {
        strategy.run([&] { get_replica_context()->all_gather(at::ones({4}), 0, soon); });
      },
      kLong, {"/job:worker/task:1 (a thread) did not come to", "all_gather(axis 0)"});
  expect_missed(
      [&](const Strategy& strategy) {
        strategy.run([&] { get_replica_context()->all_reduce(ReduceOp::kSum, 1.0, soon); });
      },
      kLong, {"/job:worker/task:1 (a thread) did not come to", "of a number"});
}

// What is begun in backward is waited for in step(); the time in between does not count.
TEST_P(WorkersThatStayAway, AreNotMissedBeforeAnybodyWaits) {
  InProcessClusterOptions used = options();
  used.communication_options.timeout = std::chrono::milliseconds(400);
  InProcessCluster(workers(), used).run([&](const Strategy& strategy) {
    auto model = replicate<Net>(strategy, 3, 2);
    Sgd optimizer(model, torch::optim::SGDOptions(0.1));
    strategy.run([&] {
      optimizer.zero_grad();
      // Nobody is ever late by more than 200 ms, but backward is 600 ms away from step().
      if (is_worker(strategy, 1)) std::this_thread::sleep_for(std::chrono::milliseconds(200));
      model->forward(at::ones({2, 3})).sum().backward();
      const int more = is_worker(strategy, 1) ? 400 : 600;
      std::this_thread::sleep_for(std::chrono::milliseconds(more));
      optimizer.step();
    });
  });
}

}  // namespace tutti::multi_worker_agreement_test
