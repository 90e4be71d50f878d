// SPDX-License-Identifier: Apache-2.0

#include "tutti/data/formats/example.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <unordered_map>
#include <utility>

#include <ATen/EmptyTensor.h>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"
#include "tutti/data/formats/internal/array_bytes.h"
#include "tutti/data/formats/internal/wire_reader.h"
#include "tutti/files/byte_order.h"
#include "tutti/nest/print.h"

namespace tutti::data {

const char* to_string(FeatureType type) {
  switch (type) {
    case FeatureType::kBytes:
      return "bytes";
    case FeatureType::kFloat:
      return "float32";
    case FeatureType::kInt64:
      return "int64";
  }
  return "unknown";
}

namespace internal {

struct ExampleField {
  std::string name;
  FeatureType type = FeatureType::kBytes;
  std::optional<std::vector<int64_t>> shape;  // nullopt: any number of values
  std::optional<Value> default_value;
  int64_t count = 0;  // of a fixed shape
};

struct NameHash {
  using is_transparent = void;
  size_t operator()(std::string_view name) const { return std::hash<std::string_view>()(name); }
};

struct ExampleTable {
  static constexpr size_t kNone = SIZE_MAX;
  // Up to this size, comparing all names is faster than hashing.
  static constexpr size_t kFew = 8;

  std::vector<ExampleField> fields;
  std::unordered_map<std::string, size_t, NameHash, std::equal_to<>> slots;

  size_t find(std::string_view name) const {
    if (fields.size() <= kFew) {
      for (size_t i = 0; i < fields.size(); ++i) {
        if (fields[i].name == name) return i;
      }
      return kNone;
    }
    const auto found = slots.find(name);
    return found == slots.end() ? kNone : found->second;
  }

  size_t slot(std::string_view name) const {
    const size_t found = find(name);
    if (found != kNone) return found;
    throw Error(ErrorCode::kNotFound,
                message("ExampleSpec: there is no feature \"", name, "\" in the spec; it has: ",
                        joined(fields, ", ", &ExampleField::name), "."));
  }
};

}  // namespace internal

namespace {

using internal::ExampleField;
using internal::ExampleTable;

// The lists of one Feature. More than one only if the message was merged from parts.
struct FeatureLists {
  std::optional<FeatureType> type;
  c10::SmallVector<std::string_view, 1> lists;
};

[[noreturn]] void throw_malformed(std::string_view where) {
  throw Error(ErrorCode::kDataLoss,
              message("ExampleSpec::parse: the bytes are not a valid tf.train.Example (", where,
                      "). Is the record damaged, or of a different format?"));
}

[[noreturn]] void throw_malformed_feature(const ExampleField& field) {
  throw_malformed(message("in feature \"", field.name, "\""));
}

std::string expected_text(const ExampleField& field) {
  if (!field.shape) return message(to_string(field.type), " values");
  return message(field.count, " ", to_string(field.type), field.count == 1 ? " value" : " values",
                 " (shape ", shape_text(*field.shape), ")");
}

[[noreturn]] void throw_feature(const ExampleField& field, std::string_view found) {
  throw Error(ErrorCode::kInvalidArgument,
              message("ExampleSpec::parse: feature \"", field.name, "\": expected ",
                      expected_text(field), ", ", found));
}

FeatureLists lists_of(const ExampleField& field, std::string_view feature) {
  FeatureLists result;
  WireReader reader(feature);
  while (reader.next()) {
    if (reader.number() > 3 || !reader.is(reader.number(), WireType::kBytes)) continue;
    const auto type = static_cast<FeatureType>(reader.number());
    if (result.type != type) result.lists.clear();
    result.type = type;
    result.lists.push_back(reader.bytes());
  }
  if (reader.failed()) throw_malformed_feature(field);
  return result;
}

// Where the values of the wanted features are.
class FeatureFinder {
 public:
  explicit FeatureFinder(const ExampleTable& table) : table_(table) {
    features_.resize(table.fields.size());
  }

  void example(std::string_view bytes) {
    WireReader reader(bytes);
    while (reader.next()) {
      if (reader.is(1, WireType::kBytes)) features(reader.bytes());
    }
    if (reader.failed()) throw_malformed("in its outermost fields");
  }

  /// The lists of a feature; they have no type if it is missing.
  FeatureLists lists(size_t slot) const {
    return features_[slot] ? lists_of(table_.fields[slot], *features_[slot]) : FeatureLists();
  }

 private:
  void features(std::string_view bytes) {
    WireReader reader(bytes);
    while (reader.next()) {
      if (reader.is(1, WireType::kBytes)) entry(reader.bytes());
    }
    if (reader.failed()) throw_malformed("in its list of features");
  }

