// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/reduction_tree.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <cstring>
#include <utility>
#include <vector>

#include <ATen/ops/add.h>
#include <ATen/ops/maximum.h>
#include <ATen/ops/minimum.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/view_as_complex.h>
#include <ATen/ops/view_as_real.h>
#include <c10/util/SmallVector.h>

#include "tutti/base/error.h"
#include "tutti/collectives/kernels/reduction_kernels.h"
#include "tutti/nest/leaf.h"

namespace tutti {
namespace {

using internal::Combine;
using internal::Element;
using internal::Kernel;
using internal::KernelKey;
using internal::kMaxFanIn;

// Elements of one block: four inputs and an inner node fit into a 32 KB cache.
constexpr int64_t kBlock = 1024;
constexpr size_t kMaxElementBytes = 16;

Element element_of(at::ScalarType dtype) {
  switch (dtype) {
    case at::kHalf:
      return Element::kF16;
    case at::kBFloat16:
      return Element::kBF16;
    case at::kFloat:
      return Element::kF32;
    case at::kDouble:
      return Element::kF64;
    case at::kChar:
      return Element::kI8;
    case at::kShort:
      return Element::kI16;
    case at::kInt:
      return Element::kI32;
    case at::kLong:
      return Element::kI64;
    case at::kByte:
      return Element::kU8;
    case at::kComplexFloat:
      return Element::kC64;
    case at::kComplexDouble:
      return Element::kC128;
    default:
      throw Error(ErrorCode::kInternal, message("reduce_tree: no kernel for ", dtype_name(dtype)));
  }
}

Combine combine_of(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return Combine::kSum;
    case ReduceOp::kMean:
      return Combine::kSumDivide;
    case ReduceOp::kMin:
      return Combine::kMin;
    case ReduceOp::kMax:
      return Combine::kMax;
    case ReduceOp::kProduct:
      return Combine::kProduct;
  }
  return Combine::kSum;
}

#if defined(__x86_64__)
// f16c is queried directly, because not every compiler's __builtin_cpu_supports knows it.
bool has_avx2_and_f16c() {
  unsigned a = 0;
  unsigned b = 0;
  unsigned c = 0;
  unsigned d = 0;
  return __builtin_cpu_supports("avx2") != 0 && __get_cpuid(1, &a, &b, &c, &d) != 0 &&
         (c & bit_F16C) != 0;
}
#endif

Kernel find_kernel(const KernelKey& key) {
#if defined(__x86_64__)
  static const bool fast = has_avx2_and_f16c();
  if (fast) return find_kernel_avx2(key);
#endif
  return find_kernel_baseline(key);
}

Kernel require_kernel(const KernelKey& key) {
  const Kernel found = find_kernel(key);
  TUTTI_CHECK(found != nullptr);
  return found;
}

// Stands in for replicas that contribute nothing.
alignas(64) constexpr std::array<std::byte, kBlock * kMaxElementBytes> kZeros{};

// Sums of complex numbers are sums of their parts.
int64_t parts_of(Element element, Combine combine) {
  const bool complex = element == Element::kC64 || element == Element::kC128;
  return complex && combine != Combine::kProduct ? 2 : 1;
}

// Reduces one range. Groups of four aligned ids are subtrees of the canonical
// tree, so a level of groups is two levels of the tree in one pass.
class Reduction {
 public:
  // `divisor` is that of kSumDivide.
  Reduction(Combine combine, at::ScalarType in, at::ScalarType out,
            std::span<const void* const> inputs, std::span<void* const> outputs, double divisor)
      : combine_(combine),
        in_(element_of(in)),
        out_(element_of(out)),
        in_bytes_(c10::elementSize(in)),
        out_bytes_(c10::elementSize(out)),
        inputs_(inputs),
        outputs_(outputs),
        divisor_(divisor) {
    inner_ = in_ == Element::kF16 || in_ == Element::kBF16 ? Element::kF32 : in_;
    parts_ = parts_of(in_, combine);
  }

  void run(int64_t begin, int64_t end) {
    const bool unchanged = in_ == out_ && (combine_ != Combine::kSumDivide || divisor_ == 1);
    if (inputs_.size() == 1 && inputs_[0] != nullptr && unchanged) return copy(begin, end);
    const bool has_gap = std::find(inputs_.begin(), inputs_.end(), nullptr) != inputs_.end();
    const bool one_pass = inputs_.size() <= kMaxFanIn && !has_gap;
    if (one_pass && try_write_all(begin, end)) return;
    for (; begin < end; begin += kBlock) block(begin, std::min(kBlock, end - begin));
  }

