// SPDX-License-Identifier: Apache-2.0

#include "tutti/data/formats/internal/npy_header.h"

#include <cctype>
#include <charconv>
#include <optional>

#include "tutti/base/error.h"
#include "tutti/files/byte_order.h"
#include "tutti/nest/leaf.h"

namespace tutti::data {

namespace {

constexpr std::string_view kNpyMagic = "\x93NUMPY";

[[noreturn]] void throw_npy(ErrorCode code, std::string_view name, const std::string& text) {
  throw Error(code, message("read_npy: ", name, ": ", text));
}

struct NpyType {
  at::ScalarType dtype;
  std::string_view text;
};

constexpr NpyType kNpyTypes[] = {
    {at::kBool, "|b1"},
    {at::kByte, "|u1"},
    {at::kChar, "|i1"},
    {at::kShort, "<i2"},
    {at::kInt, "<i4"},
    {at::kLong, "<i8"},
    {at::kHalf, "<f2"},
    {at::kFloat, "<f4"},
    {at::kDouble, "<f8"},
    {at::kComplexFloat, "<c8"},
    {at::kComplexDouble, "<c16"},
};

at::ScalarType npy_dtype(std::string_view text, std::string_view name) {
  for (const NpyType& type : kNpyTypes) {
    if (type.text == text) return type.dtype;
    // The byte order of single bytes does not matter.
    if (type.text[0] == '|' && text.size() == 3 && type.text.substr(1) == text.substr(1)) {
      return type.dtype;
    }
  }
  std::string reason = "LibTorch has no such dtype";
  if (text.substr(0, 1) == ">") reason = "its numbers are big-endian";
  if (text.find('O') != std::string_view::npos) reason = "it holds Python objects";
  throw_npy(ErrorCode::kUnimplemented, name,
            message("the array has the dtype '", text, "', which cannot be read: ", reason,
                    ". Convert it in NumPy first, for example with array.astype('<f4')."));
}

// The part of Python's syntax that the header uses. A missing piece sets `failed`.
class DictionaryParser {
 public:
  explicit DictionaryParser(std::string_view text) : text_(text) {}

  bool accept(char expected) {
    skip_space();
    if (text_.empty() || text_.front() != expected) return false;
    text_.remove_prefix(1);
    return true;
  }
  bool accept_word(std::string_view word) {
    skip_space();
    if (text_.substr(0, word.size()) != word) return false;
    text_.remove_prefix(word.size());
    return true;
  }
  std::optional<std::string_view> string() {
    skip_space();
    if (text_.empty() || (text_.front() != '\'' && text_.front() != '"')) return std::nullopt;
    const size_t end = text_.find(text_.front(), 1);
    if (end == std::string_view::npos) return std::nullopt;
    const std::string_view result = text_.substr(1, end - 1);
    text_.remove_prefix(end + 1);
    return result;
  }
  std::optional<int64_t> number() {
    skip_space();
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc() || value < 0) return std::nullopt;
    text_.remove_prefix(static_cast<size_t>(end - text_.data()));
    if (!text_.empty() && text_.front() == 'L') text_.remove_prefix(1);  // Python 2
    return value;
  }
  std::optional<std::vector<int64_t>> tuple() {
    if (!accept('(')) return std::nullopt;
    std::vector<int64_t> values;
    while (!accept(')')) {
      const std::optional<int64_t> value = number();
      if (!value) return std::nullopt;
      values.push_back(*value);
      if (accept(',')) continue;
      return accept(')') ? std::optional(values) : std::nullopt;
    }
    return values;
  }
  bool at_end() {
    skip_space();
    return text_.empty();
  }
  std::string_view rest() const { return text_; }

 private:
  void skip_space() {
    while (!text_.empty() && std::isspace(static_cast<unsigned char>(text_.front())) != 0) {
      text_.remove_prefix(1);
    }
  }

