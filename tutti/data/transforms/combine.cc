// SPDX-License-Identifier: Apache-2.0
//
// Transforms that combine elements or datasets: zip, concatenate, enumerate, flat_map; and
// with_options.

#include <algorithm>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/internal/inner_passes.h"
#include "tutti/data/transforms.h"

namespace tutti::data {
namespace {

void append(Element& to, Element&& from) {
  for (Value& value : from.values) to.values.push_back(std::move(value));
  to.structure += from.structure;
}

// ---- zip -------------------------------------------------------------------------

class ZipStream final : public ElementStream {
 public:
  explicit ZipStream(std::vector<std::unique_ptr<ElementStream>> inputs)
      : inputs_(std::move(inputs)) {}

  bool next(Element& out) override {
    Element all;
    Element part;
    for (auto& input : inputs_) {
      if (!input->next(part)) return false;
      append(all, std::move(part));
      part = {};
    }
    out = std::move(all);
    return true;
  }
  int64_t skip(int64_t n) override {
    for (auto& input : inputs_) n = std::min(n, input->skip(n));
    return n;
  }
  void save(StateWriter& state) override {
    state.tag("zip");
    for (auto& input : inputs_) input->save(state);
  }
  void restore(StateReader& state) override {
    state.tag("zip");
    for (auto& input : inputs_) input->restore(state);
  }

 private:
  std::vector<std::unique_ptr<ElementStream>> inputs_;
};

class ZipNode final : public Node {
 public:
  explicit ZipNode(std::vector<NodePtr> from) : Node(std::move(from)) {}

  std::string_view name() const override { return "zip"; }
  NodePtr with_inputs(std::vector<NodePtr> from) const override {
    return std::make_shared<ZipNode>(std::move(from));
  }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    std::vector<std::unique_ptr<ElementStream>> streams;
    for (const NodePtr& each : inputs()) streams.push_back(each->iterate(iteration));
    return std::make_unique<ZipStream>(std::move(streams));
  }
  int64_t cardinality() const override {
    int64_t all = kInfinite;
    for (const NodePtr& each : inputs()) {
      const int64_t size = each->cardinality();
      if (size == kUnknown) return kUnknown;
      if (size != kInfinite) all = all == kInfinite ? size : std::min(all, size);
    }
    return all;
  }
  ElementSpec spec() const override {
    std::vector<ValueSpec> all;
    for (const NodePtr& each : inputs()) {
      const ElementSpec specs = each->spec();
      if (!specs) return std::nullopt;
      all.insert(all.end(), specs->begin(), specs->end());
    }
    return all;
  }
  NodeTraits traits() const override { return {.batch_size = common_batch_size(inputs())}; }
};

// ---- concatenate -----------------------------------------------------------------

class ConcatenateStream final : public ElementStream {
 public:
  explicit ConcatenateStream(std::vector<std::unique_ptr<ElementStream>> inputs)
      : inputs_(std::move(inputs)) {}

  bool next(Element& out) override {
    for (; current_ < inputs_.size(); ++current_) {
      if (inputs_[current_]->next(out)) return true;
    }
    return false;
  }
  int64_t skip(int64_t n) override {
    int64_t skipped = 0;
    while (current_ < inputs_.size()) {
      skipped += inputs_[current_]->skip(n - skipped);
      if (skipped == n) break;
      ++current_;
    }
    return skipped;
  }
  // Saves all inputs: even those that are not being read have drawn the orders of their shuffles.
  void save(StateWriter& state) override {
    state.tag("concatenate");
    state.number(static_cast<int64_t>(current_));
    for (auto& input : inputs_) input->save(state);
  }
  void restore(StateReader& state) override {
    state.tag("concatenate");
    current_ = static_cast<size_t>(state.count(static_cast<int64_t>(inputs_.size())));
    for (auto& input : inputs_) input->restore(state);
  }

