// SPDX-License-Identifier: Apache-2.0

#include "tutti/data/step_stream.h"

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/internal/index_steps.h"
#include "tutti/data/transforms.h"

namespace tutti::data {
namespace {

class GroupedSteps final : public StepStream {
 public:
  GroupedSteps(std::unique_ptr<ElementStream> input, int replicas)
      : input_(std::move(input)), replicas_(replicas) {}

  bool next(Step& out) override {
    out = {};
    out.keeps_elements = true;
    Element element;
    while (out.with_data < replicas_ && next_element(element)) {
      out.elements.emplace_back(std::move(element));
      ++out.with_data;
      element = {};
    }
    return out.with_data > 0;
  }

  void save(StateWriter& state, const std::deque<Step>& ahead) override {
    state.tag("grouped steps");
    int64_t elements = static_cast<int64_t>(pending_.size());
    for (const Step& step : ahead) elements += step.with_data;
    state.number(elements);
    for (const Step& step : ahead) {
      for (int i = 0; i < step.with_data; ++i) {
        state.element(*step.elements[static_cast<size_t>(i)]);
      }
    }
    for (const Element& element : pending_) state.element(element);
    input_->save(state);
  }
  void restore(StateReader& state) override {
    state.tag("grouped steps");
    for (int64_t left = state.count(INT32_MAX); left > 0; --left) {
      pending_.push_back(state.element());
    }
    input_->restore(state);
  }

 private:
  bool next_element(Element& out) {
    if (pending_.empty()) return input_->next(out);
    out = std::move(pending_.front());
    pending_.pop_front();
    return true;
  }

  std::unique_ptr<ElementStream> input_;
  const int replicas_;
  std::deque<Element> pending_;  // of a restored position
};

// Reads whole batches, including the rows of other workers.
class PieceSteps final : public StepStream {
 public:
  PieceSteps(std::unique_ptr<ElementStream> input, const PieceOptions& options)
      : input_(std::move(input)), options_(options) {}

  bool next(Step& out) override {
    out = {};
    Element batch;
    if (!pending_.empty()) {
      batch = std::move(pending_.front());
      pending_.pop_front();
    } else if (!input_->next(batch)) {
      return false;
    }
    out.with_data = static_cast<int>(options_.count);
    if (options_.pieces == 1) {
      out.elements.emplace_back(batch);
    } else {
      const int64_t rows = batch_rows("distribute_dataset", batch);
      for (int64_t i = 0; i < options_.count; ++i) {
        const auto [begin, end] =
            piece_of(rows, options_.pieces, options_.first + i * options_.stride, options_.even);
        out.elements.emplace_back(slice_batch(batch, begin, end));
      }
    }
    out.whole = std::move(batch);
    return true;
  }

  void save(StateWriter& state, const std::deque<Step>& ahead) override {
    state.tag("batches");
    state.number(static_cast<int64_t>(ahead.size() + pending_.size()));
    for (const Step& step : ahead) state.element(*step.whole);
    for (const Element& batch : pending_) state.element(batch);
    input_->save(state);
  }
  void restore(StateReader& state) override {
    state.tag("batches");
    for (int64_t left = state.count(INT32_MAX); left > 0; --left) {
      pending_.push_back(state.element());
    }
    input_->restore(state);
  }

 private:
  std::unique_ptr<ElementStream> input_;
  const PieceOptions options_;
  std::deque<Element> pending_;  // of a restored position
};

class ParallelSteps final : public StepStream {
 public:
  explicit ParallelSteps(std::vector<std::unique_ptr<StepStream>> replicas)
      : replicas_(std::move(replicas)) {}

  bool next(Step& out) override {
    out = {};
    out.keeps_elements = true;
    Step step;
    for (auto& replica : replicas_) {
      const bool has = replica->next(step);
      out.elements.push_back(has ? std::move(step.elements[0]) : std::nullopt);
      out.with_data += has ? 1 : 0;
    }
    return out.with_data > 0;
  }

  void save(StateWriter& state, const std::deque<Step>& ahead) override {
    state.tag("parallel steps");
    for (size_t i = 0; i < replicas_.size(); ++i) {
      std::deque<Step> mine;
      for (const Step& step : ahead) {
        if (step.elements[i]) mine.push_back({{step.elements[i]}, 1});
      }
      replicas_[i]->save(state, mine);
    }
  }
  void restore(StateReader& state) override {
    state.tag("parallel steps");
    for (auto& replica : replicas_) replica->restore(state);
  }

 private:
  std::vector<std::unique_ptr<StepStream>> replicas_;
};

}  // namespace

std::unique_ptr<StepStream> grouped_steps(const Node& node, Iteration& iteration, int replicas) {
  return std::make_unique<GroupedSteps>(node.iterate(iteration), replicas);
}

std::unique_ptr<StepStream> piece_steps(const Node& node, Iteration& iteration,
                                        const PieceOptions& options) {
  if (const Node* rows = node.batched_rows()) {
    return std::make_unique<IndexSteps>(node.shared_from_this(), *rows, iteration, options);
  }
  return std::make_unique<PieceSteps>(node.iterate(iteration), options);
}

std::unique_ptr<StepStream> parallel_steps(
    const std::vector<NodePtr>& nodes, const std::vector<std::unique_ptr<Iteration>>& iterations) {
  std::vector<std::unique_ptr<StepStream>> replicas;
  for (size_t i = 0; i < nodes.size(); ++i) {
    replicas.push_back(grouped_steps(*nodes[i], *iterations[i], 1));
  }
  return std::make_unique<ParallelSteps>(std::move(replicas));
}

}  // namespace tutti::data
