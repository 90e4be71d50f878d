// SPDX-License-Identifier: Apache-2.0

#include "tutti/data/node.h"

#include <algorithm>
#include <cstring>

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/stack.h>

#include "tutti/base/error.h"
#include "tutti/data/internal/batched.h"

namespace tutti::data {
namespace {

class StreamOfIndices final : public ElementStream {
 public:
  StreamOfIndices(NodePtr node, std::unique_ptr<IndexStream> indices)
      : node_(std::move(node)), source_(*node_->indexed()), indices_(std::move(indices)) {}

  bool next(Element& out) override {
    int64_t index = 0;
    if (!indices_->next(index)) return false;
    out = source_.get(index);
    return true;
  }
  int64_t skip(int64_t n) override { return indices_->skip(n); }
  void save(StateWriter& state) override { indices_->save(state); }
  void restore(StateReader& state) override { indices_->restore(state); }

 private:
  NodePtr node_;
  const Indexed& source_;
  std::unique_ptr<IndexStream> indices_;
};

[[noreturn]] void refuse_batch(size_t element, size_t leaf, const std::string& reason) {
  throw Error(ErrorCode::kInvalidArgument, message("Dataset::batch: leaf ", leaf, " of element ",
                                                   element, " of the batch ", reason));
}

// Whether a tensor is plain host memory, fully described by its bytes.
bool is_ordinary(const at::Tensor& tensor) {
  static const c10::DispatchKeySet ordinary =
      at::empty({0}, at::TensorOptions(at::kFloat).device(at::kCPU)).key_set();
  return tensor.key_set() == ordinary && tensor.is_contiguous() && !tensor.requires_grad();
}

at::Tensor stack_tensors(std::span<Element> elements, size_t leaf) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(elements.size());
  for (size_t i = 0; i < elements.size(); ++i) {
    at::Tensor& tensor = std::get<at::Tensor>(elements[i].values[leaf]);
    if (!tensor.defined()) refuse_batch(i, leaf, "is an undefined tensor.");
    const at::Tensor& first = tensors.empty() ? tensor : tensors[0];
    if (tensor.sizes() != first.sizes() || tensor.scalar_type() != first.scalar_type()) {
      refuse_batch(
          i, leaf,
          message("is ", describe(tensor), ", but the first element has ", describe(first),
                  ". Use padded_batch(), or give all elements the same shape and dtype in map()."));
    }
    tensors.push_back(std::move(tensor));
  }
  if (!std::all_of(tensors.begin(), tensors.end(), is_ordinary)) return at::stack(tensors);
  std::vector<int64_t> sizes = tensors[0].sizes().vec();
  sizes.insert(sizes.begin(), static_cast<int64_t>(tensors.size()));
  at::Tensor batch = at::empty(sizes, tensors[0].options());
  const size_t bytes = tensors[0].nbytes();
  auto* to = static_cast<std::byte*>(batch.data_ptr());
  for (const at::Tensor& tensor : tensors) {
    if (bytes > 0) std::memcpy(to, tensor.data_ptr(), bytes);
    to += bytes;
  }
  return batch;
}

at::Tensor tensor_of_numbers(std::span<Element> elements, size_t leaf) {
  const Number& first = std::get<Number>(elements[0].values[leaf]);
  at::Tensor result = at::empty({static_cast<int64_t>(elements.size())}, first.dtype());
  auto* const data = static_cast<std::byte*>(result.data_ptr());
  for (size_t i = 0; i < elements.size(); ++i) {
    std::memcpy(data + i * first.bytes, std::get<Number>(elements[i].values[leaf]).bits.data(),
                first.bytes);
  }
  return result;
}

}  // namespace

void internal::throw_end_of_dataset() {
  throw Error(
      ErrorCode::kNotFound,
      "Iterator::get_next: the dataset has ended. Use next(), which returns nullopt at the end.");
}

std::unique_ptr<IndexStream> Node::iterate_indices(Iteration&) const {
  throw Error(ErrorCode::kInternal, message("Node ", name(), " has no indices; please report."));
}

std::unique_ptr<IndexBatchStream> Node::iterate_index_batches(Iteration&) const {
  throw Error(ErrorCode::kInternal,
              message("Node ", name(), " has no batches of indices; please report."));
}

bool Node::may_wait() const {
  return traits().may_wait || std::any_of(inputs_.begin(), inputs_.end(),
                                          [](const NodePtr& each) { return each->may_wait(); });
}

std::unique_ptr<ElementStream> stream_of_indices(const Node& node, Iteration& iteration) {
  return std::make_unique<StreamOfIndices>(node.shared_from_this(),
                                           node.iterate_indices(iteration));
}

bool comes_in_any_order(const Node& node) {
  return node.traits().in_order != nullptr ||
         std::any_of(node.inputs().begin(), node.inputs().end(),
                     [](const NodePtr& input) { return comes_in_any_order(*input); });
}

ElementSpec common_spec(const std::vector<NodePtr>& nodes) {
  const ElementSpec first = nodes[0]->spec();
  const bool same = std::all_of(nodes.begin(), nodes.end(),
                                [&](const NodePtr& each) { return each->spec() == first; });
  return same ? first : std::nullopt;
}