 private:
  std::vector<std::unique_ptr<ElementStream>> inputs_;
  size_t current_ = 0;
};

class ConcatenateNode final : public Node {
 public:
  explicit ConcatenateNode(std::vector<NodePtr> from) : Node(std::move(from)) {}

  std::string_view name() const override { return "concatenate"; }
  NodePtr with_inputs(std::vector<NodePtr> from) const override {
    return std::make_shared<ConcatenateNode>(std::move(from));
  }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    std::vector<std::unique_ptr<ElementStream>> streams;
    for (const NodePtr& each : inputs()) streams.push_back(each->iterate(iteration));
    return std::make_unique<ConcatenateStream>(std::move(streams));
  }
  int64_t cardinality() const override {
    int64_t all = 0;
    for (const NodePtr& each : inputs()) {
      const int64_t size = each->cardinality();
      if (size == kInfinite) return kInfinite;
      if (size == kUnknown) all = kUnknown;
      if (all != kUnknown) all += size;
    }
    return all;
  }
  ElementSpec spec() const override { return common_spec(inputs()); }
  NodeTraits traits() const override { return {.batch_size = common_batch_size(inputs())}; }
};

// ---- enumerate -------------------------------------------------------------------

class EnumerateStream final : public ElementStream {
 public:
  EnumerateStream(std::unique_ptr<ElementStream> input, int64_t start)
      : input_(std::move(input)), number_(start) {}

  bool next(Element& out) override {
    Element element;
    if (!input_->next(element)) return false;
    out = {};
    out.values.emplace_back(Number::of(number_++));
    append(out, std::move(element));
    return true;
  }
  int64_t skip(int64_t n) override {
    const int64_t skipped = input_->skip(n);
    number_ += skipped;
    return skipped;
  }
  void save(StateWriter& state) override {
    state.tag("enumerate");
    state.number(number_);
    input_->save(state);
  }
  void restore(StateReader& state) override {
    state.tag("enumerate");
    number_ = state.number();
    input_->restore(state);
  }

 private:
  std::unique_ptr<ElementStream> input_;
  int64_t number_;
};

class EnumerateNode final : public Node {
 public:
  EnumerateNode(NodePtr from, int64_t start) : Node({std::move(from)}), start_(start) {}

  std::string_view name() const override { return "enumerate"; }
  NodePtr with_inputs(std::vector<NodePtr> from) const override {
    return std::make_shared<EnumerateNode>(std::move(from[0]), start_);
  }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    return std::make_unique<EnumerateStream>(input().iterate(iteration), start_);
  }
  int64_t cardinality() const override { return input().cardinality(); }
  ElementSpec spec() const override {
    ElementSpec specs = input().spec();
    if (specs) specs->insert(specs->begin(), {ValueSpec::Kind::kNumber, at::kLong, std::nullopt});
    return specs;
  }

 private:
  int64_t start_;
};

// ---- flat_map --------------------------------------------------------------------

class FlatMapStream final : public ElementStream {
 public:
  FlatMapStream(std::unique_ptr<ElementStream> input, const ExpandFn& fn, const InnerPasses& passes)
      : input_(std::move(input)), fn_(fn), passes_(passes) {}

  bool next(Element& out) override {
    while (true) {
      if (inner_ != nullptr) {
        if (inner_->next(out)) return true;
        inner_.reset();
        passes_.stage().count_skipped(iteration_->skipped());
      }
      if (!input_->next(element_)) return false;
      begin_inner(opened_++);
    }
  }
  // Saves the element whose dataset is being read; restoring recreates the dataset.
  void save(StateWriter& state) override {
    state.tag("flat_map");
    passes_.save(state);
    state.number(opened_);
    state.number(inner_ != nullptr ? 1 : 0);
    if (inner_ != nullptr) {
      state.element(element_);
      inner_->save(state);
    }
    input_->save(state);
  }
  void restore(StateReader& state) override {
    state.tag("flat_map");
    passes_.restore(state);
    opened_ = state.count(INT64_MAX);
    if (state.count(1) == 1) {
      element_ = state.element();
      begin_inner(opened_ - 1);
      inner_->restore(state);
    }
    input_->restore(state);
  }