 private:
  // The reduction of a single value, by any operation, is that value.
  void copy(int64_t begin, int64_t end) {
    for (size_t i = 0; i < outputs_.size(); ++i) {
      if (outputs_[i] == inputs_[0]) continue;
      std::memcpy(output_at(i, begin), leaf_at(0, begin),
                  static_cast<size_t>(end - begin) * out_bytes_);
    }
  }

  // All inputs and all outputs in one pass: the usual all-reduce in place.
  bool try_write_all(int64_t begin, int64_t end) {
    if (outputs_.size() != inputs_.size() && outputs_.size() != 1) return false;
    const bool all = outputs_.size() > 1;
    const Kernel kernel = find_kernel({in_, out_, combine_, fan_in(inputs_.size()), all});
    if (kernel == nullptr) return false;
    std::array<const void*, kMaxFanIn> in;
    std::array<void*, kMaxFanIn> out;
    for (size_t i = 0; i < inputs_.size(); ++i) in[i] = leaf_at(i, begin);
    for (size_t i = 0; i < outputs_.size(); ++i) out[i] = output_at(i, begin);
    kernel(in.data(), out.data(), (end - begin) * parts_, divisor_);
    return true;
  }

  void block(int64_t begin, int64_t count) {
    nodes_.clear();
    for (size_t i = 0; i < inputs_.size(); ++i) {
      nodes_.push_back(inputs_[i] == nullptr ? kZeros.data() : leaf_at(i, begin));
    }
    Element element = in_;
    size_t scratch_used = 0;
    while (nodes_.size() > kMaxFanIn) {
      element = level(element, count, scratch_used);
    }
    void* first = output_at(0, begin);
    const Kernel kernel = require_kernel({element, out_, combine_, fan_in(nodes_.size()), false});
    kernel(nodes_.data(), &first, count * parts_, divisor_);
    for (size_t i = 1; i < outputs_.size(); ++i) {
      std::memcpy(output_at(i, begin), first, static_cast<size_t>(count) * out_bytes_);
    }
  }

  // Replaces the nodes by those two levels up, in scratch memory.
  Element level(Element element, int64_t count, size_t& scratch_used) {
    const Combine combine = combine_ == Combine::kSumDivide ? Combine::kSum : combine_;
    const size_t groups = (nodes_.size() + kMaxFanIn - 1) / kMaxFanIn;
    for (size_t g = 0; g < groups; ++g) {
      const size_t first = g * kMaxFanIn;
      const size_t size = std::min<size_t>(kMaxFanIn, nodes_.size() - first);
      if (size == 1 && element == inner_) {
        nodes_[g] = nodes_[first];
        continue;
      }
      void* node = scratch(scratch_used++);
      const Kernel kernel = require_kernel({element, inner_, combine, fan_in(size), false});
      kernel(nodes_.data() + first, &node, count * parts_, 1);
      nodes_[g] = node;
    }
    nodes_.resize(groups);
    return inner_;
  }

  void* scratch(size_t i) {
    thread_local std::vector<std::byte> memory;
    const size_t node_bytes = kBlock * kMaxElementBytes;
    // Allocates all nodes of a block together: growing later would move those in use.
    if (memory.size() < inputs_.size() * node_bytes) memory.resize(inputs_.size() * node_bytes);
    return memory.data() + i * node_bytes;
  }

  const void* leaf_at(size_t i, int64_t begin) const {
    return static_cast<const std::byte*>(inputs_[i]) + static_cast<size_t>(begin) * in_bytes_;
  }
  void* output_at(size_t i, int64_t begin) const {
    return static_cast<std::byte*>(outputs_[i]) + static_cast<size_t>(begin) * out_bytes_;
  }
  static int fan_in(size_t n) { return static_cast<int>(n); }

  Combine combine_;
  Element in_;
  Element out_;
  Element inner_;  // what inner nodes hold
  size_t in_bytes_;
  size_t out_bytes_;
  int64_t parts_;
  std::span<const void* const> inputs_;
  std::span<void* const> outputs_;
  double divisor_;
  c10::SmallVector<const void*, 16> nodes_;
};

at::Tensor combine_tensors(ReduceOp op, const at::Tensor& a, const at::Tensor& b) {
  switch (op) {
    case ReduceOp::kMin:
      return at::minimum(a, b);
    case ReduceOp::kMax:
      return at::maximum(a, b);
    case ReduceOp::kProduct:
      return at::mul(a, b);
    default:
      return at::add(a, b);
  }
}

}  // namespace

