// SPDX-License-Identifier: Apache-2.0
//
// Comma-separated values as defined by RFC 4180: quotes, doubled quotes, line breaks inside quotes,
// CRLF or LF; with any separator, a header line or none, and typed columns.
//
//   CsvReader reader("people.csv", {.columns = {csv_column<std::string>("name"),
//                                               csv_column<int64_t>("age", -1)}});
//   for (CsvRow row; reader.next(row);) use(row.get<std::string>(0), row.get<int64_t>(1));

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/files/input_file.h"
#include "tutti/nest/element.h"

namespace tutti::data {

enum class CsvType { kString, kInt64, kFloat, kDouble, kBool };

/// "string", "int64", "float32", "float64", "bool"
const char* to_string(CsvType type);

/// A column to read; see csv_column().
struct CsvColumn {
  std::string name = {};
  std::optional<size_t> index = std::nullopt;  ///< counts from 0; instead of a name
  CsvType type = CsvType::kString;
  std::optional<Value> default_value = std::nullopt;
};

template <class T>
concept CsvValue = std::is_same_v<T, std::string> || std::is_same_v<T, int64_t> ||
    std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, bool>;

/// A column by its name in the header, or by its number, which counts from 0. A missing value
/// becomes `default_value`; without one it is an error, except for strings, where it is the empty
/// string.
template <CsvValue T>
CsvColumn csv_column(std::variant<std::string, size_t> which,
                     std::optional<std::type_identity_t<T>> default_value = std::nullopt);

struct CsvOptions {
  /// The columns to read, in this order; if empty, all columns as strings.
  std::vector<CsvColumn> columns = {};
  bool header = true;  ///< The first line has the names of the columns.
  char separator = ',';
  char quote = '"';  ///< '\0': quotes mean nothing.
  /// An unquoted field with this text is a missing value, as is an empty one.
  std::string missing = "";
  Compression compression = Compression::kAuto;
};

/// The values of the requested columns. A plain value.
struct CsvRow {
  c10::SmallVector<Value, 2> values;

  /// Value i; T must be the type of the column.
  template <CsvValue T>
  T get(size_t i) const;
};

/// Reads one file from front to back. Blank lines are skipped; a byte order mark too.
/// Every record must have as many fields as the first. Not thread-safe.
///
/// Throws kNotFound for a missing file or column; kInvalidArgument, with file:line:column,
/// for a value that cannot be read as its type; kDataLoss for broken quotes.
class CsvReader {
 public:
  struct Position {
    uint64_t offset = 0;
    uint64_t line = 0;  ///< how many lines came before
  };

  explicit CsvReader(const std::string& path, CsvOptions options = {});
  explicit CsvReader(InputFile file, CsvOptions options = {});

  /// The next record; false at the end.
  bool next(CsvRow& row);

  /// The next record as text, all columns. The views are valid until the next call.
  bool next_fields(std::vector<std::string_view>& fields);

  /// The names in the header; empty without one.
  const std::vector<std::string>& names() const { return names_; }

  /// Where the next record begins, and going there.
  Position position() const { return {file_.offset(), line_}; }
  void seek(Position position);

 private:
  struct Field {
    std::string_view text = {};
    size_t begin = 0;  ///< in text_, while a record with quotes is put together
    size_t end = 0;
    uint64_t line = 0;
    bool quoted = false;
  };

  void read_header();
  void choose_columns();
  bool read_record();
  void split_plain(std::string_view line);
  void split_quoted(std::string_view line);
  size_t take_quoted(std::string_view& line, size_t at, Field& field);
  void convert(const Field& field, size_t column, size_t index, Value& value) const;
  std::string column_text(size_t index) const;
  Error error_at(ErrorCode code, uint64_t line, size_t column, std::string_view text) const;

  InputFile file_;
  CsvOptions options_;
  std::vector<std::string> names_;
  std::vector<size_t> chosen_;        ///< the field of each column in options_.columns
  std::optional<size_t> width_ = {};  ///< fields per record
  uint64_t line_ = 0;                 ///< lines read
  std::vector<Field> fields_;
  std::string text_;
};

template <CsvValue T>
CsvColumn csv_column(std::variant<std::string, size_t> which,
                     std::optional<std::type_identity_t<T>> default_value) {
  CsvColumn column;
  if (const auto* name = std::get_if<std::string>(&which)) column.name = *name;
  if (const auto* index = std::get_if<size_t>(&which)) column.index = *index;
  if constexpr (std::is_same_v<T, std::string>) {
    if (default_value) column.default_value = Value(std::move(*default_value));
  } else {
    column.type = std::is_same_v<T, bool>      ? CsvType::kBool
                  : std::is_same_v<T, int64_t> ? CsvType::kInt64
                  : std::is_same_v<T, float>   ? CsvType::kFloat
                                               : CsvType::kDouble;
    if (default_value) column.default_value = Value(Number::of(*default_value));
  }
  return column;
}

template <CsvValue T>
T CsvRow::get(size_t i) const {
  if constexpr (std::is_same_v<T, std::string>) {
    if (i < values.size()) {
      if (const auto* text = std::get_if<std::string>(&values[i])) return *text;
    }
  } else if (i < values.size()) {
    const auto* number = std::get_if<Number>(&values[i]);
    if (number != nullptr && number->kind == Number::of(T{}).kind && number->bytes == sizeof(T)) {
      T value{};
      std::memcpy(&value, number->bits.data(), sizeof(T));
      return value;
    }
  }
  throw Error(ErrorCode::kInvalidArgument,
              message("CsvRow::get: value ", i, " of ", values.size(),
                      " does not exist or has a different type than requested."));
}

}  // namespace tutti::data