 private:
  void begin_inner(int64_t number) {
    node_ = passes_.stage().measure([&] { return fn_(element_); });
    iteration_ = passes_.inner(number);
    inner_ = node_->iterate(*iteration_);
  }

  std::unique_ptr<ElementStream> input_;
  const ExpandFn& fn_;
  InnerPasses passes_;
  int64_t opened_ = 0;
  Element element_;
  NodePtr node_;
  std::unique_ptr<Iteration> iteration_;
  std::unique_ptr<ElementStream> inner_;
};

class FlatMapNode final : public Node {
 public:
  FlatMapNode(NodePtr from, ExpandFn fn, PassCounter passes)
      : Node({std::move(from)}), fn_(std::move(fn)), passes_(std::move(passes)) {}

  std::string_view name() const override { return "flat_map"; }
  NodePtr with_inputs(std::vector<NodePtr> from) const override {
    return std::make_shared<FlatMapNode>(std::move(from[0]), fn_, passes_);
  }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    return std::make_unique<FlatMapStream>(input().iterate(iteration), fn_,
                                           InnerPasses(iteration, *this, *passes_));
  }
  NodeTraits traits() const override { return {.expand = fn_}; }
  int64_t cardinality() const override { return input().cardinality() == 0 ? 0 : kUnknown; }

 private:
  ExpandFn fn_;
  PassCounter passes_;
};

// ---- options ---------------------------------------------------------------------

class OptionsNode final : public Node {
 public:
  OptionsNode(NodePtr from, const DatasetOptions& options)
      : Node({std::move(from)}), options_(options) {}

  std::string_view name() const override { return "options"; }
  NodePtr with_inputs(std::vector<NodePtr> from) const override {
    return std::make_shared<OptionsNode>(std::move(from[0]), options_);
  }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    return input().iterate(iteration);
  }
  const Indexed* indexed() const override { return input().indexed(); }
  std::unique_ptr<IndexStream> iterate_indices(Iteration& iteration) const override {
    return input().iterate_indices(iteration);
  }
  const Node* batched_rows() const override { return input().batched_rows(); }
  std::unique_ptr<IndexBatchStream> iterate_index_batches(Iteration& iteration) const override {
    return input().iterate_index_batches(iteration);
  }
  int64_t cardinality() const override { return input().cardinality(); }
  ElementSpec spec() const override { return input().spec(); }
  NodeTraits traits() const override { return {.batch_size = input().batch_size()}; }
  const DatasetOptions& options() const { return options_; }

 private:
  DatasetOptions options_;
};

void collect_options(const Node& node, DatasetOptions& options) {
  if (const auto* here = dynamic_cast<const OptionsNode*>(&node)) {
    if (!options.auto_shard_policy) options.auto_shard_policy = here->options().auto_shard_policy;
  }
  for (const NodePtr& each : node.inputs()) collect_options(*each, options);
}

}  // namespace

NodePtr make_zip(std::vector<NodePtr> inputs) {
  return std::make_shared<ZipNode>(std::move(inputs));
}

NodePtr make_concatenate(std::vector<NodePtr> inputs) {
  return std::make_shared<ConcatenateNode>(std::move(inputs));
}

NodePtr make_enumerate(NodePtr input, int64_t start) {
  return std::make_shared<EnumerateNode>(std::move(input), start);
}

NodePtr make_flat_map(NodePtr input, ExpandFn fn) {
  return std::make_shared<FlatMapNode>(std::move(input), std::move(fn), make_pass_counter());
}

NodePtr make_options(NodePtr input, const DatasetOptions& options) {
  return std::make_shared<OptionsNode>(std::move(input), options);
}

DatasetOptions options_of(const Node& node) {
  DatasetOptions options;
  collect_options(node, options);
  return options;
}

}  // namespace tutti::data