void check_reducible(const char* who, ReduceOp op, at::ScalarType dtype) {
  const bool ordered = op == ReduceOp::kMin || op == ReduceOp::kMax;
  std::string reason;
  if (dtype == at::kBool) {
    reason = "cast it to uint8 or a float first.";
  } else if (at::isQIntType(dtype)) {
    reason = "dequantise it first.";
  } else if (at::isComplexType(dtype) && ordered) {
    reason = "complex numbers have no order; reduce the real and imaginary parts.";
  } else if (dtype == at::kComplexHalf || !(at::isFloatingType(dtype) || at::isComplexType(dtype) ||
                                            at::isIntegralType(dtype, false))) {
    reason = "cast it to a supported type first.";
  } else {
    return;
  }
  throw Error(ErrorCode::kInvalidArgument, message(who, ": values of type ", dtype_name(dtype),
                                                   " cannot be reduced by ", op, "; ", reason));
}

at::ScalarType reduced_dtype(ReduceOp op, at::ScalarType dtype) {
  if (op != ReduceOp::kMean || !at::isIntegralType(dtype, false)) return dtype;
  return dtype == at::kInt || dtype == at::kLong ? at::kDouble : at::kFloat;
}

void reduce_tree(ReduceOp op, at::ScalarType dtype, std::span<const void* const> inputs,
                 std::span<void* const> outputs, int64_t begin, int64_t end) {
  TUTTI_CHECK(!inputs.empty() && !outputs.empty() && reduced_dtype(op, dtype) == dtype);
  if (begin >= end) return;  // the memory of an empty tensor may be null
  const bool sum = op == ReduceOp::kSum || op == ReduceOp::kMean;
  TUTTI_CHECK(sum || std::find(inputs.begin(), inputs.end(), nullptr) == inputs.end());
  Reduction(combine_of(op), dtype, dtype, inputs, outputs, static_cast<double>(inputs.size()))
      .run(begin, end);
}

void reduce_to_node(ReduceOp op, at::ScalarType dtype, std::span<const void* const> inputs,
                    void* node, int64_t begin, int64_t end) {
  TUTTI_CHECK(!inputs.empty() && reduced_dtype(op, dtype) == dtype);
  if (begin >= end) return;
  const Combine combine = op == ReduceOp::kMean ? Combine::kSum : combine_of(op);
  Reduction(combine, dtype, node_dtype(op, dtype), inputs, std::span<void* const>(&node, 1), 1)
      .run(begin, end);
}

// ---- trees whose leaves are nodes

std::vector<TreeNode> maximal_nodes(int replicas, int begin, int end) {
  std::vector<TreeNode> found;
  const auto visit = [&](auto&& self, int first, int width) -> void {
    const int last = std::min(replicas, first + width);
    if (last <= begin || first >= end) return;
    if (first >= begin && last <= end) {
      found.push_back({first, last});
      return;
    }
    self(self, first, width / 2);
    self(self, first + width / 2, width / 2);
  };
  int width = 1;
  while (width < replicas) width *= 2;
  visit(visit, 0, width);
  return found;
}

NodeTree::NodeTree(int replicas, std::vector<TreeNode> nodes)
    : replicas_(replicas), nodes_(std::move(nodes)) {
  TUTTI_CHECK(!nodes_.empty() && nodes_.front().begin == 0 && nodes_.back().end == replicas);
  const int width = nodes_[0].end;
  bool even = std::has_single_bit(static_cast<unsigned>(width)) || nodes_.size() == 1;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    even = even && nodes_[i].begin == width * static_cast<int>(i);
  }
  if (even) return;  // the canonical tree over the nodes themselves
  int whole = 1;
  while (whole < replicas) whole *= 2;
  plan(0, whole);
}

// The place of the node above replicas [first, first + width): an input, or the result of a step.
int NodeTree::plan(int first, int width) {
  const int last = std::min(replicas_, first + width);
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].begin == first && nodes_[i].end == last) return static_cast<int>(i);
  }
  TUTTI_CHECK(width > 1);
  const int half = width / 2;
  if (first + half >= replicas_) return plan(first, half);  // an odd last one moves up
  const int left = plan(first, half);
  const int right = plan(first + half, half);
  steps_.push_back({left, right});
  return static_cast<int>(nodes_.size() + steps_.size()) - 1;
}