  void entry(std::string_view bytes) {
    std::string_view key;
    std::optional<std::string_view> value;
    WireReader reader(bytes);
    while (reader.next()) {
      if (reader.is(1, WireType::kBytes)) {
        key = reader.bytes();
      } else if (reader.is(2, WireType::kBytes)) {
        // Messages that occur twice are merged, which equals concatenating their bytes.
        value = value ? merged_.emplace_back(std::string(*value).append(reader.bytes()))
                      : reader.bytes();
      }
    }
    if (reader.failed()) throw_malformed("in an entry of its features");
    const size_t slot = table_.find(key);
    if (slot != ExampleTable::kNone) features_[slot] = value.value_or(std::string_view());
  }

  const ExampleTable& table_;
  c10::SmallVector<std::optional<std::string_view>, 8> features_;
  std::deque<std::string> merged_;
};

int64_t count_varints(const ExampleField& field, std::string_view packed) {
  if (!packed.empty() && static_cast<uint8_t>(packed.back()) >= 0x80) {
    throw_malformed_feature(field);
  }
  int64_t count = 0;
  for (const char byte : packed) count += static_cast<uint8_t>(byte) < 0x80 ? 1 : 0;
  return count;
}

int64_t count_values(const ExampleField& field, const FeatureLists& feature) {
  int64_t count = 0;
  for (const std::string_view list : feature.lists) {
    WireReader reader(list);
    while (reader.next()) {
      if (reader.number() != 1) continue;
      if (reader.is(1, WireType::kBytes)) {
        if (field.type == FeatureType::kBytes) {
          ++count;
        } else if (field.type == FeatureType::kInt64) {
          count += count_varints(field, reader.bytes());
        } else {
          if (reader.bytes().size() % sizeof(float) != 0) throw_malformed_feature(field);
          count += static_cast<int64_t>(reader.bytes().size() / sizeof(float));
        }
      } else if ((field.type == FeatureType::kInt64 && reader.is(1, WireType::kVarint)) ||
                 (field.type == FeatureType::kFloat && reader.is(1, WireType::kFixed32))) {
        ++count;
      }
    }
    if (reader.failed()) throw_malformed_feature(field);
  }
  return count;
}

// The lists were counted before, so there is room.
void fill_floats(const FeatureLists& feature, float* to) {
  for (const std::string_view list : feature.lists) {
    WireReader reader(list);
    while (reader.next()) {
      if (!reader.is(1, WireType::kBytes) && !reader.is(1, WireType::kFixed32)) continue;
      const std::string_view bytes = reader.bytes();
      if (bytes.empty()) continue;
      if constexpr (std::endian::native == std::endian::little) {
        std::memcpy(to, bytes.data(), bytes.size());
        to += bytes.size() / sizeof(float);
      } else {
        for (size_t i = 0; i < bytes.size(); i += sizeof(float)) {
          *to++ = std::bit_cast<float>(load_little<uint32_t>(bytes.data() + i));
        }
      }
    }
  }
}

void fill_integers(const ExampleField& field, const FeatureLists& feature, int64_t* to) {
  for (const std::string_view list : feature.lists) {
    WireReader reader(list);
    while (reader.next()) {
      if (reader.is(1, WireType::kVarint)) {
        *to++ = static_cast<int64_t>(reader.varint());
      } else if (reader.is(1, WireType::kBytes)) {
        const char* at = reader.bytes().data();
        const char* const end = at + reader.bytes().size();
        while (at != end) {
          uint64_t value = 0;
          if (!WireReader::read_varint(at, end, value)) throw_malformed_feature(field);
          *to++ = static_cast<int64_t>(value);
        }
      }
    }
  }
}

void append_strings(const FeatureLists& feature, std::vector<std::string>& strings) {
  for (const std::string_view list : feature.lists) {
    WireReader reader(list);
    while (reader.next()) {
      if (reader.is(1, WireType::kBytes)) strings.emplace_back(reader.bytes());
    }
  }
}

// Calls the allocator directly: dispatching at::empty would take longer than reading the feature.
at::Tensor empty_tensor(const ExampleField& field, at::IntArrayRef shape) {
  return at::detail::empty_cpu(shape, field.type == FeatureType::kFloat ? at::kFloat : at::kLong);
}

void require_default(const ExampleField& field) {
  if (!field.default_value) {
    throw_feature(field, "but the feature is missing and the spec has no default value for it.");
  }
}

template <class T>
void fill_default(const ExampleField& field, void* to) {
  T value = 0;
  std::memcpy(&value, std::get<Number>(*field.default_value).bits.data(), sizeof(T));
  std::fill_n(static_cast<T*>(to), field.count, value);
}

// Throws unless the lists have the type, and for a fixed shape the number, of the spec.
int64_t checked_count(const ExampleField& field, const FeatureLists& feature) {
  if (*feature.type != field.type) {
    throw_feature(field, message("found ", to_string(*feature.type), " values."));
  }
  const int64_t count = count_values(field, feature);
  if (field.shape && count != field.count) throw_feature(field, message("found ", count, "."));
  return count;
}

void fill_numbers(const ExampleField& field, const FeatureLists& feature, void* to) {
  if (field.type == FeatureType::kFloat) {
    fill_floats(feature, static_cast<float*>(to));
  } else {
    fill_integers(field, feature, static_cast<int64_t*>(to));
  }
}

// Reads the numbers of a fixed feature.
void read_numbers(const ExampleField& field, const FeatureLists& feature, void* to) {
  if (feature.type) {
    checked_count(field, feature);
    fill_numbers(field, feature, to);
    return;
  }
  require_default(field);
  if (field.type == FeatureType::kFloat) {
    fill_default<float>(field, to);
  } else {
    fill_default<int64_t>(field, to);
  }
}

// Appends the strings of a fixed feature to `to`.
void read_strings(const ExampleField& field, const FeatureLists& feature,
                  std::vector<std::string>& to) {
  if (feature.type) {
    checked_count(field, feature);
    append_strings(feature, to);
    return;
  }
  require_default(field);
  to.insert(to.end(), static_cast<size_t>(field.count),
            std::get<std::string>(*field.default_value));
}

Value read_fixed(const ExampleField& field, const FeatureLists& feature) {
  if (field.type == FeatureType::kBytes) {
    std::vector<std::string> strings;
    strings.reserve(static_cast<size_t>(field.count));
    read_strings(field, feature, strings);
    if (field.shape->empty()) return std::move(strings[0]);
    return strings;
  }
  at::Tensor tensor = empty_tensor(field, *field.shape);
  read_numbers(field, feature, tensor.data_ptr());
  return tensor;
}

Value read_variable(const ExampleField& field, const FeatureLists& feature) {
  const int64_t count = feature.type ? checked_count(field, feature) : 0;
  if (field.type == FeatureType::kBytes) {
    std::vector<std::string> strings;
    strings.reserve(static_cast<size_t>(count));
    append_strings(feature, strings);
    return strings;
  }
  at::Tensor tensor = empty_tensor(field, count);
  if (count > 0) fill_numbers(field, feature, tensor.data_ptr());
  return tensor;
}

// An empty batch of one feature, a tensor or strings, to be filled.
Value empty_batch(const ExampleField& field, size_t examples) {
  if (!field.shape) {
    throw Error(ErrorCode::kFailedPrecondition,
                message("ExampleSpec::parse_batch: feature \"", field.name, "\" has a variable ",
                        "length and cannot be stacked. Use parse() for each example."));
  }
  if (field.type == FeatureType::kBytes) {
    std::vector<std::string> strings;
    strings.reserve(examples * static_cast<size_t>(field.count));
    return strings;
  }
  std::vector<int64_t> shape = *field.shape;
  shape.insert(shape.begin(), static_cast<int64_t>(examples));
  return empty_tensor(field, shape);
}

void read_row(const ExampleField& field, const FeatureLists& feature, size_t row, Value& batch) {
  if (auto* strings = std::get_if<std::vector<std::string>>(&batch)) {
    read_strings(field, feature, *strings);
    return;
  }
  const at::Tensor& tensor = std::get<at::Tensor>(batch);
  const size_t row_bytes = static_cast<size_t>(field.count) * tensor.element_size();
  read_numbers(field, feature, static_cast<char*>(tensor.data_ptr()) + row * row_bytes);
}

template <class String>
void parse_rows(const ExampleTable& table, std::span<const String> rows,
                c10::SmallVector<Value, 2>& values) {
  for (const ExampleField& field : table.fields) values.push_back(empty_batch(field, rows.size()));
  for (size_t row = 0; row < rows.size(); ++row) {
    try {
      FeatureFinder found(table);
      found.example(rows[row]);
      for (size_t i = 0; i < table.fields.size(); ++i) {
        read_row(table.fields[i], found.lists(i), row, values[i]);
      }
    } catch (const Error& error) {
      throw Error(error.code(),
                  message(error.what(), " (In example ", row, " of ", rows.size(), ".)"));
    }
  }
}

template <class T>
T& get_value(ParsedExample& example, const ExampleTable* table, size_t slot, const char* asked) {
  if (slot >= example.values.size()) {
    throw Error(ErrorCode::kNotFound,
                message("ParsedExample: there is no slot ", slot, "; the example has ",
                        example.values.size(), " features."));
  }
  T* const value = std::get_if<T>(&example.values[slot]);
  if (value == nullptr) {
    const ExampleField& field = table->fields[slot];
    throw Error(ErrorCode::kInvalidArgument,
                message("ParsedExample: feature \"", field.name, "\" cannot be read as ", asked,
                        "; the spec says ", field.shape ? "fixed " : "variable ",
                        expected_text(field), "."));
  }
  return *value;
}

}  // namespace

at::Tensor& ParsedExample::tensor(size_t slot) {
  return get_value<at::Tensor>(*this, table_.get(), slot, "a tensor");
}
std::string& ParsedExample::bytes(size_t slot) {
  return get_value<std::string>(*this, table_.get(), slot, "bytes");
}
std::vector<std::string>& ParsedExample::strings(size_t slot) {
  return get_value<std::vector<std::string>>(*this, table_.get(), slot, "strings");
}
size_t ParsedExample::slot(std::string_view name) const {
  TUTTI_CHECK(table_ != nullptr);
  return table_->slot(name);
}

ExampleSpec::ExampleSpec() : table_(std::make_shared<internal::ExampleTable>()) {}

ExampleSpec& ExampleSpec::add(std::string name, FeatureType type,
                              std::optional<std::vector<int64_t>> shape,
                              std::optional<Value> default_value) {
  if (table_->slots.count(name) > 0) {
    throw Error(ErrorCode::kInvalidArgument,
                message("ExampleSpec: there are two features \"", name, "\"."));
  }
  internal::ExampleField field{std::move(name), type, std::move(shape), std::move(default_value)};
  if (field.shape) {
    const std::optional<int64_t> bytes = array_bytes(*field.shape, sizeof(int64_t));
    if (!bytes) {
      throw Error(ErrorCode::kInvalidArgument,
                  message("ExampleSpec: feature \"", field.name, "\" has the shape ",
                          shape_text(*field.shape),
                          "; lengths must be 0 or more and the product must fit in memory. Use "
                          "variable<T>() for an unknown length."));
    }
    field.count = *bytes / static_cast<int64_t>(sizeof(int64_t));
  }
  // Copies of this spec and examples it has parsed keep their table.
  if (table_.use_count() > 1) table_ = std::make_shared<internal::ExampleTable>(*table_);
  table_->slots.emplace(field.name, table_->fields.size());
  table_->fields.push_back(std::move(field));
  return *this;
}

ParsedExample ExampleSpec::parse(std::string_view serialized) const {
  FeatureFinder found(*table_);
  found.example(serialized);
  ParsedExample example;
  example.table_ = table_;
  example.values.reserve(table_->fields.size());
  for (size_t i = 0; i < table_->fields.size(); ++i) {
    const internal::ExampleField& field = table_->fields[i];
    const FeatureLists lists = found.lists(i);
    example.values.push_back(field.shape ? read_fixed(field, lists) : read_variable(field, lists));
  }
  return example;
}

ParsedExample ExampleSpec::parse_batch(std::span<const std::string_view> serialized) const {
  ParsedExample example;
  example.table_ = table_;
  parse_rows(*table_, serialized, example.values);
  return example;
}

ParsedExample ExampleSpec::parse_batch(std::span<const std::string> serialized) const {
  ParsedExample example;
  example.table_ = table_;
  parse_rows(*table_, serialized, example.values);
  return example;
}

size_t ExampleSpec::size() const { return table_->fields.size(); }
size_t ExampleSpec::slot(std::string_view name) const { return table_->slot(name); }

ElementSpec ExampleSpec::element_spec() const {
  std::vector<ValueSpec> specs;
  for (const internal::ExampleField& field : table_->fields) {
    ValueSpec& spec = specs.emplace_back();
    if (field.type == FeatureType::kBytes) {
      const bool one = field.shape && field.shape->empty();
      spec.kind = one ? ValueSpec::Kind::kString : ValueSpec::Kind::kStrings;
      continue;
    }
    spec.kind = ValueSpec::Kind::kTensor;
    spec.dtype = field.type == FeatureType::kFloat ? at::kFloat : at::kLong;
    spec.shape = field.shape.value_or(std::vector<int64_t>{-1});
  }
  return specs;
}

}  // namespace tutti::data
