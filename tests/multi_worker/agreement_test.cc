// SPDX-License-Identifier: Apache-2.0
//
// Workers that should do the same and do not: every worker must get an error, and none may get
// wrong numbers.

#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/strategy/internal/tally.h"

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
  return strategy.extended().workers().rank() == worker;
}

// The calls that follow are equal, so they could be mistaken for those that were left out.
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

TEST_P(WorkersThatDiffer, ReadAMetricOnOneWorkerOnly) {
  const auto training = [](const Strategy& strategy) {
    const metrics::Mean loss(strategy, "loss");
    strategy.run([&] { loss.update(at::ones({4})); });
    if (is_worker(strategy, 0)) static_cast<void>(loss.result());
    const auto ones = strategy.run([] { return at::ones({2}, at::kDouble); });
    static_cast<void>(strategy.reduce(ReduceOp::kSum, ones));
  };
  expect_all_refuse(training, ErrorCode::kInvalidArgument, {"metrics::Mean 'loss'"});
}

TEST(MetricOfOneWorkerOnly, TellsItsLine) {
  const InProcessCluster cluster(2, {.devices = {"CPU:0"}});
  const auto errors = cluster.try_run([](const Strategy& strategy) {
    const metrics::Mean loss(strategy, "loss");
    if (is_worker(strategy, 0)) static_cast<void>(loss.result());
    strategy.run([] { get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({4})); });
  });
  ASSERT_NE(errors[0], nullptr);
  const std::string text = internal::text_of(errors[0]);
  EXPECT_TRUE(text.starts_with("metrics::Mean 'loss': result() at agreement_test.cc:")) << text;
}

