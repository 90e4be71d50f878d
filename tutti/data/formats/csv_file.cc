// SPDX-License-Identifier: Apache-2.0

#include "tutti/data/formats/csv_file.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>

#include "tutti/base/joined.h"

namespace tutti::data {

const char* to_string(CsvType type) {
  switch (type) {
    case CsvType::kString:
      return "string";
    case CsvType::kInt64:
      return "int64";
    case CsvType::kFloat:
      return "float32";
    case CsvType::kDouble:
      return "float64";
    case CsvType::kBool:
      return "bool";
  }
  return "unknown";
}

namespace {

constexpr size_t kLongestField = size_t{1} << 31;
constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

std::string_view without_return(std::string_view line) {
  if (!line.empty() && line.back() == '\r') line.remove_suffix(1);
  return line;
}

std::string_view trimmed(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

template <class T>
std::optional<T> parse_number(std::string_view text) {
  text = trimmed(text);
  if (text.size() > 1 && text[0] == '+' && text[1] != '-') text.remove_prefix(1);
  T value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size() || text.empty()) return std::nullopt;
  if (error == std::errc()) return value;
  if constexpr (std::is_floating_point_v<T>) {
    // Too small and too large need different results, but from_chars does not distinguish them.
    if (error == std::errc::result_out_of_range) {
      const double wide = std::strtod(std::string(text).c_str(), nullptr);
      if (std::abs(wide) < 1) return static_cast<T>(wide);
    }
  }
  return std::nullopt;
}

std::optional<bool> parse_bool(std::string_view text) {
  std::string lower(trimmed(text));
  for (char& letter : lower) {
    letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  }
  if (lower == "true" || lower == "1") return true;
  if (lower == "false" || lower == "0") return false;
  return std::nullopt;
}

template <class T>
std::optional<Value> as_value(std::optional<T> number) {
  if (!number) return std::nullopt;
  return Value(Number::of(*number));
}

std::optional<Value> parse_value(CsvType type, std::string_view text) {
  switch (type) {
    case CsvType::kInt64:
      return as_value(parse_number<int64_t>(text));
    case CsvType::kFloat:
      return as_value(parse_number<float>(text));
    case CsvType::kDouble:
      return as_value(parse_number<double>(text));
    case CsvType::kBool:
      return as_value(parse_bool(text));
    default:
      return Value(std::string(text));
  }
}

// A field as messages show it: shortened, on one line.
std::string shown(std::string_view text) {
  std::string result(text.substr(0, 60));
  std::replace_if(
      result.begin(), result.end(), [](char c) { return static_cast<unsigned char>(c) < ' '; },
      ' ');
  return "\"" + result + (text.size() > 60 ? "...\"" : "\"");
}

}  // namespace

CsvReader::CsvReader(const std::string& path, CsvOptions options)
    : CsvReader(InputFile(path, {.compression = options.compression, .reader = "CsvReader"}),
                options) {}

CsvReader::CsvReader(InputFile file, CsvOptions options)
    : file_(std::move(file)), options_(std::move(options)) {
  if (options_.separator == '\n' || options_.separator == '\r' ||
      options_.separator == options_.quote) {
    throw file_.error(ErrorCode::kInvalidArgument,
                      "the separator may be neither a line break nor the quote.");
  }
  if (options_.header) read_header();
  choose_columns();
}

void CsvReader::read_header() {
  if (!read_record()) {
    throw file_.data_loss(
        0, "expected a header line, found the end. Set header = false if the file has none.");
  }
  for (const Field& field : fields_) names_.emplace_back(field.text);
}

void CsvReader::choose_columns() {
  for (const CsvColumn& column : options_.columns) {
    if (column.index) {
      chosen_.push_back(*column.index);
      continue;
    }
    if (!options_.header) {
      throw file_.error(
          ErrorCode::kInvalidArgument,
          message("column \"", column.name,
                  "\" is requested by name, but the file has no header. Use its number."));
    }
    const auto found = std::find(names_.begin(), names_.end(), column.name);
    if (found == names_.end()) {
      throw file_.error(ErrorCode::kNotFound, message("there is no column \"", column.name,
                                                      "\"; the header has: ", joined(names_), "."));
    }
    if (std::find(found + 1, names_.end(), column.name) != names_.end()) {
      throw file_.error(ErrorCode::kInvalidArgument,
                        message("there are two columns \"", column.name, "\". Use the number."));
    }
    chosen_.push_back(static_cast<size_t>(found - names_.begin()));
  }
}

bool CsvReader::next(CsvRow& row) {
  if (!read_record()) return false;
  const bool all = options_.columns.empty();
  row.values.resize(all ? fields_.size() : chosen_.size());
  for (size_t i = 0; i < row.values.size(); ++i) {
    const size_t index = all ? i : chosen_[i];
    if (index >= fields_.size()) {
      throw file_.error(ErrorCode::kNotFound,
                        message("there is no column ", index, "; the file has ", fields_.size(),
                                ", counted from 0."));
    }
    convert(fields_[index], i, index, row.values[i]);
  }
  return true;
}

bool CsvReader::next_fields(std::vector<std::string_view>& fields) {
  fields.clear();
  if (!read_record()) return false;
  for (const Field& field : fields_) fields.push_back(field.text);
  return true;
}

void CsvReader::seek(Position position) {
  // The first record determines the number of fields of all others.
  if (!width_ && position.offset > file_.offset()) read_record();
  file_.seek(position.offset);
  line_ = position.line;
}

bool CsvReader::read_record() {
  std::string_view line;
  do {
    const bool first = file_.offset() == 0;
    if (!file_.read_line(line)) return false;
    ++line_;
    if (first && line.substr(0, 3) == kByteOrderMark) line.remove_prefix(3);
  } while (without_return(line).empty());
  const uint64_t start = line_;
  fields_.clear();
  if (options_.quote == '\0' || line.find(options_.quote) == std::string_view::npos) {
    split_plain(without_return(line));
  } else {
    split_quoted(line);
  }
  if (!width_) width_ = fields_.size();
  if (fields_.size() != *width_) {
    throw file_.error(ErrorCode::kDataLoss, message("line ", start, ": expected ", *width_,
                                                    " fields, found ", fields_.size(), "."));
  }
  return true;
}

void CsvReader::split_plain(std::string_view line) {
  while (true) {
    const size_t end = line.find(options_.separator);
    fields_.push_back({.text = line.substr(0, end), .line = line_});
    if (end == std::string_view::npos) return;
    line.remove_prefix(end + 1);
  }
}

void CsvReader::split_quoted(std::string_view line) {
  text_.clear();
  size_t at = 0;
  while (true) {
    Field field{.begin = text_.size(), .line = line_};
    if (at < line.size() && line[at] == options_.quote) {
      at = take_quoted(line, at + 1, field);
    } else {
      const std::string_view rest = without_return(line).substr(at);
      const std::string_view plain = rest.substr(0, rest.find(options_.separator));
      if (plain.find(options_.quote) != std::string_view::npos) {
        throw error_at(ErrorCode::kDataLoss, line_, fields_.size(),
                       message("found a quote inside the unquoted field ", shown(plain),
                               ". Quote the field and double the quote."));
      }
      text_ += plain;
      at += plain.size();
    }
    field.end = text_.size();
    fields_.push_back(field);
    const size_t end = without_return(line).size();
    if (at >= end) break;
    if (line[at] != options_.separator) {
      throw error_at(ErrorCode::kDataLoss, line_, fields_.size() - 1,
                     message("expected a separator after the closing quote, found ",
                             shown(line.substr(at, 10)), "."));
    }
    ++at;
  }
  for (Field& field : fields_) {
    field.text = std::string_view(text_).substr(field.begin, field.end - field.begin);
  }
}

// Returns the index in `line` of the text after the closing quote; `line` may have become a later
// one.
size_t CsvReader::take_quoted(std::string_view& line, size_t at, Field& field) {
  field.quoted = true;
  while (true) {
    const size_t quote = line.find(options_.quote, at);
    if (quote == std::string_view::npos) {
      text_ += line.substr(at);
      text_ += '\n';
      const bool too_long = text_.size() > kLongestField;
      if (too_long || !file_.read_line(line)) {
        throw error_at(ErrorCode::kDataLoss, field.line, fields_.size(),
                       message("expected a closing quote, found ",
                               too_long ? "2 GiB of text without one." : "the end of the file."));
      }
      ++line_;
      at = 0;
      continue;
    }
    text_ += line.substr(at, quote - at);
    at = quote + 1;
    if (at >= line.size() || line[at] != options_.quote) return at;
    text_ += options_.quote;
    ++at;
  }
}

void CsvReader::convert(const Field& field, size_t column, size_t index, Value& value) const {
  const bool all = options_.columns.empty();
  const CsvType type = all ? CsvType::kString : options_.columns[column].type;
  const bool is_text = type == CsvType::kString;
  const bool missing = field.quoted ? field.text.empty() && !is_text
                                    : field.text.empty() || field.text == options_.missing;
  if (missing) {
    if (!all && options_.columns[column].default_value) {
      value = *options_.columns[column].default_value;
      return;
    }
    if (is_text) {
      value = std::string();
      return;
    }
    throw error_at(ErrorCode::kInvalidArgument, field.line, index,
                   message("the value is missing, expected ", to_string(type),
                           ". Give the column a default value to accept missing values."));
  }
  std::optional<Value> parsed = parse_value(type, field.text);
  if (!parsed) {
    throw error_at(ErrorCode::kInvalidArgument, field.line, index,
                   message("expected ", to_string(type), ", found ", shown(field.text), "."));
  }
  value = std::move(*parsed);
}

std::string CsvReader::column_text(size_t index) const {
  return index < names_.size() ? message(" (", names_[index], ")") : std::string();
}

Error CsvReader::error_at(ErrorCode code, uint64_t line, size_t column,
                          std::string_view text) const {
  return Error(code, message("CsvReader: ", file_.path(), ":", line, ":", column + 1,
                             column_text(column), ": ", text));
}

}  // namespace tutti::data
