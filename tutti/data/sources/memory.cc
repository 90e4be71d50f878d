// SPDX-License-Identifier: Apache-2.0
//
// Sources in memory: range, from_tensors, from_tensor_slices, from_generator.

#include <algorithm>
#include <cstring>
#include <utility>

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>
#include <ATen/ops/tensor.h>

#include "tutti/base/error.h"
#include "tutti/data/sources.h"

namespace tutti::data {
namespace {

// The indices of a random-access source, in order.
class CountStream final : public IndexStream {
 public:
  explicit CountStream(int64_t size) : size_(size) {}

  bool next(int64_t& out) override {
    if (next_ == size_) return false;
    out = next_++;
    return true;
  }
  int64_t skip(int64_t n) override {
    const int64_t skipped = std::min(n, size_ - next_);
    next_ += skipped;
    return skipped;
  }
  void save(StateWriter& state) override {
    state.tag("source");
    state.number(next_);
  }
  void restore(StateReader& state) override {
    state.tag("source");
    next_ = state.count(size_);
  }

 private:
  int64_t size_;
  int64_t next_ = 0;
};

class IndexedSource : public Node, public Indexed {
 public:
  NodePtr with_inputs(std::vector<NodePtr>) const override { return shared_from_this(); }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    return stream_of_indices(*this, iteration);
  }
  const Indexed* indexed() const override { return this; }
  std::unique_ptr<IndexStream> iterate_indices(Iteration&) const override {
    return std::make_unique<CountStream>(size());
  }
  int64_t cardinality() const override { return size(); }
};

class RangeNode final : public IndexedSource {
 public:
  RangeNode(int64_t start, int64_t stop, int64_t step) : start_(start), step_(step) {
    // Unsigned: the distance may not fit into int64.
    const uint64_t distance = step > 0 ? static_cast<uint64_t>(stop) - static_cast<uint64_t>(start)
                                       : static_cast<uint64_t>(start) - static_cast<uint64_t>(stop);
    const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : -static_cast<uint64_t>(step);
    const bool empty = step > 0 ? stop <= start : stop >= start;
    size_ = empty ? 0 : static_cast<int64_t>((distance - 1) / stride + 1);
  }

  std::string_view name() const override { return "range"; }
  int64_t size() const override { return size_; }
  Element get(int64_t index) const override {
    Element element;
    element.values.emplace_back(Number::of(start_ + index * step_));
    return element;
  }
  Element get_batch(std::span<const int64_t> indices) const override {
    at::Tensor values = at::empty({static_cast<int64_t>(indices.size())}, at::kLong);
    auto* const data = values.data_ptr<int64_t>();
    for (size_t i = 0; i < indices.size(); ++i) data[i] = start_ + indices[i] * step_;
    Element element;
    element.values.emplace_back(std::move(values));
    return element;
  }
  ElementSpec spec() const override {
    return std::vector<ValueSpec>{{ValueSpec::Kind::kNumber, at::kLong, std::nullopt}};
  }

 private:
  int64_t start_;
  int64_t step_;
  int64_t size_ = 0;
};

class TensorsNode final : public IndexedSource {
 public:
  explicit TensorsNode(Element element) : element_(std::move(element)) {}

  std::string_view name() const override { return "from_tensors"; }
  int64_t size() const override { return 1; }
  Element get(int64_t) const override { return element_; }
  Element get_batch(std::span<const int64_t> indices) const override {
    std::vector<Element> copies(std::max<size_t>(indices.size(), 1), element_);
    Element batch = batch_elements(copies);
    return indices.empty() ? slice_batch(batch, 0, 0) : batch;
  }
  ElementSpec spec() const override { return spec_of(element_); }

 private:
  Element element_;
};

class TensorSlicesNode final : public IndexedSource {
 public:
  explicit TensorSlicesNode(Element rows) : rows_(std::move(rows)) {
    for (Value& value : rows_.values) {
      if (auto* tensor = std::get_if<at::Tensor>(&value)) {
        *tensor = tensor->detach().resolve_conj().resolve_neg().contiguous();
      }
    }
    size_ = batch_rows("from_tensor_slices", rows_);
  }

  std::string_view name() const override { return "from_tensor_slices"; }
  int64_t size() const override { return size_; }

  Element get(int64_t index) const override {
    Element element;
    element.structure = rows_.structure;
    for (const Value& value : rows_.values) {
      if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
        element.values.emplace_back(batch_row(*tensor, index));
      } else {
        element.values.emplace_back(
            std::get<std::vector<std::string>>(value)[static_cast<size_t>(index)]);
      }
    }
    return element;
  }

