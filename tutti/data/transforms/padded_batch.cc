// SPDX-License-Identifier: Apache-2.0
//
// padded_batch: batches of tensors of different sizes.

#include <algorithm>
#include <utility>

#include <ATen/ops/full.h>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/data/internal/batch_stream.h"
#include "tutti/data/transforms.h"

namespace tutti::data {
namespace {

[[noreturn]] void refuse_padding(const std::string& reason) {
  throw Error(ErrorCode::kInvalidArgument, "Dataset::padded_batch: " + reason);
}

[[noreturn]] void refuse_padding(size_t element, size_t leaf, const std::string& reason) {
  refuse_padding(message("leaf ", leaf, " of element ", element, " of the batch ", reason));
}

std::string shape_text(const std::vector<int64_t>& shape) { return "[" + joined(shape) + "]"; }

void check_leaves(const PaddedBatchOptions& options, size_t leaves) {
  const size_t shapes = options.padded_shapes.size();
  const size_t values = options.padding_values.size();
  if (shapes != 0 && shapes != leaves) {
    refuse_padding(
        message("there are ", shapes, " padded_shapes, but elements have ", leaves,
                " leaves. Give one shape per leaf ({} for numbers and strings), or none."));
  }
  if (values > 1 && values != leaves) {
    refuse_padding(message("there are ", values, " padding_values, but elements have ", leaves,
                           " leaves. Give one value per leaf, one for all, or none."));
  }
}

class Padder {
 public:
  explicit Padder(const PaddedBatchOptions& options) : options_(options) {}

  Element operator()(std::vector<Element>& elements) const {
    const size_t leaves = elements[0].values.size();
    for (size_t i = 1; i < elements.size(); ++i) {
      if (elements[i].values.size() != leaves || elements[i].structure != elements[0].structure) {
        refuse_padding(message("element ", i,
                               " of the batch differs from the first in its lengths, keys or empty "
                               "optionals. Make all elements the same in map()."));
      }
    }
    check_leaves(options_, leaves);
    // batch_elements handles numbers and strings; a number stands in for each tensor.
    std::vector<std::pair<size_t, at::Tensor>> padded;
    for (size_t leaf = 0; leaf < leaves; ++leaf) {
      if (std::holds_alternative<at::Tensor>(elements[0].values[leaf])) {
        padded.emplace_back(leaf, pad(elements, leaf));
        for (Element& each : elements) each.values[leaf] = Number();
      } else if (std::holds_alternative<std::vector<std::string>>(elements[0].values[leaf])) {
        refuse_padding(0, leaf,
                       "is already a vector of strings, and vectors of those are not supported.");
      } else if (!options_.padded_shapes.empty() && !options_.padded_shapes[leaf].empty()) {
        refuse_padding(
            0, leaf,
            message("is not a tensor, but its padded shape is ",
                    shape_text(options_.padded_shapes[leaf]), ". Give {} as its padded shape."));
      }
    }
    Element batch = batch_elements(elements);
    for (auto& [leaf, tensor] : padded) batch.values[leaf] = std::move(tensor);
    return batch;
  }

 private:
  at::Tensor pad(const std::vector<Element>& elements, size_t leaf) const {
    const at::Tensor first = std::get<at::Tensor>(elements[0].values[leaf]);
    std::vector<int64_t> sizes = {static_cast<int64_t>(elements.size())};
    const std::vector<int64_t> shape = padded_shape(elements, leaf);
    sizes.insert(sizes.end(), shape.begin(), shape.end());
    at::Tensor batch = at::full(sizes, value_for(leaf, first), first.options());
    for (size_t i = 0; i < elements.size(); ++i) {
      const at::Tensor& from = std::get<at::Tensor>(elements[i].values[leaf]);
      at::Tensor to = batch.select(0, static_cast<int64_t>(i));
      for (int64_t d = 0; d < from.dim(); ++d) to = to.narrow(d, 0, from.size(d));
      to.copy_(from);
    }
    return batch;
  }

