// SPDX-License-Identifier: Apache-2.0
//
// Gradients through all_reduce and all_gather. What replica i computes is the gradient of the sum
// of all replicas' losses by its own input; here that is compared with the same mathematics in one
// graph of one thread, in float64.

#include <torch/csrc/autograd/autograd.h>

#include "tests/contract/strategy_contract.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti::gradients_contract_test {

using test::my_id;
using test::random_tensor;

at::Tensor input_of(int replica, at::IntArrayRef shape) {
  return random_tensor(shape, at::kDouble, static_cast<uint64_t>(replica) + 1).requires_grad_(true);
}

at::Tensor weight_of(int replica, at::IntArrayRef shape) {
  return random_tensor(shape, at::kDouble, static_cast<uint64_t>(replica) + 50);
}

std::vector<at::Tensor> inputs_of(int replicas, at::IntArrayRef shape) {
  std::vector<at::Tensor> inputs;
  for (int i = 0; i < replicas; ++i) inputs.push_back(input_of(i, shape));
  return inputs;
}

// The reduction as one graph.
at::Tensor reduced(ReduceOp op, const std::vector<at::Tensor>& values) {
  at::Tensor sum = values[0];
  for (size_t i = 1; i < values.size(); ++i) sum = sum + values[i];
  return op == ReduceOp::kMean ? sum / static_cast<double>(values.size()) : sum;
}

testing::AssertionResult near(const at::Tensor& actual, const at::Tensor& expected) {
  if (!actual.defined() || actual.sizes() != expected.sizes()) {
    return testing::AssertionFailure() << "another shape";
  }
  if (expected.numel() == 0) return testing::AssertionSuccess();
  const double scale = std::max(1.0, expected.abs().max().item<double>());
  const double distance = (actual - expected).abs().max().item<double>() / scale;
  if (distance <= 1e-12) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "relative difference " << distance;
}

// A loss that is not linear, before and after the reduction.
at::Tensor before(const at::Tensor& x) { return at::sin(x) * x; }
at::Tensor after(const at::Tensor& y, int replica) {
  return (at::exp(y * 0.25) * weight_of(replica, y.sizes())).sum();
}

TEST_P(StrategyContract, GradientOfAllReduceIsThatOfTheWholeSum) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
    const auto gradients = strategy().run([op] {
      const at::Tensor x = input_of(my_id(), {3, 4});
      const at::Tensor y = get_replica_context()->all_reduce(op, before(x));
      after(y, my_id()).backward();
      return x.grad();
    });
    const auto xs = inputs_of(n(), {3, 4});
    std::vector<at::Tensor> values;
    for (const at::Tensor& x : xs) values.push_back(before(x));
    const at::Tensor y = reduced(op, values);
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (int i = 0; i < n(); ++i) loss = loss + after(y, i);
    const auto expected = torch::autograd::grad({loss}, xs);
    for (size_t i = 0; i < xs.size(); ++i) EXPECT_TRUE(near(gradients[i], expected[i])) << op;
  }
}

TEST_P(StrategyContract, GradientOfAllReduceOfANestReachesEveryLeaf) {
  const auto gradients = strategy().run([] {
    const at::Tensor a = input_of(my_id(), {3});
    const at::Tensor b = input_of(my_id() + 20, {2, 2});
    const auto [ra, count, rb, ids] = get_replica_context()->all_reduce(
        ReduceOp::kSum, std::tuple(a * a, 1.0, b, at::full({2}, my_id(), at::kLong)));
    EXPECT_FALSE(ids.requires_grad());
    (after(ra, my_id()) + after(rb, my_id() + 7) * count).backward();
    return std::pair(a.grad(), b.grad());
  });
  std::vector<at::Tensor> as;
  std::vector<at::Tensor> bs;
  std::vector<at::Tensor> squares;
  for (int i = 0; i < n(); ++i) {
    as.push_back(input_of(i, {3}));
    bs.push_back(input_of(i + 20, {2, 2}));
    squares.push_back(as.back() * as.back());
  }
  const at::Tensor ra = reduced(ReduceOp::kSum, squares);
  const at::Tensor rb = reduced(ReduceOp::kSum, bs);
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (int i = 0; i < n(); ++i) loss = loss + after(ra, i) + after(rb, i + 7) * n();
  const auto by_a = torch::autograd::grad({loss}, as, {}, /*retain_graph=*/true);
  const auto by_b = torch::autograd::grad({loss}, bs);
  for (size_t i = 0; i < as.size(); ++i) {
    EXPECT_TRUE(near(gradients[i].first, by_a[i]));
    EXPECT_TRUE(near(gradients[i].second, by_b[i]));
  }
}

