// SPDX-License-Identifier: Apache-2.0
//
// Variables without components: reads and writes go to an object that stands in for a server in
// another process. The kind is written as an author of a strategy would write it.

#include <atomic>
#include <memory>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "tutti/base/mutex.h"
#include "tutti/strategy/local_extended.h"
#include "tutti/strategy/strategy.h"
#include "tutti/values/variable_impl.h"

#include "tests/strategy/variable_helpers.h"
#include "tests/support/expect_error.h"
#include "tests/support/tensors.h"

namespace tutti::remote_variable_test {

using namespace test::variable_words;
using test::bit_equal;
using test::make_variable;
using test::mirrored_cpus;
using test::my_id;
using test::on_write;
using test::tensor;

constexpr const char* kServerDevice = "/job:ps/replica:0/task:0/device:CPU:0";

/// Has the only copy of a variable's value.
class Server {
 public:
  explicit Server(const at::Tensor& value) : value_(value.detach().clone()) {}

  at::Tensor read() {
    const MutexLock lock(mutex_);
    ++reads_;
    return value_.clone();
  }
  void write(VariableImpl::Write op, const at::Tensor& value) {
    const MutexLock lock(mutex_);
    ++writes_;
    if (op == VariableImpl::Write::kAssign) value_.copy_(value);
    if (op == VariableImpl::Write::kAdd) value_.add_(value);
    if (op == VariableImpl::Write::kSub) value_.sub_(value);
  }
  void scatter(VariableImpl::Scatter op, const IndexedSlices& slices) {
    const MutexLock lock(mutex_);
    ++writes_;
    const bool adds = op == VariableImpl::Scatter::kAdd;
    ASSERT_TRUE(adds || op == VariableImpl::Scatter::kUpdate);
    if (adds) {
      value_.index_add_(0, slices.indices(), slices.values());
    } else {
      value_.index_copy_(0, slices.indices(), slices.values());
    }
  }

  int reads() const { return reads_; }
  int writes() const { return writes_; }

 private:
  Mutex mutex_;
  at::Tensor value_ TUTTI_GUARDED_BY(mutex_);
  std::atomic<int> reads_ = 0;
  std::atomic<int> writes_ = 0;
};

class RemoteVariable final : public VariableImpl {
 public:
  RemoteVariable(VariableDefinition definition, std::shared_ptr<Server> server)
      : VariableImpl(std::move(definition)), server_(std::move(server)) {}

 private:
  at::Tensor do_read(const Place& place, Read how) const override {
    at::Tensor value = server_->read();
    const bool is_leaf = place.kind == Place::Kind::kReplica && how != Read::kCopy;
    return value.set_requires_grad(is_leaf && *options().trainable);
  }

  void do_write(Write op, const Place& place, const VariableValue& value, CallSite site) override {
    const auto send = [&](const at::Tensor& sent) { server_->write(op, sent); };
    if (place.kind == Place::Kind::kReplica) return combine_once(op, place, value, site, send);
    send(checked_value(to_string(op), value, 0));
  }

  void do_scatter(Scatter op, const Place& place, const IndexedSlices& slices,
                  CallSite site) override {
    check_aggregates(op);
    const auto send = [&](const IndexedSlices& sent) { server_->scatter(op, sent); };
    if (place.kind == Place::Kind::kReplica) return combine_once(op, place, slices, site, send);
    send(slices);
  }

  const std::shared_ptr<Server> server_;
};

class ServerExtended final : public LocalExtended {
 public:
  explicit ServerExtended(int replicas)
      : LocalExtended("ServerStrategy", devices(replicas), nullptr, {},
                      {.parameter_devices = {DeviceSpec::parse(kServerDevice)}}) {}

  /// What holds the variable that was made last.
  Server& last() { return *last_; }

 private:
  static std::vector<DeviceSpec> devices(int count) {
    std::vector<DeviceSpec> list;
    for (const std::string& name : test::cpus(count)) list.push_back(DeviceSpec::canonical(name));
    return list;
  }

  std::shared_ptr<VariableImpl> do_create_variable(VariableDefinition definition,
                                                   const at::Tensor& initial_value) override {
    last_ = std::make_shared<Server>(initial_value);
    return std::make_shared<RemoteVariable>(std::move(definition), last_);
  }