std::optional<int64_t> common_batch_size(const std::vector<NodePtr>& nodes) {
  const std::optional<int64_t> first = nodes[0]->batch_size();
  const bool same = std::all_of(nodes.begin(), nodes.end(),
                                [&](const NodePtr& each) { return each->batch_size() == first; });
  return same ? first : std::nullopt;
}

int64_t at_most(int64_t cardinality, int64_t limit) {
  if (cardinality == kUnknown) return kUnknown;
  return cardinality == kInfinite ? limit : std::min(cardinality, limit);
}

Element batch_elements(std::span<Element> elements) {
  TUTTI_CHECK(!elements.empty());
  const Element& first = elements[0];
  for (size_t i = 1; i < elements.size(); ++i) {
    if (elements[i].values.size() != first.values.size() ||
        elements[i].structure != first.structure) {
      throw Error(ErrorCode::kInvalidArgument,
                  message("Dataset::batch: element ", i,
                          " of the batch differs from the first in its lengths, keys or empty "
                          "optionals. Make all elements the same in map()."));
    }
  }
  Element batch;
  batch.structure = first.structure;
  for (size_t leaf = 0; leaf < first.values.size(); ++leaf) {
    if (std::holds_alternative<at::Tensor>(first.values[leaf])) {
      batch.values.emplace_back(stack_tensors(elements, leaf));
    } else if (std::holds_alternative<Number>(first.values[leaf])) {
      batch.values.emplace_back(tensor_of_numbers(elements, leaf));
    } else if (std::holds_alternative<std::string>(first.values[leaf])) {
      std::vector<std::string> strings;
      for (Element& each : elements) {
        strings.push_back(std::move(std::get<std::string>(each.values[leaf])));
      }
      batch.values.emplace_back(std::move(strings));
    } else {
      refuse_batch(0, leaf,
                   "is already a vector of strings, and vectors of those are not supported.");
    }
  }
  return batch;
}

int64_t batch_rows(const char* who, const Element& batch) {
  int64_t rows = -1;
  for (size_t leaf = 0; leaf < batch.values.size(); ++leaf) {
    int64_t mine = -1;
    if (const auto* tensor = std::get_if<at::Tensor>(&batch.values[leaf])) {
      if (tensor->defined() && tensor->dim() > 0) mine = tensor->size(0);
    } else if (const auto* strings = std::get_if<std::vector<std::string>>(&batch.values[leaf])) {
      mine = static_cast<int64_t>(strings->size());
    }
    if (mine < 0) {
      throw Error(ErrorCode::kInvalidArgument,
                  message(who, ": leaf ", leaf, " of an element of ", to_text(spec_of(batch)),
                          " has no rows. Call .batch(n) first."));
    }
    if (rows >= 0 && mine != rows) {
      throw Error(ErrorCode::kInvalidArgument,
                  message(who, ": the leaves of an element have different numbers of rows: ",
                          to_text(spec_of(batch)), "."));
    }
    rows = mine;
  }
  if (rows < 0) {
    throw Error(ErrorCode::kInvalidArgument,
                message(who, ": the element is empty, so it has no rows."));
  }
  return rows;
}

at::Tensor batch_row(const at::Tensor& batch, int64_t row) {
  if (!is_ordinary(batch)) return batch.select(0, row);
  auto view = at::detail::make_tensor<c10::TensorImpl>(
      c10::TensorImpl::VIEW, c10::Storage(batch.storage()), batch.key_set(), batch.dtype());
  c10::TensorImpl& impl = *view.unsafeGetTensorImpl();
  impl.set_storage_offset(batch.storage_offset() + row * batch.stride(0));
  impl.set_sizes_contiguous(batch.sizes().slice(1));
  return view;
}

Element slice_batch(const Element& batch, int64_t begin, int64_t end) {
  Element slice;
  slice.structure = batch.structure;
  for (const Value& value : batch.values) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      slice.values.emplace_back(tensor->slice(0, begin, end));
    } else {
      const auto& strings = std::get<std::vector<std::string>>(value);
      slice.values.emplace_back(
          std::vector<std::string>(strings.begin() + begin, strings.begin() + end));
    }
  }
  return slice;
}

Element concatenate_batches(std::span<const Element> batches) {
  TUTTI_CHECK(!batches.empty());
  Element all;
  all.structure = batches[0].structure;
  for (size_t leaf = 0; leaf < batches[0].values.size(); ++leaf) {
    if (std::holds_alternative<at::Tensor>(batches[0].values[leaf])) {
      std::vector<at::Tensor> parts;
      for (const Element& each : batches) parts.push_back(std::get<at::Tensor>(each.values[leaf]));
      all.values.emplace_back(at::cat(parts));
    } else {
      std::vector<std::string> strings;
      for (const Element& each : batches) {
        const auto& part = std::get<std::vector<std::string>>(each.values[leaf]);
        strings.insert(strings.end(), part.begin(), part.end());
      }
      all.values.emplace_back(std::move(strings));
    }
  }
  return all;
}

}  // namespace tutti::data
