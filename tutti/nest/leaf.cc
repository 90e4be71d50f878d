// SPDX-License-Identifier: Apache-2.0

#include "tutti/nest/leaf.h"

#include "tutti/base/error.h"

namespace tutti {

std::string dtype_name(at::ScalarType type) {
  switch (type) {
    case at::kByte:
      return "uint8";
    case at::kChar:
      return "int8";
    case at::kShort:
      return "int16";
    case at::kInt:
      return "int32";
    case at::kLong:
      return "int64";
    case at::kHalf:
      return "float16";
    case at::kBFloat16:
      return "bfloat16";
    case at::kFloat:
      return "float32";
    case at::kDouble:
      return "float64";
    case at::kComplexFloat:
      return "complex64";
    case at::kComplexDouble:
      return "complex128";
    case at::kBool:
      return "bool";
    default:
      return message(type);
  }
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "undefined tensor";
  return message(dtype_name(tensor.scalar_type()), tensor.sizes());
}

std::string Leaf::describe() const {
  switch (kind) {
    case Kind::kTensor:
      return tutti::describe(tensor());
    case Kind::kIndexedSlices:
      return message("IndexedSlices of ", tutti::describe(slices().values()));
    case Kind::kString:
      return "string";
    case Kind::kBool:
      return "bool scalar";
    case Kind::kInteger:
      return (is_signed ? "int" : "uint") + std::to_string(bytes * 8) + " scalar";
    case Kind::kFloating:
      return "float" + std::to_string(bytes * 8) + " scalar";
  }
  return "leaf";
}

}  // namespace tutti
