// SPDX-License-Identifier: Apache-2.0

#include "tutti/nest/print.h"

#include <cxxabi.h>

#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <memory>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"

namespace tutti {
namespace {

constexpr int64_t kAbbreviateAbove = 1000;
constexpr int64_t kEdge = 3;

// The shortest text that reads back as the same number: "5." in a list, "5.0" alone.
template <class T>
std::string float_text(T value, bool alone) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  std::array<char, 64> buffer;
  const auto end = std::to_chars(buffer.data(), buffer.data() + buffer.size(), value).ptr;
  std::string text(buffer.data(), end);
  if (text.find_first_of(".e") == std::string::npos) text += alone ? ".0" : ".";
  return text;
}

// One part of a complex number, as short as its precision allows: "1", "-0.5".
std::string part_text(at::ScalarType type, double value) {
  std::string text = type == at::kComplexDouble ? float_text(value, false)
                                                : float_text(static_cast<float>(value), false);
  if (text.back() == '.') text.pop_back();
  return text;
}

std::string element_text(const at::Tensor& flat, int64_t i, bool alone) {
  const at::ScalarType type = flat.scalar_type();
  if (type == at::kBool) return flat.data_ptr<bool>()[i] ? "true" : "false";
  if (type == at::kFloat) return float_text(flat.data_ptr<float>()[i], alone);
  if (type == at::kDouble) return float_text(flat.data_ptr<double>()[i], alone);
  if (type == at::kHalf) return float_text(float{flat.data_ptr<at::Half>()[i]}, alone);
  if (type == at::kBFloat16) return float_text(float{flat.data_ptr<at::BFloat16>()[i]}, alone);
  const at::Tensor element = flat[i];
  if (at::isComplexType(type)) {
    const auto z = element.item().toComplexDouble();
    return message("(", part_text(type, z.real()), std::signbit(z.imag()) ? "" : "+",
                   part_text(type, z.imag()), "j)");
  }
  if (at::isQIntType(type)) return message(element.dequantize().item<float>());
  return std::to_string(element.item<int64_t>());
}

void write_elements(std::string& text, const at::Tensor& flat, at::IntArrayRef shape,
                    int64_t offset, bool abbreviate) {
  if (shape.empty()) {
    text += element_text(flat, offset, false);
    return;
  }
  int64_t stride = 1;
  for (const int64_t size : shape.slice(1)) stride *= size;
  text += '[';
  for (int64_t i = 0; i < shape[0]; ++i) {
    if (i != 0) text += ' ';
    if (abbreviate && shape[0] > 2 * kEdge && i == kEdge) {
      text += "... ";
      i = shape[0] - kEdge;
    }
    write_elements(text, flat, shape.slice(1), offset + i * stride, abbreviate);
  }
  text += ']';
}

}  // namespace

std::string shape_text(at::IntArrayRef shape) {
  return message("(", joined(shape), shape.size() == 1 ? ",)" : ")");
}

std::string elements_text(const at::Tensor& tensor) {
  if (tensor.is_sparse() || tensor.is_meta()) return "...";
  const at::Tensor flat = tensor.detach().cpu().contiguous().reshape({-1});
  if (tensor.dim() == 0) return element_text(flat, 0, true);
  std::string text;
  write_elements(text, flat, tensor.sizes(), 0, tensor.numel() > kAbbreviateAbove);
  return text;
}

std::string to_text(const at::Tensor& tensor) {
  if (!tensor.defined()) return "Tensor(undefined)";
  return message("Tensor(", elements_text(tensor), ", shape=", shape_text(tensor.sizes()),
                 ", dtype=", dtype_name(tensor.scalar_type()), ")");
}

std::string to_text(const IndexedSlices& slices) {
  return message("IndexedSlices(indices=", to_text(slices.indices()),
                 ", values=", to_text(slices.values()),
                 ", dense_shape=", shape_text(slices.dense_shape()), ")");
}

namespace internal {

std::string type_name(const std::type_info& type) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> name(
      abi::__cxa_demangle(type.name(), nullptr, nullptr, &status), std::free);
  return status == 0 ? name.get() : type.name();
}

}  // namespace internal
}  // namespace tutti