  std::shared_ptr<Server> last_;
};

class RemoteVariables : public testing::TestWithParam<int> {
 protected:
  int n() const { return GetParam(); }
  Variable make(VariableAggregation aggregation = kSum) const {
    return on_write(strategy_, tensor({1., 2., 3.}), aggregation);
  }
  Server& server() const { return extended_->last(); }
  at::Tensor stored() const { return server().read(); }

  const std::shared_ptr<ServerExtended> extended_ = std::make_shared<ServerExtended>(GetParam());
  const Strategy strategy_{extended_};
};

INSTANTIATE_TEST_SUITE_P(Replicas, RemoteVariables, testing::Values(1, 2, 3));

TEST_P(RemoteVariables, KnowTheirTypeAndShapeWithoutComponents) {
  const Variable v = make();
  EXPECT_EQ(v.dtype(), at::kDouble);
  EXPECT_EQ(v.shape(), at::IntArrayRef({3}));
  EXPECT_EQ(v.name(), "w");
  EXPECT_EQ(v.device().to_string(), kServerDevice);
  EXPECT_EQ(v.devices().size(), 1U);
  EXPECT_TRUE(v.trainable());
  EXPECT_TRUE(v.is_initialized());
  EXPECT_TRUE(v.strategy() == strategy_);
  EXPECT_EQ(server().reads(), 0) << "none of this needs the value";
  EXPECT_EQ(server().writes(), 0);
}

TEST_P(RemoteVariables, RefuseToListComponents) {
  const Variable v = make();
  EXPECT_TUTTI_ERROR(v.components(), ErrorCode::kUnimplemented, "Variable::components",
                     "'w' (float64[3])", "is on /job:ps/replica:0/task:0/device:CPU:0",
                     "Read it with value()");
  EXPECT_TUTTI_ERROR(v.grad(), ErrorCode::kUnimplemented, "Variable::grad", "'w'",
                     "torch::autograd::grad()");
}

TEST_P(RemoteVariables, AreReadFromTheirServer) {
  const Variable v = make();
  EXPECT_TRUE(bit_equal(v.value(), tensor({1., 2., 3.})));
  EXPECT_TRUE(bit_equal(v.read_value(), tensor({1., 2., 3.})));
  EXPECT_TRUE(bit_equal(at::Tensor(v), tensor({1., 2., 3.})));
  EXPECT_TRUE(bit_equal(at::exp(v), at::exp(tensor({1., 2., 3.}))));
  EXPECT_EQ(server().reads(), 4);
  EXPECT_TRUE(bit_equal(v * v + 1, tensor({2., 5., 10.})));
  EXPECT_TRUE(bit_equal(2 - v, tensor({1., 0., -1.})));
  EXPECT_TRUE(bit_equal(-v / 2, tensor({-0.5, -1., -1.5})));
  const auto doubled = strategy_.run([&] { return (v + v).detach(); });
  for (const at::Tensor& each : doubled) EXPECT_TRUE(bit_equal(each, tensor({2., 4., 6.})));
}

TEST_P(RemoteVariables, AreWrittenToTheirServer) {
  const Variable v = make();
  EXPECT_TRUE(bit_equal(v.assign(tensor({4., 5., 6.})), tensor({4., 5., 6.})));
  EXPECT_TRUE(bit_equal(v.assign_add(1), tensor({5., 6., 7.})));
  EXPECT_TRUE(bit_equal(v.assign_sub(v), at::zeros({3}, at::kDouble)));
  v.assign(Mirrored<at::Tensor>(std::vector(static_cast<size_t>(n()), tensor({7., 8., 9.}))));
  EXPECT_TRUE(bit_equal(stored(), tensor({7., 8., 9.})));
  const int reads = server().reads();
  EXPECT_FALSE(v.assign(0, {.read_value = false}).defined());
  EXPECT_EQ(server().reads(), reads);
}

TEST_P(RemoteVariables, RefuseValuesBeforeTheyAreSent) {
  const Variable v = make();
  EXPECT_TUTTI_ERROR(v.assign(tensor({1., 2.})), kInvalid, "assign", "float64[2]",
                     "'w' (float64[3])");
  EXPECT_TUTTI_ERROR(v.assign_add(tensor({1.f, 2.f, 3.f})), kInvalid, "assign_add", "float32[3]");
  EXPECT_TUTTI_ERROR(v.assign(PerReplica<at::Tensor>({v.value(), v.value()})), kInvalid,
                     "2 components", "takes 1");
  EXPECT_TUTTI_ERROR(v.scatter_add(IndexedSlices(tensor({1.}), tensor<int64_t>({3}), {3})),
                     kInvalid, "there is no row 3", "0 to 2");
  EXPECT_EQ(server().writes(), 0);
}

TEST_P(RemoteVariables, TakeSlices) {
  const Variable v = make(kNone);
  const IndexedSlices slices(tensor({10., 20.}), tensor<int64_t>({2, 0}), {3});
  EXPECT_TRUE(bit_equal(v.scatter_add(slices), tensor({21., 2., 13.})));
  EXPECT_TRUE(bit_equal(v.scatter_update(slices), tensor({20., 2., 10.})));
}

TEST_P(RemoteVariables, AreWrittenOnceWithTheCombinationOfAllReplicas) {
  const auto part = [] { return at::full({3}, my_id() + 1.0, at::kDouble); };
  const double sum = n() * (n() + 1) / 2.0;
  const Variable v = make(kSum);
  strategy_.run([&] { v.assign(part()); });
  EXPECT_TRUE(bit_equal(stored(), at::full({3}, sum, at::kDouble)));
  strategy_.run(
      [&] { v.scatter_add(IndexedSlices(at::ones({1}, at::kDouble), tensor<int64_t>({1}), {3})); });
  EXPECT_EQ(stored()[1].item<double>(), sum + n());
  EXPECT_EQ(server().writes(), 2);

  const Variable mean = make(kMean);
  strategy_.run([&] { mean.assign(part()); });
  EXPECT_TRUE(bit_equal(stored(), at::full({3}, sum / n(), at::kDouble)));
  const Variable first = make(kOnlyFirstReplica);
  strategy_.run([&] { first.assign_add(part()); });
  EXPECT_TRUE(bit_equal(stored(), tensor({2., 3., 4.})));
  EXPECT_EQ(server().writes(), 1);

  const Variable none = make(kNone);
  EXPECT_TUTTI_ERROR(strategy_.run([&] { none.assign(part()); }), kInvalid,
                     "you must specify an aggregation method", "'w'");
}

TEST_P(RemoteVariables, TrainThroughTheValueThatWasRead) {
  const Variable v = make(kSum);
  strategy_.run([&] {
    const at::Tensor w = v.value();
    const at::Tensor loss = (w * w).sum() / n();
    v.assign_sub(0.5 * torch::autograd::grad({loss}, {w})[0]);
  });
  EXPECT_TRUE(at::allclose(stored(), at::zeros({3}, at::kDouble), 0, 1e-15));
}

TEST_P(RemoteVariables, PrintOneCopy) {
  const Variable v = make();
  const std::string expected = "<tf.Variable 'w:0' shape=(3,) dtype=float64, numpy=[1. 2. 3.]>";
  std::ostringstream out;
  out << v;
  EXPECT_EQ(out.str(), expected);
  std::ostringstream elsewhere;
  mirrored_cpus(2).scope([&] { elsewhere << v; });
  EXPECT_EQ(elsewhere.str(), expected);
}

TEST_P(RemoteVariables, AreOneValueForReduceAndGather) {
  const Variable v = make();
  const at::Tensor value = tensor({1., 2., 3.});
  EXPECT_TRUE(bit_equal(strategy_.reduce(ReduceOp::kMean, v), value));
  EXPECT_TRUE(bit_equal(strategy_.reduce(ReduceOp::kMax, v, 0), tensor({3.})[0]));
  EXPECT_TRUE(bit_equal(strategy_.gather(v, 0), value));
  EXPECT_TRUE(bit_equal(extended_->reduce_to(ReduceOp::kMean, v, "CPU:0")[0], value));
  EXPECT_TRUE(bit_equal(extended_->read_var(v), value));
  const std::vector<at::Tensor> locals = strategy_.local_results(v);
  ASSERT_EQ(locals.size(), 1U);
  EXPECT_TRUE(bit_equal(locals[0], value));
  if (n() > 1) {
    EXPECT_TUTTI_ERROR(strategy_.reduce(ReduceOp::kSum, v), kInvalid, "not per replica");
  }
  const auto sums =
      strategy_.run([&] { return get_replica_context()->all_reduce(ReduceOp::kSum, v).detach(); });
  const auto all = strategy_.run([&] { return get_replica_context()->all_gather(v, 0).detach(); });
  EXPECT_TRUE(bit_equal(sums[0], value * n()));
  EXPECT_EQ(all[0].size(0), 3 * n());
}

TEST_P(RemoteVariables, AreNoDestinationOfThisProcess) {
  const Variable v = make();
  EXPECT_TUTTI_ERROR(Destinations(v), kInvalid, "Destinations", kServerDevice,
                     "belongs to another process");
  EXPECT_TUTTI_ERROR(extended_->broadcast_to(tensor({1.}), v), kInvalid,
                     "belongs to another process");
}

TEST_P(RemoteVariables, AreUpdatedOnce) {
  const Variable v = make();
  int calls = 0;
  const auto results = extended_->update(v, [&](const Variable& copy) {
    ++calls;
    return copy.assign_add(1);
  });
  EXPECT_EQ(calls, 1);
  EXPECT_TRUE(bit_equal(results[0], tensor({2., 3., 4.})));
  const auto own = strategy_.run([&] {
    return get_replica_context()->update(v, [](const Variable& copy) { return copy.assign(0); });
  });
  for (const at::Tensor& each : own) EXPECT_TRUE(bit_equal(each, at::zeros({3}, at::kDouble)));
  EXPECT_EQ(server().writes(), 2);
}

TEST_P(RemoteVariables, ContainNoTensorOfThisProcess) {
  const Variable v = make();
  EXPECT_FALSE(extended_->value_container(v.value()).has_value());
  EXPECT_TRUE(extended_->value_container(v).is_same(v));
  EXPECT_TRUE(extended_->variable_created_in_scope(v));
}

TEST_P(RemoteVariables, AreValuesOfOtherVariables) {
  const Variable v = make();
  const Variable plain(at::zeros({3}, at::kDouble));
  plain.assign(v);
  EXPECT_TRUE(bit_equal(plain.read_value().detach(), tensor({1., 2., 3.})));
  plain.assign_add(1);
  v.assign(plain);
  EXPECT_TRUE(bit_equal(stored(), tensor({2., 3., 4.})));
}

TEST_P(RemoteVariables, HaveClonesOnTheirServer) {
  const Variable v = make();
  const Variable copy = v.clone();
  EXPECT_FALSE(copy.is_same(v));
  copy.assign(0);
  EXPECT_TRUE(bit_equal(v.value(), tensor({1., 2., 3.})));
  EXPECT_EQ(copy.device(), v.device());
  EXPECT_EQ(copy.aggregation(), v.aggregation());
  strategy_.scope([&] {
    const auto colocation = extended_->colocate_vars_with(v);
    EXPECT_EQ(Variable(1.0).device(), v.device());
  });
}

TEST_P(RemoteVariables, AreMadeByAllReplicasTogether) {
  const auto made = strategy_.run([] {
    return Variable(tensor({1., 2.}), {.name = "made", .aggregation = kSum});
  });
  for (const Variable& each : made) EXPECT_TRUE(each.is_same(made[0]));
  EXPECT_TRUE(bit_equal(stored(), tensor({1., 2.})));
  if (n() > 1) {
    EXPECT_TUTTI_ERROR(strategy_.run([] { Variable(at::ones({my_id() + 1})); }), kInvalid,
                       "a different type or shape", "float32[1]");
  }
}

TEST_P(RemoteVariables, BelongToTheirStrategy) {
  const Variable v = make();
  const MirroredStrategy other = mirrored_cpus(2);
  EXPECT_TUTTI_ERROR(other.scope([&] { return v.value(); }), kPrecondition,
                     "mixing different strategies", "'w'");
  EXPECT_TUTTI_ERROR(other.reduce(ReduceOp::kMean, v), kInvalid, "belongs to ServerStrategy");
  EXPECT_EQ(server().reads(), 0);
}

}  // namespace tutti::remote_variable_test