  Element get_batch(std::span<const int64_t> indices) const override {
    Element batch;
    batch.structure = rows_.structure;
    for (const Value& value : rows_.values) {
      if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
        batch.values.emplace_back(gather_rows(*tensor, indices));
      } else {
        const auto& all = std::get<std::vector<std::string>>(value);
        std::vector<std::string> strings;
        for (const int64_t i : indices) strings.push_back(all[static_cast<size_t>(i)]);
        batch.values.emplace_back(std::move(strings));
      }
    }
    return batch;
  }

  ElementSpec spec() const override {
    ElementSpec specs = spec_of(rows_);
    for (ValueSpec& spec : *specs) {
      if (spec.kind == ValueSpec::Kind::kStrings) spec.kind = ValueSpec::Kind::kString;
      if (spec.shape) spec.shape->erase(spec.shape->begin());
    }
    return specs;
  }

 private:
  static at::Tensor gather_rows(const at::Tensor& from, std::span<const int64_t> indices) {
    std::vector<int64_t> sizes = from.sizes().vec();
    sizes[0] = static_cast<int64_t>(indices.size());
    if (!from.device().is_cpu()) {
      return at::index_select(from, 0,
                              at::tensor(at::ArrayRef<int64_t>(indices.data(), indices.size()),
                                         from.options().dtype(at::kLong)));
    }
    at::Tensor batch = at::empty(sizes, from.options());
    const size_t row = from.size(0) == 0 ? 0 : from.nbytes() / static_cast<size_t>(from.size(0));
    const auto* const source = static_cast<const char*>(from.data_ptr());
    auto* const target = static_cast<char*>(batch.data_ptr());
    constexpr size_t kAhead = 8;
    for (size_t i = 0; i < indices.size(); ++i) {
      // Rows are drawn at random, so the processor cannot prefetch the next one.
      if (i + kAhead < indices.size()) {
        const char* const ahead = source + static_cast<size_t>(indices[i + kAhead]) * row;
        for (size_t line = 0; line < row && line < 512; line += 64)
          __builtin_prefetch(ahead + line);
      }
      std::memcpy(target + i * row, source + static_cast<size_t>(indices[i]) * row, row);
    }
    return batch;
  }

  Element rows_;
  int64_t size_ = 0;
};

class GeneratorStream final : public ElementStream {
 public:
  GeneratorStream(Generator generator, Iteration::Stage& stage)
      : generator_(std::move(generator)), stage_(stage) {}

  bool next(Element& out) override {
    if (ended_) return false;
    std::optional<Element> element = stage_.measure(generator_);
    if (!element) {
      ended_ = true;
      return false;
    }
    ++delivered_;
    out = std::move(*element);
    return true;
  }
  void save(StateWriter& state) override {
    state.tag("from_generator");
    state.number(delivered_);
  }
  void restore(StateReader& state) override {
    state.tag("from_generator");
    const int64_t delivered = state.count(INT64_MAX);
    const int64_t found = skip(delivered);
    if (found != delivered) {
      throw Error(ErrorCode::kDataLoss,
                  message("Iterator::restore: the position is after element ", delivered,
                          " of a generator, which ends after ", found,
                          ". It must yield the same elements in every pass."));
    }
  }

 private:
  Generator generator_;
  Iteration::Stage& stage_;
  int64_t delivered_ = 0;
  bool ended_ = false;
};

class GeneratorNode final : public Node {
 public:
  explicit GeneratorNode(std::function<Generator()> start) : start_(std::move(start)) {}

  std::string_view name() const override { return "from_generator"; }
  NodePtr with_inputs(std::vector<NodePtr>) const override { return shared_from_this(); }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    return std::make_unique<GeneratorStream>(start_(), iteration.stage(*this));
  }
  NodeTraits traits() const override { return {.may_wait = true}; }

 private:
  std::function<Generator()> start_;
};

}  // namespace

NodePtr make_range(int64_t start, int64_t stop, int64_t step) {
  if (step == 0) throw Error(ErrorCode::kInvalidArgument, "range: the step is 0.");
  return std::make_shared<RangeNode>(start, stop, step);
}

NodePtr make_tensors(Element element) { return std::make_shared<TensorsNode>(std::move(element)); }

NodePtr make_tensor_slices(Element rows) {
  return std::make_shared<TensorSlicesNode>(std::move(rows));
}

NodePtr make_generator(std::function<Generator()> start) {
  return std::make_shared<GeneratorNode>(std::move(start));
}

}  // namespace tutti::data
