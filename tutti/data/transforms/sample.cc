// SPDX-License-Identifier: Apache-2.0
//
// sample_from_datasets: each element comes from a dataset that is drawn by weight.

#include <atomic>
#include <cmath>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/internal/random.h"
#include "tutti/data/transforms.h"

namespace tutti::data {
namespace {

class SampleStream final : public ElementStream {
 public:
  using Restored = std::function<void(const Iteration::Order&)>;

  SampleStream(std::vector<std::unique_ptr<ElementStream>> inputs,
               const std::vector<double>& weights, bool stop_on_empty,
               const Iteration::Order& order, Restored restored)
      : inputs_(std::move(inputs)),
        weights_(weights),
        stop_on_empty_(stop_on_empty),
        order_(order),
        restored_(std::move(restored)),
        random_(order.mixed()) {}

  bool next(Element& out) override {
    size_t drawn = 0;
    while (draw(drawn)) {
      if (inputs_[drawn]->next(out)) return true;
      leave_out(drawn);
    }
    return false;
  }

  void save(StateWriter& state) override {
    state.tag("sample");
    order_.save(state);
    random_.save(state);
    state.number(static_cast<int64_t>(inputs_.size()));
    for (size_t i = 0; i < inputs_.size(); ++i) {
      state.number(weights_[i] > 0 ? 1 : 0);
      inputs_[i]->save(state);  // even if it has ended: its shuffles have drawn their orders
    }
  }

  void restore(StateReader& state) override {
    state.tag("sample");
    order_ = Iteration::Order::restore(state);
    restored_(order_);
    random_.restore(state);
    const int64_t inputs = state.count(INT32_MAX);
    if (inputs != static_cast<int64_t>(inputs_.size())) {
      throw Error(ErrorCode::kDataLoss,
                  message("Iterator::restore: the position belongs to a different pipeline: its "
                          "sample_from_datasets has ",
                          inputs, " datasets, this one has ", inputs_.size(), "."));
    }
    for (size_t i = 0; i < inputs_.size(); ++i) {
      if (state.count(1) == 0) weights_[i] = 0;
      inputs_[i]->restore(state);
    }
  }

 private:
  // Returns false if all datasets have ended.
  bool draw(size_t& drawn) {
    double sum = 0;
    for (const double weight : weights_) sum += weight;
    if (sum <= 0) return false;
    double left = random_.uniform() * sum;
    for (size_t i = 0; i < weights_.size(); ++i) {
      if (weights_[i] <= 0) continue;
      drawn = i;  // rounding may leave a remainder to the last one
      left -= weights_[i];
      if (left < 0) break;
    }
    return true;
  }

  void leave_out(size_t ended) {
    if (stop_on_empty_) {
      weights_.assign(weights_.size(), 0);
    } else {
      weights_[ended] = 0;
    }
  }

  std::vector<std::unique_ptr<ElementStream>> inputs_;
  std::vector<double> weights_;  // 0 once a dataset has ended
  const bool stop_on_empty_;
  Iteration::Order order_;
  Restored restored_;
  Random random_;
};

class SampleNode final : public Node {
 public:
  SampleNode(std::vector<NodePtr> from, std::vector<double> weights, const SampleOptions& options,
             uint64_t seed, std::shared_ptr<std::atomic<uint64_t>> passes)
      : Node(std::move(from)),
        weights_(std::move(weights)),
        options_(options),
        seed_(seed),
        passes_(std::move(passes)) {}

  std::string_view name() const override { return "sample"; }
  NodePtr with_inputs(std::vector<NodePtr> from) const override {
    return std::make_shared<SampleNode>(std::move(from), weights_, options_, seed_, passes_);
  }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    const Iteration::Order order = iteration.next_order(*this, options_.seed, seed_, *passes_);
    std::vector<std::unique_ptr<ElementStream>> streams;
    for (const NodePtr& each : inputs()) streams.push_back(each->iterate(iteration));
    return std::make_unique<SampleStream>(std::move(streams), weights_,
                                          options_.stop_on_empty_dataset, order,
                                          [this, &iteration](const Iteration::Order& restored) {
                                            iteration.set_order(*this, restored, *passes_);
                                          });
  }
  int64_t cardinality() const override {
    int64_t sum = 0;
    bool all_infinite = true;
    bool any_infinite = false;
    bool any_unknown = false;
    bool all_empty = true;
    for (size_t i = 0; i < inputs().size(); ++i) {
      if (weights_[i] <= 0) continue;
      const int64_t size = inputs()[i]->cardinality();
      all_infinite = all_infinite && size == kInfinite;
      any_infinite = any_infinite || size == kInfinite;
      any_unknown = any_unknown || size == kUnknown;
      all_empty = all_empty && size == 0;
      if (size > 0) sum += size;
    }
    if (all_empty) return 0;
    if (options_.stop_on_empty_dataset) return all_infinite ? kInfinite : kUnknown;
    if (any_infinite) return kInfinite;
    return any_unknown ? kUnknown : sum;
  }
  ElementSpec spec() const override { return common_spec(inputs()); }
  NodeTraits traits() const override { return {.batch_size = common_batch_size(inputs())}; }

 private:
  std::vector<double> weights_;
  SampleOptions options_;
  uint64_t seed_;
  std::shared_ptr<std::atomic<uint64_t>> passes_;  // shared with rewritten pipelines
};

}  // namespace

NodePtr make_sample(std::vector<NodePtr> inputs, std::vector<double> weights,
                    const SampleOptions& options) {
  const auto refuse = [](const std::string& reason) {
    throw Error(ErrorCode::kInvalidArgument, "sample_from_datasets: " + reason);
  };
  if (inputs.empty()) refuse("there are no datasets.");
  if (weights.empty()) weights.assign(inputs.size(), 1.0);
  if (weights.size() != inputs.size()) {
    refuse(message("there are ", weights.size(), " weights for ", inputs.size(),
                   " datasets. Give one weight per dataset, or none."));
  }
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!(weights[i] >= 0)) {
      refuse(message("weight ", i, " is ", weights[i], "; it must be 0 or more."));
    }
    sum += weights[i];
  }
  if (!(sum > 0 && std::isfinite(sum))) {
    refuse(message("the sum of the weights is ", sum, "; it must be positive and finite."));
  }
  return std::make_shared<SampleNode>(std::move(inputs), std::move(weights), options,
                                      options.seed.value_or(random_seed()),
                                      std::make_shared<std::atomic<uint64_t>>(0));
}

}  // namespace tutti::data