  std::string_view text_;
};

struct NpyDictionary {
  std::optional<std::string_view> descr;
  std::optional<bool> fortran_order;
  std::optional<std::vector<int64_t>> shape;
};

bool parse_item(DictionaryParser& parser, NpyDictionary& items, std::string_view name) {
  const std::optional<std::string_view> key = parser.string();
  if (!key || !parser.accept(':')) return false;
  if (*key == "descr") {
    if (parser.accept('[')) {
      throw_npy(
          ErrorCode::kUnimplemented, name,
          "the array holds structures, which cannot be read. Save each field as a separate array.");
    }
    items.descr = parser.string();
    return items.descr.has_value();
  }
  if (*key == "fortran_order") {
    if (parser.accept_word("True")) items.fortran_order = true;
    if (parser.accept_word("False")) items.fortran_order = false;
    return items.fortran_order.has_value();
  }
  if (*key == "shape") {
    items.shape = parser.tuple();
    return items.shape.has_value();
  }
  return false;
}

NpyDictionary parse_dictionary(std::string_view text, std::string_view name) {
  DictionaryParser parser(text);
  NpyDictionary items;
  bool valid = parser.accept('{');
  while (valid && !parser.accept('}')) {
    valid = parse_item(parser, items, name);
    if (valid && parser.accept(',')) continue;
    valid = valid && parser.accept('}');
    break;
  }
  if (!valid || !parser.at_end() || !items.descr || !items.fortran_order || !items.shape) {
    throw_npy(ErrorCode::kDataLoss, name,
              message("the header is damaged; expected a dictionary with 'descr', 'fortran_order' "
                      "and 'shape', found ",
                      text.substr(0, 200)));
  }
  return items;
}

}  // namespace

NpyHeader parse_npy_header(std::string_view bytes, std::string_view name) {
  if (bytes.size() < 10 || bytes.substr(0, kNpyMagic.size()) != kNpyMagic) {
    throw_npy(
        ErrorCode::kDataLoss, name,
        message(
            "this is not an .npy file; expected the magic bytes \\x93NUMPY and a header, found ",
            bytes.size(), " bytes of something else."));
  }
  const int version = static_cast<uint8_t>(bytes[6]);
  if (version < 1 || version > 3) {
    throw_npy(
        ErrorCode::kUnimplemented, name,
        message("the file has version ", version, " of the format; 1, 2 and 3 are supported."));
  }
  const size_t length_size = version == 1 ? 2 : 4;
  const size_t start = 8 + length_size;
  uint64_t length = 0;
  if (bytes.size() >= start) {
    length = version == 1 ? load_little<uint16_t>(bytes.data() + 8)
                          : load_little<uint32_t>(bytes.data() + 8);
  }
  if (bytes.size() < start || length > bytes.size() - start) {
    throw_npy(ErrorCode::kDataLoss, name,
              message("the file is truncated; expected a header of ", length, " bytes, found ",
                      bytes.size() < start ? 0 : bytes.size() - start, "."));
  }
  const NpyDictionary items = parse_dictionary(bytes.substr(start, length), name);
  return {.dtype = npy_dtype(*items.descr, name),
          .fortran_order = *items.fortran_order,
          .shape = *items.shape,
          .data_offset = start + length};
}

std::string npy_header(at::ScalarType dtype, at::IntArrayRef shape) {
  std::string_view descr;
  for (const NpyType& type : kNpyTypes) {
    if (type.dtype == dtype) descr = type.text;
  }
  if (descr.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                message("write_npy: NumPy has no dtype ", dtype_name(dtype),
                        ". Convert the tensor first, for example with tensor.to(at::kFloat)."));
  }
  std::string text = message("{'descr': '", descr, "', 'fortran_order': False, 'shape': (");
  for (const int64_t length : shape) text += std::to_string(length) + ", ";
  if (shape.size() > 1) text.resize(text.size() - 2);
  if (shape.size() == 1) text.resize(text.size() - 1);
  text += "), }";
  // The data begin at a multiple of 64, so that mapped memory is aligned.
  const bool is_long = text.size() + 1 + 63 > UINT16_MAX;
  const size_t start = is_long ? 12 : 10;
  text.append(63 - (start + text.size()) % 64, ' ');
  text += '\n';
  std::string header(start, '\0');
  header.replace(0, kNpyMagic.size(), kNpyMagic);
  header[6] = is_long ? 2 : 1;
  if (is_long) {
    store_little(header.data() + 8, static_cast<uint32_t>(text.size()));
  } else {
    store_little(header.data() + 8, static_cast<uint16_t>(text.size()));
  }
  return header + text;
}

}  // namespace tutti::data
