// SPDX-License-Identifier: Apache-2.0

#include "tutti/nest/element.h"

#include "tutti/base/error.h"
#include "tutti/base/joined.h"

namespace tutti::data {
namespace {

std::string spec_text(const ValueSpec& spec) {
  switch (spec.kind) {
    case ValueSpec::Kind::kUnknown:
      return "unknown";
    case ValueSpec::Kind::kString:
      return "string";
    case ValueSpec::Kind::kStrings:
      return "strings";
    default:
      break;
  }
  std::string text = spec.dtype ? dtype_name(*spec.dtype) : "unknown";
  if (spec.kind == ValueSpec::Kind::kNumber) return text + " number";
  if (!spec.shape) return text + "[...]";
  return message(text, "[", joined(*spec.shape), "]");
}

}  // namespace

at::ScalarType Number::dtype() const {
  if (kind == Leaf::Kind::kBool) return at::kBool;
  if (kind == Leaf::Kind::kFloating) return bytes == 4 ? at::kFloat : at::kDouble;
  if (!is_signed && bytes > 1) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Dataset: LibTorch has no unsigned dtype of ", int{bytes},
                        " bytes. Convert the numbers to int64_t first."));
  }
  switch (bytes) {
    case 1:
      return is_signed ? at::kChar : at::kByte;
    case 2:
      return at::kShort;
    case 4:
      return at::kInt;
    default:
      return at::kLong;
  }
}

std::string to_text(const ElementSpec& spec) {
  if (!spec) return "unknown";
  if (spec->size() == 1) return spec_text((*spec)[0]);
  return message("(", joined(*spec, ", ", spec_text), ")");
}

ElementSpec spec_of(const Element& element) {
  std::vector<ValueSpec> specs;
  for (const Value& value : element.values) {
    ValueSpec spec;
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      spec.kind = ValueSpec::Kind::kTensor;
      if (tensor->defined()) {
        spec.dtype = tensor->scalar_type();
        spec.shape = tensor->sizes().vec();
      }
    } else if (const auto* number = std::get_if<Number>(&value)) {
      spec.kind = ValueSpec::Kind::kNumber;
      spec.dtype = number->kind == Leaf::Kind::kInteger && !number->is_signed && number->bytes > 1
                       ? std::nullopt
                       : std::optional(number->dtype());
    } else {
      spec.kind = std::holds_alternative<std::string>(value) ? ValueSpec::Kind::kString
                                                             : ValueSpec::Kind::kStrings;
    }
    specs.push_back(std::move(spec));
  }
  return specs;
}

namespace internal {

void throw_bad_element(const Element& element, const char* expected) {
  throw Error(ErrorCode::kInternal,
              message("Dataset: an element of ", to_text(spec_of(element)),
                      " was read as a type with ", expected, "; please report this."));
}

}  // namespace internal
}  // namespace tutti::data