void NodeTree::reduce(ReduceOp op, at::ScalarType dtype, std::span<const void* const> inputs,
                      std::span<void* const> outputs, int64_t begin, int64_t end) const {
  TUTTI_CHECK(inputs.size() == nodes_.size() && reduced_dtype(op, dtype) == dtype);
  const at::ScalarType inner = node_dtype(op, dtype);
  if (steps_.empty()) {
    if (begin >= end) return;
    Reduction(combine_of(op), inner, dtype, inputs, outputs, replicas_).run(begin, end);
    return;
  }
  thread_local std::vector<std::byte> memory;
  const size_t node_bytes = kBlock * kMaxElementBytes;
  if (memory.size() < steps_.size() * node_bytes) memory.resize(steps_.size() * node_bytes);
  const Element element = element_of(inner);
  const Combine between = op == ReduceOp::kMean ? Combine::kSum : combine_of(op);
  const Kernel combine = require_kernel({element, element, between, 2, false});
  const Kernel finish = require_kernel({element, element_of(dtype), combine_of(op), 2, false});
  const auto in_bytes = static_cast<int64_t>(c10::elementSize(inner));
  const auto out_bytes = static_cast<int64_t>(c10::elementSize(dtype));
  for (; begin < end; begin += kBlock) {
    const int64_t count = std::min(kBlock, end - begin);
    const auto place = [&](int i) -> const void* {
      const auto n = static_cast<size_t>(i);
      if (n >= inputs.size()) return memory.data() + (n - inputs.size()) * node_bytes;
      return static_cast<const std::byte*>(inputs[n]) + begin * in_bytes;
    };
    for (size_t s = 0; s < steps_.size(); ++s) {
      const bool last = s + 1 == steps_.size();
      const std::array<const void*, 2> in = {place(steps_[s].left), place(steps_[s].right)};
      void* out = last ? static_cast<std::byte*>(outputs[0]) + begin * out_bytes
                       : memory.data() + s * node_bytes;
      (last ? finish : combine)(in.data(), &out, count * parts_of(element, between), replicas_);
    }
    for (size_t i = 1; i < outputs.size(); ++i) {
      std::memcpy(static_cast<std::byte*>(outputs[i]) + begin * out_bytes,
                  static_cast<std::byte*>(outputs[0]) + begin * out_bytes,
                  static_cast<size_t>(count * out_bytes));
    }
  }
}

at::ScalarType node_dtype(ReduceOp op, at::ScalarType dtype) {
  if (dtype == at::kHalf || dtype == at::kBFloat16) return at::kFloat;
  return reduced_dtype(op, dtype) != dtype ? at::kLong : dtype;
}

at::Tensor reduce_node(ReduceOp op, at::ScalarType dtype, std::span<const at::Tensor> children) {
  TUTTI_CHECK(!children.empty());
  const at::ScalarType inner = node_dtype(op, dtype);
  std::vector<at::Tensor> nodes;
  for (const at::Tensor& child : children) {
    nodes.push_back(child.to(children[0].device()).to(inner));
  }
  return reduce_tree_scalars(
      std::span(nodes), [op](const auto& a, const auto& b) { return combine_tensors(op, a, b); });
}

at::Tensor divide_sum(const at::Tensor& sum, int64_t count, at::ScalarType dtype) {
  const at::ScalarType result = reduced_dtype(ReduceOp::kMean, dtype);
  const bool half = result == at::kHalf || result == at::kBFloat16;
  const at::Tensor wide = sum.to(half ? at::kFloat : result);
  // For a C++ number a GPU would multiply by the reciprocal, which rounds twice.
  if (!wide.is_complex()) return wide.div(at::scalar_tensor(count, wide.options())).to(result);
  const at::Tensor parts = at::view_as_real(wide.resolve_conj());
  return at::view_as_complex(parts.div(at::scalar_tensor(count, parts.options())));
}

at::Tensor finish_tree(ReduceOp op, at::ScalarType dtype, const at::Tensor& root,
                       int64_t replicas) {
  return op == ReduceOp::kMean ? divide_sum(root, replicas, dtype) : root.to(dtype);
}

at::Tensor reduce_tree(ReduceOp op, std::span<const at::Tensor> inputs) {
  TUTTI_CHECK(!inputs.empty());
  const at::ScalarType dtype = inputs[0].scalar_type();
  const at::Tensor result =
      finish_tree(op, dtype, reduce_node(op, dtype, inputs), static_cast<int64_t>(inputs.size()));
  return result.is_alias_of(inputs[0]) ? result.clone() : result;
}

}  // namespace tutti
