// SPDX-License-Identifier: Apache-2.0

#include <bit>
#include <cstring>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/formats/example.h"
#include "tutti/data/formats/internal/wire_reader.h"
#include "tutti/files/byte_order.h"

namespace tutti::data {

void ExampleBuilder::entry(std::string_view name, FeatureType type, std::string_view list) {
  std::string feature;
  append_field(feature, static_cast<uint32_t>(type), list);
  std::string pair;
  append_field(pair, 1, name);
  append_field(pair, 2, feature);
  append_field(features_, 1, pair);
}

ExampleBuilder& ExampleBuilder::floats(std::string_view name, std::span<const float> values) {
  std::string packed(values.size_bytes(), '\0');
  for (size_t i = 0; i < values.size(); ++i) {
    store_little(packed.data() + i * sizeof(float), std::bit_cast<uint32_t>(values[i]));
  }
  scratch_.clear();
  if (!values.empty()) append_field(scratch_, 1, packed);
  entry(name, FeatureType::kFloat, scratch_);
  return *this;
}

ExampleBuilder& ExampleBuilder::int64s(std::string_view name, std::span<const int64_t> values) {
  std::string packed;
  for (const int64_t value : values) append_varint(packed, static_cast<uint64_t>(value));
  scratch_.clear();
  if (!values.empty()) append_field(scratch_, 1, packed);
  entry(name, FeatureType::kInt64, scratch_);
  return *this;
}

ExampleBuilder& ExampleBuilder::strings(std::string_view name,
                                        std::span<const std::string_view> values) {
  scratch_.clear();
  for (const std::string_view value : values) append_field(scratch_, 1, value);
  entry(name, FeatureType::kBytes, scratch_);
  return *this;
}

ExampleBuilder& ExampleBuilder::tensor(std::string_view name, const at::Tensor& tensor) {
  if (!tensor.defined() || tensor.is_complex()) {
    throw Error(ErrorCode::kInvalidArgument,
                message("ExampleBuilder: feature \"", name, "\": an Example holds real numbers, ",
                        "not ", tensor.defined() ? "complex ones" : "an undefined tensor", "."));
  }
  const at::Tensor flat = tensor.detach()
                              .to(at::kCPU, tensor.is_floating_point() ? at::kFloat : at::kLong)
                              .contiguous();
  const auto count = static_cast<size_t>(flat.numel());
  if (flat.is_floating_point()) return floats(name, {flat.data_ptr<float>(), count});
  return int64s(name, {flat.data_ptr<int64_t>(), count});
}

std::string ExampleBuilder::finish() {
  std::string example;
  append_field(example, 1, features_);
  features_.clear();
  return example;
}

}  // namespace tutti::data