TEST_P(StrategyContract, ReplicasMayUseDifferentPartsOfAReducedNest) {
  const auto gradients = strategy().run([] {
    const at::Tensor a = input_of(my_id(), {3});
    const at::Tensor b = input_of(my_id() + 20, {3});
    const auto [ra, rb] = get_replica_context()->all_reduce(ReduceOp::kSum, std::pair(a, b));
    after(my_id() % 2 == 0 ? ra : rb, my_id()).backward();
    return std::pair(a.grad(), b.grad());
  });
  std::vector<at::Tensor> as = inputs_of(n(), {3});
  std::vector<at::Tensor> bs;
  for (int i = 0; i < n(); ++i) bs.push_back(input_of(i + 20, {3}));
  const at::Tensor ra = reduced(ReduceOp::kSum, as);
  const at::Tensor rb = reduced(ReduceOp::kSum, bs);
  at::Tensor loss = (rb * 0).sum();
  for (int i = 0; i < n(); ++i) loss = loss + after(i % 2 == 0 ? ra : rb, i);
  const auto by_a = torch::autograd::grad({loss}, as, {}, /*retain_graph=*/true);
  const auto by_b = torch::autograd::grad({loss}, bs);
  for (size_t i = 0; i < as.size(); ++i) {
    EXPECT_TRUE(near(gradients[i].first, by_a[i]));
    EXPECT_TRUE(near(gradients[i].second, by_b[i]));
  }
}

TEST_P(StrategyContract, GradientsPassThroughSeveralReductions) {
  const auto gradients = strategy().run([] {
    const at::Tensor x = input_of(my_id(), {4});
    at::Tensor y = x;
    for (int layer = 0; layer < 3; ++layer) {
      y = get_replica_context()->all_reduce(ReduceOp::kMean, at::sin(y)) + y * 0.5;
    }
    after(y, my_id()).backward();
    return x.grad();
  });
  const auto xs = inputs_of(n(), {4});
  std::vector<at::Tensor> ys = xs;
  for (int layer = 0; layer < 3; ++layer) {
    std::vector<at::Tensor> sines;
    for (const at::Tensor& y : ys) sines.push_back(at::sin(y));
    const at::Tensor mean = reduced(ReduceOp::kMean, sines);
    for (at::Tensor& y : ys) y = mean + y * 0.5;
  }
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (int i = 0; i < n(); ++i) loss = loss + after(ys[static_cast<size_t>(i)], i);
  const auto expected = torch::autograd::grad({loss}, xs);
  for (size_t i = 0; i < xs.size(); ++i) EXPECT_TRUE(near(gradients[i], expected[i]));
}

TEST_P(StrategyContract, GradientOfAllGatherIsTheOwnPartOfTheSum) {
  for (const int64_t axis : {0, -1}) {
    const auto shape = [axis](int i) {
      return axis == 0 ? std::vector<int64_t>{i + 1, 2} : std::vector<int64_t>{2, i + 1};
    };
    const auto gradients = strategy().run([&] {
      const at::Tensor x = input_of(my_id(), shape(my_id()));
      const at::Tensor all = get_replica_context()->all_gather(before(x), axis);
      after(all, my_id()).backward();
      return x.grad();
    });
    std::vector<at::Tensor> xs;
    std::vector<at::Tensor> parts;
    for (int i = 0; i < n(); ++i) {
      xs.push_back(input_of(i, shape(i)));
      parts.push_back(before(xs.back()));
    }
    const at::Tensor all = at::cat(parts, axis);
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (int i = 0; i < n(); ++i) loss = loss + after(all, i);
    const auto expected = torch::autograd::grad({loss}, xs);
    for (size_t i = 0; i < xs.size(); ++i) EXPECT_TRUE(near(gradients[i], expected[i])) << axis;
  }
}