// In one process, replicas that gather different inner shapes get the same code.
TEST_P(WorkersThatDiffer, GatherTensorsOfOtherInnerShapes) {
  const auto in_replicas = [](const Strategy& strategy) {
    strategy.run([&] {
      get_replica_context()->all_gather(at::ones({2, is_worker(strategy, 1) ? 4 : 3}), 0);
    });
  };
  expect_all_refuse(in_replicas, ErrorCode::kInvalidArgument, {"gather"});
  const auto outside = [](const Strategy& strategy) {
    const auto parts = strategy.run([&] { return at::ones({2, is_worker(strategy, 1) ? 4 : 3}); });
    static_cast<void>(strategy.gather(parts, 0));
  };
  expect_all_refuse(outside, ErrorCode::kInvalidArgument, {"gather"});
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
  expect_all_refuse(training, ErrorCode::kInvalidArgument,
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

TEST_P(WorkersThatDiffer, HaveOtherOptimizers) {
  const auto training = [](const Strategy& strategy) {
    auto model = replicate<Net>(strategy, 3, 2);
    const auto update = [&](auto& optimizer) {
      strategy.run([&] { optimizer.minimize(loss_of(model)); });
    };
    if (is_worker(strategy, 1)) {
      DistributedOptimizer<torch::optim::Adam> optimizer(model, torch::optim::AdamOptions(0.1));
      update(optimizer);
    } else {
      Sgd optimizer(model, torch::optim::SGDOptions(0.1));
      update(optimizer);
    }
  };
  expect_all_refuse(training, ErrorCode::kFailedPrecondition,
                    {"the kind of optimizer of group 0 is sgd on /job:worker/task:0", "but adam on",
                     "/job:worker/task:1"});
}

TEST_P(WorkersThatDiffer, HaveOtherNumbersOfGroups) {
  const auto training = [](const Strategy& strategy) {
    auto model = replicate<Net>(strategy, 3, 2);
    using Groups = std::vector<ParameterGroup<torch::optim::SGDOptions>>;
    const torch::optim::SGDOptions rate(0.1);
    const bool apart = is_worker(strategy, 1);
    Sgd optimizer(model, apart ? Groups{{{"weight"}, rate}, {{"bias"}, rate}}
                               : Groups{{{"weight", "bias"}, rate}});
    strategy.run([&] { optimizer.minimize(loss_of(model)); });
  };
  expect_all_refuse(training, ErrorCode::kFailedPrecondition,
                    {"the number of options of all parameter groups", "/job:worker/task:1"});
}

TEST_P(WorkersThatDiffer, LookAtParametersInOtherSteps) {
  const auto training = [](const Strategy& strategy) {
    auto model = replicate<Net>(strategy, 3, 2);
    const int every = is_worker(strategy, 1) ? 3 : 2;
    Sgd optimizer(model, torch::optim::SGDOptions(0.1), {.check_every = every});
    strategy.run([&] { optimizer.minimize(loss_of(model)); });
  };
  expect_all_refuse(training, ErrorCode::kFailedPrecondition, {"check_every is 2", "but 3 on"});
}

// Their values would be swapped, since the variables have equal shapes and dtypes.
TEST_P(WorkersThatDiffer, UpdateVariablesInAnotherOrder) {
  const auto updates = [](const Strategy& strategy) {
    const auto scope = strategy.scope();
    const Variable a(at::zeros({3}), {.name = "a", .aggregation = VariableAggregation::kMean});
    const Variable b(at::zeros({3}), {.name = "b", .aggregation = VariableAggregation::kMean});
    strategy.run([&] {
      const at::Tensor mine =
          at::full({3}, static_cast<float>(get_replica_context()->replica_id_in_sync_group()));
      (is_worker(strategy, 1) ? b : a).assign_add(mine);
      (is_worker(strategy, 1) ? a : b).assign_add(mine);
    });
  };
  expect_all_refuse(updates, ErrorCode::kInvalidArgument,
                    {"assign_add of", "'a'", "'b'", "/job:worker/task:1"});
}

// All parameters are compared within `check_every` steps.
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

struct OneTensorImpl : torch::nn::Module {
  OneTensorImpl() { weight = register_parameter("weight", torch::ones({64})); }
  at::Tensor weight;
};

// The last bytes are compared too, even if the number of steps does not divide them or there are
// fewer bytes than steps.
TEST_P(WorkersThatDiffer, ChangeTheLastElementOfASmallModel) {
  for (const int every : {7, 600}) {
    const auto training = [every](const Strategy& strategy) {
      auto model = replicate<OneTensorImpl>(strategy);
      Sgd optimizer(model, torch::optim::SGDOptions(1e-3), {.check_every = every});
      if (is_worker(strategy, 1)) {
        const torch::NoGradGuard no_grad;
        model.for_each([](OneTensorImpl& net) { net.weight[63].add_(1); });
      }
      for (int step = 0; step < every; ++step) {
        strategy.run([&] { optimizer.minimize(model->weight.square().sum()); });
      }
    };
    expect_all_refuse(training, ErrorCode::kDataLoss,
                      {"parameters of /job:worker/task:1",
                       "differ from those of /job:worker/task:0", "'weight'"});
  }
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
  expect_all_refuse(sums, ErrorCode::kInvalidArgument, {"float32[5]", "float32[4]"});
  for (int w = 0; w < workers(); ++w) {
    const std::string name = message("the last operations of /job:worker/task:", w);
    EXPECT_NE(log.text().find(name), std::string::npos) << log.text();
  }
}

// ---- workers that stay away

class WorkersThatStayAway : public WorkersThatDiffer {
 protected:
  // Worker 1 does not join the call; the others must say so after the call's timeout.
  void expect_missed(const std::function<void(const Strategy&)>& call,
                     std::chrono::milliseconds timeout,
                     std::initializer_list<std::string_view> parts) const {
    expect_missed_after(
        [&](const Strategy& strategy) -> std::function<void()> { return [&] { call(strategy); }; },
        timeout, parts);
  }

  // The same for a call that all workers prepare.
  void expect_missed_after(const std::function<std::function<void()>(const Strategy&)>& prepare,
                           std::chrono::milliseconds timeout,
                           std::initializer_list<std::string_view> parts) const {
    InProcessClusterOptions used = options();
    used.communication_options.timeout = timeout;
    int found = 0;
    std::atomic<int> left{workers() - 1};
    const auto errors = InProcessCluster(workers(), used).try_run([&](const Strategy& strategy) {
      strategy.run([] { get_replica_context()->all_reduce(ReduceOp::kSum, 1.0); });
      const std::function<void()> call = prepare(strategy);
      if (is_worker(strategy, 1)) {
        const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(50);
        while (left > 0 && std::chrono::steady_clock::now() < limit) {
          std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return;
      }
      const auto begin = std::chrono::steady_clock::now();
      try {
        call();
      } catch (...) {
        EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(40));
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
      // A worker that is a little later gets the error of the one that has given up.
      if (test::throws_error(rethrow, ErrorCode::kCancelled, parts)) continue;
      EXPECT_TRUE(test::throws_error(rethrow, ErrorCode::kUnavailable, parts)) << "worker " << w;
      ++found;
    }
    EXPECT_GT(found, 0);
  }
};

INSTANTIATE_TEST_SUITE_P(Shapes, WorkersThatStayAway,
                         ::testing::Values(testing::Shape{2, 1}, testing::Shape{3, 2},
                                           testing::Shape{2, 1,
                                                          CommunicationImplementation::kGrpc}),
                         testing::shape_name);

// For whole strategies: workers that share two cores with a sanitizer must arrive in time. A single
// call that no other worker makes may have less.
constexpr std::chrono::milliseconds kShort{1'000};
constexpr std::chrono::milliseconds kAtOnce{50};
constexpr std::chrono::milliseconds kLong{60'000};

TEST_P(WorkersThatStayAway, AreNamedInARun) {
  expect_missed(
      [](const Strategy& strategy) {
        strategy.run([] { get_replica_context()->all_reduce(ReduceOp::kSum, at::ones({4})); });
      },
      kShort,
      {"/job:worker/task:1 (a thread) did not join all_reduce(kSum) of float32[4]", "in step 2"});
}

TEST_P(WorkersThatStayAway, AreNamedInAReduction) {
  expect_missed(
      [](const Strategy& strategy) {
        strategy.reduce(ReduceOp::kSum, strategy.run([] { return at::ones({4}); }));
      },
      kShort, {"/job:worker/task:1 (a thread) did not join", "\"reduce\"", "in step 2"});
}

TEST_P(WorkersThatStayAway, AreWaitedForWithAWarning) {
  const test::LogCapture log(LogLevel::kWarning);
  const auto warned = [&log] {
    return log.count("/job:worker/task:0 (a thread) has waited for ") > 0 &&
           log.count(" s for /job:worker/task:1 (a thread) in ") > 0;
  };
  InProcessClusterOptions used = options();
  used.runner.meeting_warning = kAtOnce;
  InProcessCluster(workers(), used).run([&](const Strategy& strategy) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(20);
    while (is_worker(strategy, 1) && !warned() && std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    strategy.reduce(ReduceOp::kSum, strategy.run([] { return at::ones({4}); }));
  });
  EXPECT_TRUE(warned()) << log.text();
}

TEST_P(WorkersThatStayAway, AreNamedInAnUpdate) {
  const auto training = [](const Strategy& strategy) -> std::function<void()> {
    auto model = replicate<Net>(strategy, 3, 2);
    const auto optimizer = std::make_shared<Sgd>(model, torch::optim::SGDOptions(0.1));
    return [=] {
      strategy.run([&] { optimizer->minimize(model->forward(at::ones({2, 3})).sum()); });
    };
  };
  expect_missed_after(training, kShort,
                      {"/job:worker/task:1 (a thread) did not join", "gradients 0: ", "in step 2"});
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
  const CommunicationOptions soon{.timeout = kAtOnce};
  expect_missed(
      [&](const Strategy& strategy) {
        strategy.run([&] { get_replica_context()->all_gather(at::ones({4}), 0, soon); });
      },
      kLong, {"/job:worker/task:1 (a thread) did not join", "all_gather(axis 0)"});
  expect_missed(
      [&](const Strategy& strategy) {
        strategy.run([&] { get_replica_context()->all_reduce(ReduceOp::kSum, 1.0, soon); });
      },
      kLong, {"/job:worker/task:1 (a thread) did not join", "of a number"});
}

// What is begun in backward is waited for in step(); the time in between does not count.
TEST_P(WorkersThatStayAway, AreNotMissedBeforeAnybodyWaits) {
  InProcessClusterOptions used = options();
  used.communication_options.timeout = kShort;
  std::atomic<int> others{workers() * local() - local()};
  std::atomic<int> late{local()};
  const auto wait_for = [](const std::atomic<int>& replicas) {
    const auto limit = std::chrono::steady_clock::now() + std::chrono::seconds(50);
    while (replicas > 0 && std::chrono::steady_clock::now() < limit) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  };
  InProcessCluster(workers(), used).run([&](const Strategy& strategy) {
    auto model = replicate<Net>(strategy, 3, 2);
    Sgd optimizer(model, torch::optim::SGDOptions(0.1));
    strategy.run([&] {
      optimizer.zero_grad();
      // Worker 1 has no gradients for longer than others would wait in step().
      const bool is_late = is_worker(strategy, 1);
      if (is_late) {
        wait_for(others);
        std::this_thread::sleep_for(kShort + kShort / 4);
      }
      model->forward(at::ones({2, 3})).sum().backward();
      --(is_late ? late : others);
      if (!is_late) wait_for(late);
      optimizer.step();
    });
  });
}

}  // namespace tutti::multi_worker_agreement_test
