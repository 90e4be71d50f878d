// SPDX-License-Identifier: Apache-2.0
//
// batch and unbatch.

#include <functional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/internal/batch_stream.h"
#include "tutti/data/transforms.h"

namespace tutti::data {
namespace {

class BatchNode final : public Node {
 public:
  BatchNode(NodePtr from, int64_t size, const BatchOptions& options)
      : Node({std::move(from)}), size_(size), options_(options) {}

  std::string_view name() const override { return "batch"; }
  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<BatchNode>(std::move(inputs[0]), size_, options_);
  }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    if (const Indexed* source = input().indexed()) {
      return stream<int64_t, Element>(
          input().iterate_indices(iteration),
          [source](std::vector<int64_t>& indices) { return source->get_batch(indices); });
    }
    return stream<Element, Element>(input().iterate(iteration), [](std::vector<Element>& elements) {
      return batch_elements(elements);
    });
  }
  const Node* batched_rows() const override {
    return below_maps(input()).indexed() != nullptr ? &input() : nullptr;
  }
  std::unique_ptr<IndexBatchStream> iterate_index_batches(Iteration& iteration) const override {
    return stream<int64_t, std::vector<int64_t>>(
        below_maps(input()).iterate_indices(iteration),
        [](std::vector<int64_t>& indices) { return indices; });
  }
  int64_t cardinality() const override {
    return count_batches(input().cardinality(), size_, options_.drop_remainder);
  }
  NodeTraits traits() const override { return {.batch_size = size_}; }

  ElementSpec spec() const override {
    ElementSpec specs = input().spec();
    if (!specs) return specs;
    const bool always_full =
        batches_are_full(input().cardinality(), size_, options_.drop_remainder);
    for (ValueSpec& spec : *specs) {
      if (spec.kind == ValueSpec::Kind::kNumber) {
        spec.kind = ValueSpec::Kind::kTensor;
        spec.shape.emplace();
      }
      if (spec.kind == ValueSpec::Kind::kString) spec.kind = ValueSpec::Kind::kStrings;
      if (spec.shape) spec.shape->insert(spec.shape->begin(), always_full ? size_ : -1);
    }
    return specs;
  }

 private:
  template <class Token, class Batch, class Make>
  std::unique_ptr<Stream<Batch>> stream(std::unique_ptr<Stream<Token>> from, Make make) const {
    return std::make_unique<BatchStream<Token, Batch>>("batch", std::move(from), size_,
                                                       options_.drop_remainder, std::move(make));
  }

  int64_t size_;
  BatchOptions options_;
};

class UnbatchStream final : public ElementStream {
 public:
  explicit UnbatchStream(std::unique_ptr<ElementStream> input) : input_(std::move(input)) {}

  bool next(Element& out) override {
    while (row_ == rows_) {
      if (!input_->next(batch_)) return false;
      row_ = 0;
      rows_ = batch_rows("Dataset::unbatch", batch_);
    }
    out.values.clear();
    out.structure = batch_.structure;
    for (const Value& value : batch_.values) {
      if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
        out.values.emplace_back(batch_row(*tensor, row_));
      } else {
        out.values.emplace_back(
            std::get<std::vector<std::string>>(value)[static_cast<size_t>(row_)]);
      }
    }
    ++row_;
    return true;
  }
  void save(StateWriter& state) override {
    state.tag("unbatch");
    state.number(row_);
    state.number(rows_);
    if (row_ < rows_) state.element(batch_);
    input_->save(state);
  }
  void restore(StateReader& state) override {
    state.tag("unbatch");
    row_ = state.count(INT64_MAX);
    rows_ = state.count(INT64_MAX);
    if (row_ < rows_) batch_ = state.element();
    input_->restore(state);
  }

 private:
  std::unique_ptr<ElementStream> input_;
  Element batch_;
  int64_t row_ = 0;
  int64_t rows_ = 0;
};

class UnbatchNode final : public Node {
 public:
  explicit UnbatchNode(NodePtr from) : Node({std::move(from)}) {}

  std::string_view name() const override { return "unbatch"; }
  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<UnbatchNode>(std::move(inputs[0]));
  }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    return std::make_unique<UnbatchStream>(input().iterate(iteration));
  }
  int64_t cardinality() const override {
    const int64_t batches = input().cardinality();
    return batches <= 0 && batches != kUnknown ? batches : kUnknown;
  }
  ElementSpec spec() const override {
    ElementSpec specs = input().spec();
    if (!specs) return specs;
    for (ValueSpec& spec : *specs) {
      if (spec.kind == ValueSpec::Kind::kStrings) spec.kind = ValueSpec::Kind::kString;
      if (spec.shape && !spec.shape->empty()) spec.shape->erase(spec.shape->begin());
    }
    return specs;
  }
};

}  // namespace

NodePtr make_batch(NodePtr input, int64_t size, const BatchOptions& options) {
  if (size < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Dataset::batch: the size is ", size, "; it must be 1 or more."));
  }
  return std::make_shared<BatchNode>(std::move(input), size, options);
}

NodePtr make_unbatch(NodePtr input) { return std::make_shared<UnbatchNode>(std::move(input)); }

}  // namespace tutti::data