TEST_P(StrategyContract, SecondGradientsPassThroughAllReduce) {
  for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMean}) {
    const auto gradients = strategy().run([op] {
      const at::Tensor x = input_of(my_id(), {5});
      const at::Tensor y = get_replica_context()->all_reduce(op, before(x));
      const at::Tensor first = torch::autograd::grad({after(y, my_id())}, {x}, {}, true, true)[0];
      const at::Tensor penalty = (first * weight_of(my_id() + 9, {5})).pow(2).sum();
      return torch::autograd::grad({penalty}, {x})[0];
    });
    const auto xs = inputs_of(n(), {5});
    std::vector<at::Tensor> values;
    for (const at::Tensor& x : xs) values.push_back(before(x));
    const at::Tensor y = reduced(op, values);
    at::Tensor loss = at::zeros({}, at::kDouble);
    for (int i = 0; i < n(); ++i) loss = loss + after(y, i);
    const auto first = torch::autograd::grad({loss}, xs, {}, true, true);
    at::Tensor penalty = at::zeros({}, at::kDouble);
    for (int i = 0; i < n(); ++i) {
      penalty = penalty + (first[static_cast<size_t>(i)] * weight_of(i + 9, {5})).pow(2).sum();
    }
    const auto expected = torch::autograd::grad({penalty}, xs);
    for (size_t i = 0; i < xs.size(); ++i) EXPECT_TRUE(near(gradients[i], expected[i])) << op;
  }
}

TEST_P(StrategyContract, SecondGradientsPassThroughAllGather) {
  const auto gradients = strategy().run([] {
    const at::Tensor x = input_of(my_id(), {my_id() + 1});
    const at::Tensor all = get_replica_context()->all_gather(before(x), 0);
    const at::Tensor first = torch::autograd::grad({after(all, my_id())}, {x}, {}, true, true)[0];
    return torch::autograd::grad({first.pow(2).sum()}, {x})[0];
  });
  std::vector<at::Tensor> xs;
  std::vector<at::Tensor> parts;
  for (int i = 0; i < n(); ++i) {
    xs.push_back(input_of(i, {i + 1}));
    parts.push_back(before(xs.back()));
  }
  at::Tensor loss = at::zeros({}, at::kDouble);
  for (int i = 0; i < n(); ++i) loss = loss + after(at::cat(parts), i);
  const auto first = torch::autograd::grad({loss}, xs, {}, true, true);
  at::Tensor penalty = at::zeros({}, at::kDouble);
  for (const at::Tensor& each : first) penalty = penalty + each.pow(2).sum();
  const auto expected = torch::autograd::grad({penalty}, xs);
  for (size_t i = 0; i < xs.size(); ++i) EXPECT_TRUE(near(gradients[i], expected[i]));
}

TEST_P(StrategyContract, AllReduceWithoutAGradientIsNotInTheGraph) {
  strategy().run([] {
    ReplicaContext* context = get_replica_context();
    EXPECT_FALSE(context->all_reduce(ReduceOp::kSum, at::ones({2})).requires_grad());
    const at::Tensor x = input_of(0, {2});
    EXPECT_TRUE(context->all_reduce(ReduceOp::kSum, x).requires_grad());
    EXPECT_TRUE(context->all_gather(x, 0).requires_grad());
    const c10::NoGradGuard no_grad;
    EXPECT_FALSE(context->all_reduce(ReduceOp::kSum, x).requires_grad());
    EXPECT_FALSE(context->all_gather(x, 0).requires_grad());
  });
}

TEST_P(StrategyContract, OpsWithoutAGradientSaySo) {
  EXPECT_TUTTI_ERROR(strategy().run([] {
    const at::Tensor x = input_of(my_id(), {2});
    get_replica_context()->all_reduce(ReduceOp::kMax, x).sum().backward();
  }),
                     ErrorCode::kUnimplemented, "kMax", "no gradient", "kSum and kMean");
}

}  // namespace tutti::gradients_contract_test
