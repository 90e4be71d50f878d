// SPDX-License-Identifier: Apache-2.0

#include "tutti/nest/element_codec.h"

#include <cstring>

#include <ATen/ops/empty.h>

#include "tutti/base/error.h"

namespace tutti::data {
namespace {

enum : int64_t { kTensor, kNumber, kString, kStrings };

constexpr int64_t kMaxDims = 64;

[[noreturn]] void refuse(const std::string& reason) {
  throw Error(ErrorCode::kDataLoss, message("Iterator::restore: ", reason));
}

}  // namespace

void StateWriter::number(int64_t value) {
  char raw[sizeof(value)];
  std::memcpy(raw, &value, sizeof(value));
  bytes_.append(raw, sizeof(raw));
}

void StateWriter::text(std::string_view value) {
  number(static_cast<int64_t>(value.size()));
  bytes_.append(value);
}

void StateWriter::element(const Element& element) {
  text(element.structure);
  number(static_cast<int64_t>(element.values.size()));
  for (const Value& value : element.values) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      number(kTensor);
      number(tensor->defined() ? static_cast<int64_t>(tensor->scalar_type()) : -1);
      if (!tensor->defined()) continue;
      const at::Tensor host = tensor->detach().resolve_conj().resolve_neg().cpu().contiguous();
      number(host.dim());
      for (const int64_t size : host.sizes()) number(size);
      text({static_cast<const char*>(host.data_ptr()), host.nbytes()});
    } else if (const auto* each = std::get_if<Number>(&value)) {
      number(kNumber);
      number(static_cast<int64_t>(each->kind));
      number(each->bytes);
      number(each->is_signed ? 1 : 0);
      text({reinterpret_cast<const char*>(each->bits.data()), each->bits.size()});
    } else if (const auto* string = std::get_if<std::string>(&value)) {
      number(kString);
      text(*string);
    } else {
      const auto& strings = std::get<std::vector<std::string>>(value);
      number(kStrings);
      number(static_cast<int64_t>(strings.size()));
      for (const std::string& line : strings) text(line);
    }
  }
}

std::string_view StateReader::take(size_t size) {
  if (size > bytes_.size()) {
    refuse(message("the position is truncated: expected ", size, " more bytes, found ",
                   bytes_.size(), "."));
  }
  const std::string_view taken = bytes_.substr(0, size);
  bytes_.remove_prefix(size);
  return taken;
}

void StateReader::tag(std::string_view name) {
  const std::string found = text();
  if (found != name) {
    refuse(message("the position belongs to a different pipeline: it has \"", found,
                   "\" where this one has \"", name, "\"."));
  }
}

int64_t StateReader::number() {
  int64_t value = 0;
  std::memcpy(&value, take(sizeof(value)).data(), sizeof(value));
  return value;
}

int64_t StateReader::count(int64_t limit) {
  const int64_t value = number();
  if (value < 0 || value > limit) {
    refuse(message("the position is damaged: ", value, " is not between 0 and ", limit, "."));
  }
  return value;
}

std::string StateReader::text() {
  const int64_t size = count(static_cast<int64_t>(bytes_.size()));
  return std::string(take(static_cast<size_t>(size)));
}

Element StateReader::element() {
  Element element;
  element.structure = text();
  const int64_t values = count(static_cast<int64_t>(bytes_.size()));
  for (int64_t i = 0; i < values; ++i) {
    switch (count(kStrings)) {
      case kTensor: {
        const int64_t dtype = number();
        if (dtype == -1) {
          element.values.emplace_back(at::Tensor());
          break;
        }
        if (dtype < 0 || dtype >= static_cast<int64_t>(at::ScalarType::NumOptions)) {
          refuse(message("the position is damaged: unknown dtype ", dtype, "."));
        }
        std::vector<int64_t> sizes(static_cast<size_t>(count(kMaxDims)));
        int64_t bytes = static_cast<int64_t>(c10::elementSize(static_cast<at::ScalarType>(dtype)));
        const auto left = static_cast<int64_t>(bytes_.size());
        for (int64_t& size : sizes) {
          size = count(left);
          if (size != 0 && bytes > left / size)
            refuse("the position is damaged: a tensor is larger than the whole position.");
          bytes *= size;
        }
        const std::string data = text();
        at::Tensor tensor = at::empty(sizes, static_cast<at::ScalarType>(dtype));
        if (data.size() != tensor.nbytes())
          refuse("the position is damaged: the size of a tensor does not match its shape.");
        if (!data.empty()) std::memcpy(tensor.data_ptr(), data.data(), data.size());
        element.values.emplace_back(std::move(tensor));
        break;
      }
      case kNumber: {
        Number each;
        each.kind = static_cast<Leaf::Kind>(count(static_cast<int64_t>(Leaf::Kind::kFloating)));
        each.bytes = static_cast<uint8_t>(count(8));
        each.is_signed = count(1) == 1;
        const std::string bits = text();
        if (bits.size() != each.bits.size())
          refuse("the position is damaged: a number does not have 8 bytes.");
        std::memcpy(each.bits.data(), bits.data(), bits.size());
        element.values.emplace_back(each);
        break;
      }
      case kString:
        element.values.emplace_back(text());
        break;
      default: {
        std::vector<std::string> strings(
            static_cast<size_t>(count(static_cast<int64_t>(bytes_.size()))));
        for (std::string& line : strings) line = text();
        element.values.emplace_back(std::move(strings));
      }
    }
  }
  return element;
}

void StateReader::finish() const {
  if (!bytes_.empty())
    refuse(message("the position is damaged: ", bytes_.size(), " bytes are left over."));
}

}  // namespace tutti::data
