// SPDX-License-Identifier: Apache-2.0
//
// tf.train.Example, the usual content of TFRecord files: named lists of floats, integers or byte
// strings. An ExampleSpec lists the features that a program reads and their shapes; it parses
// without building a tree. ExampleBuilder writes.
//
//   const ExampleSpec spec = ExampleSpec()
//                                .fixed<float>("image", {28, 28})
//                                .fixed<int64_t>("label", {}, 0)
//                                .variable<int64_t>("ids");
//   ParsedExample example = spec.parse(record);
//   train(example.tensor("image"), example.tensor("label"));

#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include <ATen/core/Tensor.h>

#include "tutti/nest/element.h"

namespace tutti::data {

/// What the values of a feature may be.
enum class FeatureType { kBytes = 1, kFloat = 2, kInt64 = 3 };  // the field numbers of Feature

/// "bytes", "float32", "int64"
const char* to_string(FeatureType type);

template <class T>
concept FeatureValue =
    std::is_same_v<T, float> || std::is_same_v<T, int64_t> || std::is_same_v<T, std::string>;

template <FeatureValue T>
inline constexpr FeatureType feature_type = std::is_same_v<T, float>     ? FeatureType::kFloat
                                            : std::is_same_v<T, int64_t> ? FeatureType::kInt64
                                                                         : FeatureType::kBytes;

namespace internal {
struct ExampleTable;
}  // namespace internal

/// The features of one example, in the order of the spec. A feature of numbers is a tensor; a fixed
/// feature of bytes is a string if its shape is (), otherwise a vector of strings in row-major
/// order; a variable one is a vector of strings. A plain value.
class ParsedExample {
 public:
  /// By name or by position in the spec. Throws kNotFound if the spec does not have the feature,
  /// kInvalidArgument if it has a different type.
  at::Tensor& tensor(std::string_view name) { return tensor(slot(name)); }
  at::Tensor& tensor(size_t slot);
  std::string& bytes(std::string_view name) { return bytes(slot(name)); }
  std::string& bytes(size_t slot);
  std::vector<std::string>& strings(std::string_view name) { return strings(slot(name)); }
  std::vector<std::string>& strings(size_t slot);

  size_t size() const { return values.size(); }
  size_t slot(std::string_view name) const;

  c10::SmallVector<Value, 2> values;

 private:
  friend class ExampleSpec;
  std::shared_ptr<const internal::ExampleTable> table_;
};

/// Which features to read. A handle: copies are cheap. Building is not thread-safe; parse()
/// is.
class ExampleSpec {
 public:
  ExampleSpec();

  /// A feature with exactly as many values as `shape` has elements, of type float, int64_t
  /// or std::string. Every element of a missing feature is `default_value`; without one, a
  /// missing feature is an error.
  template <FeatureValue T>
  ExampleSpec& fixed(std::string name, std::vector<int64_t> shape = {},
                     std::optional<std::type_identity_t<T>> default_value = std::nullopt);

  /// One byte string: fixed<std::string>(name, {}, default_value).
  ExampleSpec& bytes(std::string name, std::optional<std::string> default_value = std::nullopt) {
    return fixed<std::string>(std::move(name), {}, std::move(default_value));
  }

  /// A feature with any number of values: a vector, empty if the feature is missing.
  template <FeatureValue T>
  ExampleSpec& variable(std::string name) {
    return add(std::move(name), feature_type<T>, std::nullopt, {});
  }

  /// Reads one serialized Example. Features that the spec does not have are skipped. Throws
  /// kDataLoss if the bytes are not an Example; kInvalidArgument, naming the feature, if one is
  /// missing or has a different type or number of values.
  ParsedExample parse(std::string_view serialized) const;

  /// Reads several in one call, into tensors with one more dimension in front, which is faster than
  /// parse() and stacking. A feature of bytes becomes one vector of strings. Throws
  /// kFailedPrecondition if the spec has variable features, which cannot be stacked.
  ParsedExample parse_batch(std::span<const std::string_view> serialized) const;
  ParsedExample parse_batch(std::span<const std::string> serialized) const;

  size_t size() const;
  /// The position of a feature, in the order of the calls above. Throws kNotFound.
  size_t slot(std::string_view name) const;
  ElementSpec element_spec() const;

 private:
  ExampleSpec& add(std::string name, FeatureType type, std::optional<std::vector<int64_t>> shape,
                   std::optional<Value> default_value);

  std::shared_ptr<internal::ExampleTable> table_;
};

/// Builds a serialized Example. Features are written in the order in which they are added. Not
/// thread-safe.
class ExampleBuilder {
 public:
  ExampleBuilder& floats(std::string_view name, std::span<const float> values);
  ExampleBuilder& floats(std::string_view name, std::initializer_list<float> values) {
    return floats(name, std::span<const float>(values.begin(), values.size()));
  }
  ExampleBuilder& int64s(std::string_view name, std::span<const int64_t> values);
  ExampleBuilder& int64s(std::string_view name, std::initializer_list<int64_t> values) {
    return int64s(name, std::span<const int64_t>(values.begin(), values.size()));
  }
  ExampleBuilder& bytes(std::string_view name, std::string_view value) {
    return strings(name, std::span<const std::string_view>(&value, 1));
  }
  ExampleBuilder& strings(std::string_view name, std::span<const std::string_view> values);
  ExampleBuilder& strings(std::string_view name, std::initializer_list<std::string_view> values) {
    return strings(name, std::span<const std::string_view>(values.begin(), values.size()));
  }
  /// The elements of a tensor in row-major order: floating point as floats, integers and
  /// booleans as int64.
  ExampleBuilder& tensor(std::string_view name, const at::Tensor& tensor);

  /// Returns the bytes, which can be written as a record, and leaves the builder empty.
  std::string finish();

 private:
  void entry(std::string_view name, FeatureType type, std::string_view list);

  std::string features_;
  std::string scratch_;
};

template <FeatureValue T>
ExampleSpec& ExampleSpec::fixed(std::string name, std::vector<int64_t> shape,
                                std::optional<std::type_identity_t<T>> default_value) {
  std::optional<Value> value;
  if (default_value) {
    if constexpr (std::is_same_v<T, std::string>) {
      value = Value(std::move(*default_value));
    } else {
      value = Value(Number::of(*default_value));
    }
  }
  return add(std::move(name), feature_type<T>, std::move(shape), std::move(value));
}

}  // namespace tutti::data