  std::vector<int64_t> padded_shape(const std::vector<Element>& elements, size_t leaf) const {
    const at::Tensor& first = std::get<at::Tensor>(elements[0].values[leaf]);
    std::vector<int64_t> wanted;
    if (!options_.padded_shapes.empty()) {
      wanted = options_.padded_shapes[leaf];
    } else if (first.defined()) {
      wanted.assign(static_cast<size_t>(first.dim()), -1);
    }
    std::vector<int64_t> shape = wanted;
    for (size_t i = 0; i < elements.size(); ++i) {
      const at::Tensor& each = std::get<at::Tensor>(elements[i].values[leaf]);
      if (!each.defined()) refuse_padding(i, leaf, "is an undefined tensor.");
      if (each.scalar_type() != first.scalar_type()) {
        refuse_padding(i, leaf,
                       message("is ", describe(each), ", but the first element has ",
                               describe(first), ". Convert all elements to one dtype in map()."));
      }
      if (each.dim() != static_cast<int64_t>(wanted.size())) {
        refuse_padding(
            i, leaf,
            options_.padded_shapes.empty()
                ? message("is ", describe(each), ", but the first element has ", describe(first),
                          ". Only sizes may differ; use map() to reshape.")
                : message("is ", describe(each), ", but its padded shape ", shape_text(wanted),
                          " has a different number of dimensions."));
      }
      for (size_t d = 0; d < wanted.size(); ++d) {
        const int64_t size = each.size(static_cast<int64_t>(d));
        if (wanted[d] == -1) {
          shape[d] = std::max(shape[d], size);
        } else if (size > wanted[d]) {
          refuse_padding(i, leaf,
                         message("is ", describe(each), ", which does not fit in the padded shape ",
                                 shape_text(wanted),
                                 ". Give a larger shape or -1, or truncate the tensor in map()."));
        }
      }
    }
    return shape;
  }

  at::Scalar value_for(size_t leaf, const at::Tensor& tensor) const {
    const std::vector<at::Scalar>& values = options_.padding_values;
    if (values.empty()) return 0;
    const at::Scalar& value = values[values.size() == 1 ? 0 : leaf];
    const bool integral = at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
    if ((integral && !value.isIntegral(/*includeBool=*/true)) ||
        (value.isComplex() && !tensor.is_complex())) {
      refuse_padding(0, leaf,
                     message("is ", describe(tensor), ", which cannot hold its padding value ",
                             value, ". Give a value that its dtype can represent."));
    }
    return value;
  }

  const PaddedBatchOptions& options_;
};

class PaddedBatchNode final : public Node {
 public:
  PaddedBatchNode(NodePtr from, int64_t size, const PaddedBatchOptions& options)
      : Node({std::move(from)}), size_(size), options_(options) {}

  std::string_view name() const override { return "padded_batch"; }
  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<PaddedBatchNode>(std::move(inputs[0]), size_, options_);
  }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    return std::make_unique<BatchStream<Element, Element>>(
        "padded_batch", input().iterate(iteration), size_, options_.drop_remainder,
        Padder(options_));
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
    for (size_t leaf = 0; leaf < specs->size(); ++leaf) {
      ValueSpec& spec = (*specs)[leaf];
      if (spec.kind == ValueSpec::Kind::kNumber) {
        spec.kind = ValueSpec::Kind::kTensor;
        spec.shape.emplace();
      } else if (spec.kind == ValueSpec::Kind::kTensor && leaf < options_.padded_shapes.size()) {
        const std::vector<int64_t>& given = options_.padded_shapes[leaf];
        if (!spec.shape || spec.shape->size() != given.size()) {
          spec.shape = given;
        } else {
          for (size_t d = 0; d < given.size(); ++d) {
            if (given[d] != -1) (*spec.shape)[d] = given[d];
          }
        }
      }
      if (spec.kind == ValueSpec::Kind::kString) spec.kind = ValueSpec::Kind::kStrings;
      if (spec.shape) spec.shape->insert(spec.shape->begin(), always_full ? size_ : -1);
    }
    return specs;
  }

 private:
  int64_t size_;
  PaddedBatchOptions options_;
};

}  // namespace

NodePtr make_padded_batch(NodePtr input, int64_t size, const PaddedBatchOptions& options) {
  if (size < 1) refuse_padding(message("the size is ", size, "; it must be 1 or more."));
  for (const std::vector<int64_t>& shape : options.padded_shapes) {
    for (const int64_t each : shape) {
      if (each < -1) {
        refuse_padding(message("a padded shape is ", shape_text(shape),
                               "; sizes must be 0 or more, or -1 for the largest in the batch."));
      }
    }
  }
  if (const ElementSpec specs = input->spec()) check_leaves(options, specs->size());
  return std::make_shared<PaddedBatchNode>(std::move(input), size, options);
}

}  // namespace tutti::data
