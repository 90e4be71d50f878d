// SPDX-License-Identifier: Apache-2.0
//
// Datasets of files:
//
//   const auto spec = ExampleSpec().fixed<float>("image", {28, 28}).fixed<int64_t>("label");
//   auto batches = tutti::data::tf_record(tutti::data::match_files("train-*.tfrecord"))
//                      .map([spec](std::string record) {
//                        ParsedExample example = spec.parse(record);
//                        return std::tuple(example.tensor(0), example.tensor(1));
//                      })
//                      .batch(256);
//
// text_line, tf_record, fixed_length_record and csv read files one after the other and open each
// when it is reached: a missing or damaged file is an error of the element that needs it, after all
// elements before it. Array files (npy, npz, idx) are opened immediately, and their rows can be
// read in any order.

#pragma once

#include <concepts>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "tutti/base/error.h"
#include "tutti/data/dataset.h"
#include "tutti/data/file_sources.h"
#include "tutti/data/formats/idx_file.h"
#include "tutti/data/formats/npy_file.h"

namespace tutti::data {

/// One name or several: "a", path, {"a", "b"} or a vector. A plain value.
class FileNames {
 public:
  FileNames() = default;
  FileNames(const char* file) : names_{file} {}
  FileNames(std::string file) : names_{std::move(file)} {}
  FileNames(const std::filesystem::path& file) : names_{file.string()} {}
  FileNames(std::initializer_list<std::string> files) : names_(files) {}
  FileNames(std::vector<std::string> files) : names_(std::move(files)) {}

  std::vector<std::string> take() && { return std::move(names_); }

 private:
  std::vector<std::string> names_;
};

/// The files that match a pattern, or any of several, with *, ? and [a-z] as in a shell; sorted,
/// each once, without folders. Throws kNotFound for a pattern that matches no file.
std::vector<std::string> match_files(FileNames patterns);

/// The names that match_files() finds when the dataset is created, in random order.
inline Dataset<std::string> list_files(FileNames patterns, const ListFilesOptions& options = {}) {
  return Dataset<std::string>(make_list_files(std::move(patterns).take(), options));
}

// ---- files one after the other

/// Lines, without the "\n" or "\r\n" at their end.
inline Dataset<std::string> text_line(FileNames files, const TextLineOptions& options = {}) {
  return Dataset<std::string>(make_text_line(std::move(files).take(), options));
}

/// The records of TFRecord files, with their checksums verified. With skip_corrupt,
/// Iterator::stats() counts the skipped ones.
inline Dataset<std::string> tf_record(FileNames files, const TfRecordReaderOptions& options = {}) {
  return Dataset<std::string>(make_tf_record(std::move(files).take(), options));
}

/// Records of `record_bytes` bytes. Throws kDataLoss if a file ends within a record.
inline Dataset<std::string> fixed_length_record(FileNames files, int64_t record_bytes,
                                                const FixedLengthRecordOptions& options = {}) {
  return Dataset<std::string>(
      make_fixed_length_record(std::move(files).take(), record_bytes, options));
}

/// A column of csv<T...>(): its name in the header or its number, counted from 0, and the default
/// for missing values, without which they are errors. A plain value.
template <CsvValue T>
class CsvField {
 public:
  template <std::convertible_to<std::string> Name>
  CsvField(Name&& name, std::optional<T> default_value = std::nullopt)
      : column_(csv_column<T>(std::string(std::forward<Name>(name)), std::move(default_value))) {}
  template <std::integral Index>
  CsvField(Index index, std::optional<T> default_value = std::nullopt)
      : column_(csv_column<T>(static_cast<size_t>(index), std::move(default_value))) {
    if (std::cmp_less(index, 0)) {
      throw Error(ErrorCode::kInvalidArgument,
                  message("csv: there is no column ", index, "; columns count from 0."));
    }
  }

  const CsvColumn& column() const { return column_; }

 private:
  CsvColumn column_;
};

/// Tuples of the requested columns. The type arguments are their types: string, int64_t, float,
/// double or bool.
///
///   csv<std::string, int64_t>("people.csv", {"name", {"age", -1}}, {.separator = ';'})
///
/// options.columns must be empty.
template <CsvValue... T>
Dataset<std::tuple<T...>> csv(FileNames files,
                              const std::type_identity_t<std::tuple<CsvField<T>...>>& columns,
                              CsvOptions options = {}) {
  static_assert(sizeof...(T) > 0, "csv: name the types of the columns: csv<std::string, float>");
  if (!options.columns.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "csv: CsvOptions::columns is set; give the columns as the second argument only.");
  }
  std::apply([&](const auto&... each) { options.columns = {each.column()...}; }, columns);
  return Dataset<std::tuple<T...>>(make_csv(std::move(files).take(), options));
}

// ---- arrays

namespace internal {

template <class>
using TensorOf = at::Tensor;

/// A tensor for one array, a tuple for several.
template <class... Names>
using ArrayRows =
    std::conditional_t<sizeof...(Names) == 1, at::Tensor, std::tuple<TensorOf<Names>...>>;

}  // namespace internal

/// The rows of an array. Rows of a C-ordered file are views of the mapped file, read when they are
/// used: a function that writes to them must clone them first.
inline Dataset<at::Tensor> npy(const std::string& path) {
  return Dataset<at::Tensor>(make_array_rows("npy", {path}, {read_npy(path)}));
}

/// The rows of an array in an .npz file; tuples of rows for several names. Throws
/// kInvalidArgument if the arrays differ in their number of rows.
template <std::convertible_to<std::string>... Names>
  requires(sizeof...(Names) > 0)
auto npz(const std::string& path, const Names&... names) {
  const NpzFile file(path);
  return Dataset<internal::ArrayRows<Names...>>(make_array_rows(
      "npz", {message(path, "(", std::string(names), ")")...}, {file.read(std::string(names))...}));
}

/// The rows of an IDX file; tuples of rows for several: idx(images, labels). Throws
/// kInvalidArgument if the arrays differ in their number of rows.
template <std::convertible_to<std::string>... Paths>
  requires(sizeof...(Paths) > 0)
auto idx(const Paths&... paths) {
  return Dataset<internal::ArrayRows<Paths...>>(
      make_array_rows("idx", {std::string(paths)...}, {read_idx(std::string(paths))...}));
}

}  // namespace tutti::data
