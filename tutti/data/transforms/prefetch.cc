// SPDX-License-Identifier: Apache-2.0
//
// prefetch: a dedicated thread that reads up to n elements ahead of the consumer.

#include <deque>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/read_ahead.h"
#include "tutti/data/transforms.h"

namespace tutti::data {
namespace {

class PrefetchStream final : public ElementStream {
 public:
  PrefetchStream(std::unique_ptr<ElementStream> input, size_t capacity)
      : input_(std::move(input)),
        ahead_("tutti/prefetch", capacity, [this](Element& out) { return input_->next(out); }) {}

  bool next(Element& out) override { return ahead_.next(out); }

  void save(StateWriter& state) override {
    ahead_.save([&](const std::deque<Element>& elements, bool ended) {
      state.tag("prefetch");
      state.number(static_cast<int64_t>(elements.size()));
      for (const Element& element : elements) state.element(element);
      state.number(ended ? 1 : 0);
      input_->save(state);
    });
  }

  void restore(StateReader& state) override {
    state.tag("prefetch");
    std::deque<Element> elements;
    for (int64_t left = state.count(INT32_MAX); left > 0; --left) {
      elements.push_back(state.element());
    }
    const bool ended = state.count(1) == 1;
    ahead_.restore(std::move(elements), ended);
    input_->restore(state);
  }

 private:
  std::unique_ptr<ElementStream> input_;
  ReadAhead<Element> ahead_;  // last: its thread uses the above
};

class PrefetchNode final : public Node {
 public:
  PrefetchNode(NodePtr from, int64_t buffer_size)
      : Node({std::move(from)}), buffer_size_(buffer_size) {}

  std::string_view name() const override { return "prefetch"; }
  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<PrefetchNode>(std::move(inputs[0]), buffer_size_);
  }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    if (buffer_size_ == 0) return input().iterate(iteration);
    return std::make_unique<PrefetchStream>(input().iterate(iteration),
                                            static_cast<size_t>(buffer_size_));
  }
  // Readers of indices read ahead on their own thread.
  const Node* batched_rows() const override { return input().batched_rows(); }
  std::unique_ptr<IndexBatchStream> iterate_index_batches(Iteration& iteration) const override {
    return input().iterate_index_batches(iteration);
  }
  int64_t cardinality() const override { return input().cardinality(); }
  ElementSpec spec() const override { return input().spec(); }
  NodeTraits traits() const override { return {.batch_size = input().batch_size()}; }

 private:
  int64_t buffer_size_;
};

}  // namespace

NodePtr make_prefetch(NodePtr input, int64_t buffer_size) {
  if (buffer_size < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Dataset::prefetch: buffer_size is ", buffer_size,
                        "; it must be 0 (none) or more."));
  }
  return std::make_shared<PrefetchNode>(std::move(input), buffer_size);
}

}  // namespace tutti::data
