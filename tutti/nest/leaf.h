// SPDX-License-Identifier: Apache-2.0
//
// The parts of a nest that hold data. Library code works on flat lists of
// leaves, in source files; nest.h lists them.

#pragma once

#include <cstdint>
#include <string>
#include <type_traits>

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include "tutti/nest/indexed_slices.h"

namespace tutti {

/// Points to one leaf inside a value that outlives it. A plain value; access to the leaf itself is
/// not synchronised.
struct Leaf {
  enum class Kind : uint8_t { kTensor, kIndexedSlices, kString, kBool, kInteger, kFloating };

  Kind kind;
  uint8_t bytes = 0;  ///< Size of a scalar.
  bool is_signed = false;
  void* data;

  at::Tensor& tensor() const { return *static_cast<at::Tensor*>(data); }
  IndexedSlices& slices() const { return *static_cast<IndexedSlices*>(data); }
  std::string& text() const { return *static_cast<std::string*>(data); }

  /// "float32[2, 3]", "IndexedSlices of float32[4, 3]", "int32 scalar", "string".
  std::string describe() const;
};

using LeafList = c10::SmallVector<Leaf, 4>;

/// Calls fn with a reference to the scalar as its own C++ type.
template <class F>
void visit_scalar(const Leaf& leaf, F&& fn) {
  const auto as = [&]<class T>(std::type_identity<T>) { fn(*static_cast<T*>(leaf.data)); };
  switch (leaf.kind) {
    case Leaf::Kind::kFloating:
      return leaf.bytes == 4 ? as(std::type_identity<float>{}) : as(std::type_identity<double>{});
    case Leaf::Kind::kBool:
      return as(std::type_identity<bool>{});
    case Leaf::Kind::kInteger:
      switch (leaf.bytes) {
        case 1:
          return leaf.is_signed ? as(std::type_identity<int8_t>{})
                                : as(std::type_identity<uint8_t>{});
        case 2:
          return leaf.is_signed ? as(std::type_identity<int16_t>{})
                                : as(std::type_identity<uint16_t>{});
        case 4:
          return leaf.is_signed ? as(std::type_identity<int32_t>{})
                                : as(std::type_identity<uint32_t>{});
        default:
          return leaf.is_signed ? as(std::type_identity<int64_t>{})
                                : as(std::type_identity<uint64_t>{});
      }
    default:
      return;
  }
}

/// "float32", "int64", ...: the names TensorFlow and NumPy use.
std::string dtype_name(at::ScalarType type);

/// "float32[2, 3]", or "undefined tensor".
std::string describe(const at::Tensor& tensor);

}  // namespace tutti
