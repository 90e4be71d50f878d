// SPDX-License-Identifier: Apache-2.0
//
// Sources that read files one after the other: text_line, tf_record, fixed_length_record, csv. They
// differ in the reader of a single file.

#include <functional>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/file_sources.h"

namespace tutti::data {
namespace {

/// Reads one file from front to back.
class FileReader {
 public:
  /// Where the next element begins. All zeros mean the beginning of the file, before any header.
  struct Position {
    uint64_t offset = 0;  // after decompression
    uint64_t line = 0;
  };

  FileReader() = default;
  virtual ~FileReader() = default;
  FileReader(const FileReader&) = delete;
  FileReader& operator=(const FileReader&) = delete;

  virtual bool next(Element& out) = 0;
  virtual bool skip() = 0;
  virtual Position position() const = 0;
  virtual void seek(Position position) = 0;
};

struct FileFormat {
  std::string_view name;
  std::vector<ValueSpec> spec;
  bool counts_skipped = false;
  /// `stage` is null unless counts_skipped.
  std::function<std::unique_ptr<FileReader>(const std::string& path, Iteration::Stage* stage)> open;
};

class FileStream final : public ElementStream {
 public:
  FileStream(const std::vector<std::string>& files, std::shared_ptr<const FileFormat> format,
             Iteration::Stage* stage)
      : files_(files), format_(std::move(format)), stage_(stage) {}

  bool next(Element& out) override {
    return step([&out](FileReader& reader) { return reader.next(out); });
  }
  int64_t skip(int64_t n) override {
    int64_t skipped = 0;
    while (skipped < n && step([](FileReader& reader) { return reader.skip(); })) ++skipped;
    return skipped;
  }
  void save(StateWriter& state) override {
    state.tag(format_->name);
    state.number(static_cast<int64_t>(file_));
    if (file_ == files_.size()) return;
    const FileReader::Position position =
        reader_ != nullptr ? reader_->position() : FileReader::Position{};
    state.text(files_[file_]);
    state.number(static_cast<int64_t>(position.offset));
    state.number(static_cast<int64_t>(position.line));
  }
  void restore(StateReader& state) override {
    state.tag(format_->name);
    file_ = static_cast<size_t>(state.count(static_cast<int64_t>(files_.size())));
    if (file_ == files_.size()) return;
    const std::string name = state.text();
    if (name != files_[file_]) {
      throw Error(ErrorCode::kDataLoss,
                  message("Iterator::restore: the position is in file number ", file_, " of ",
                          format_->name, ", \"", name, "\", but that file is now \"", files_[file_],
                          "\". The list of files must not change."));
    }
    FileReader::Position position;
    position.offset = static_cast<uint64_t>(state.count(INT64_MAX));
    position.line = static_cast<uint64_t>(state.count(INT64_MAX));
    if (position.offset == 0) return;  // not opened yet
    reader_ = format_->open(name, stage_);
    reader_->seek(position);
  }

 private:
  // Reads an element of the current file, or of the next one that has any.
  template <class Step>
  bool step(const Step& step) {
    while (file_ < files_.size()) {
      if (reader_ == nullptr) reader_ = format_->open(files_[file_], stage_);
      if (step(*reader_)) return true;
      reader_.reset();
      ++file_;
    }
    return false;
  }

  const std::vector<std::string> files_;
  const std::shared_ptr<const FileFormat> format_;
  Iteration::Stage* const stage_;
  size_t file_ = 0;
  std::unique_ptr<FileReader> reader_;  // of file_, once it is open
};

class FileNode final : public Node {
 public:
  FileNode(std::vector<std::string> files, std::shared_ptr<const FileFormat> format)
      : files_(std::move(files)), format_(std::move(format)) {}

  std::string_view name() const override { return format_->name; }
  NodePtr with_inputs(std::vector<NodePtr>) const override { return shared_from_this(); }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    return std::make_unique<FileStream>(
        files_, format_, format_->counts_skipped ? &iteration.stage(*this) : nullptr);
  }
  int64_t cardinality() const override { return files_.empty() ? 0 : kUnknown; }
  ElementSpec spec() const override { return format_->spec; }
  NodeTraits traits() const override {
    return {.files = &files_, .with_files = [format = format_](std::vector<std::string> files) {
              return std::make_shared<FileNode>(std::move(files), format);
            }};
  }

 private:
  std::vector<std::string> files_;
  std::shared_ptr<const FileFormat> format_;
};

NodePtr make_file_source(std::vector<std::string> files, FileFormat format) {
  return std::make_shared<FileNode>(std::move(files),
                                    std::make_shared<const FileFormat>(std::move(format)));
}

ValueSpec string_spec() { return {ValueSpec::Kind::kString, std::nullopt, std::nullopt}; }

// Makes `out` an element of one string, whose memory is reused, and returns the string.
std::string& only_string(Element& out) {
  out.structure.clear();
  if (out.values.size() == 1) {
    if (auto* const held = std::get_if<std::string>(&out.values[0])) return *held;
  }
  out.values.clear();
  return std::get<std::string>(out.values.emplace_back(std::in_place_type<std::string>));
}

/// A reader whose elements are single strings.
class StringReader : public FileReader {
 public:
  bool next(Element& out) final {
    std::string_view record;
    if (!read(record)) return false;
    only_string(out).assign(record);
    return true;
  }
  bool skip() final {
    std::string_view record;
    return read(record);
  }

 private:
  /// The view is valid until the next call.
  virtual bool read(std::string_view& record) = 0;
};

// ---- text_line --------------------------------------------------------------------

class TextLineReader final : public StringReader {
 public:
  TextLineReader(const std::string& path, const TextLineOptions& options)
      : file_(path, {.compression = options.compression,
                     .buffer_size = options.buffer_size,
                     .reader = "text_line"}) {}

  Position position() const override { return {file_.offset(), 0}; }
  void seek(Position position) override { file_.seek(position.offset); }

 private:
  bool read(std::string_view& line) override {
    if (!file_.read_line(line)) return false;
    if (line.ends_with('\r')) line.remove_suffix(1);
    return true;
  }

  InputFile file_;
};

// ---- tf_record --------------------------------------------------------------------

class RecordReader final : public StringReader {
 public:
  RecordReader(const std::string& path, const TfRecordReaderOptions& options,
               Iteration::Stage* stage)
      : reader_(path, options), stage_(stage) {}

  Position position() const override { return {reader_.position(), 0}; }
  void seek(Position position) override { reader_.seek(position.offset); }

 private:
  bool read(std::string_view& record) override {
    const bool found = reader_.next(record);
    if (reader_.skipped() != counted_) {
      stage_->count_skipped(static_cast<int64_t>(reader_.skipped() - counted_));
      counted_ = reader_.skipped();
    }
    return found;
  }

  TfRecordReader reader_;
  Iteration::Stage* stage_;
  uint64_t counted_ = 0;
};

// ---- fixed_length_record ----------------------------------------------------------

class FixedLengthReader final : public StringReader {
 public:
  FixedLengthReader(const std::string& path, uint64_t record_bytes,
                    const FixedLengthRecordOptions& options)
      : file_(path, {.compression = options.compression,
                     .buffer_size = options.buffer_size,
                     .reader = "fixed_length_record"}),
        record_(record_bytes),
        footer_(static_cast<uint64_t>(options.footer_bytes)) {
    if (options.header_bytes > 0) {
      file_.read_exactly(static_cast<uint64_t>(options.header_bytes), "the header");
    }
  }

  Position position() const override { return {file_.offset(), 0}; }
  void seek(Position position) override { file_.seek(position.offset); }

 private:
  bool read(std::string_view& record) override {
    // The footer is what remains at the end, whose offset is unknown in a compressed file.
    const uint64_t found = file_.peek(record_ + footer_).size();
    if (found == record_ + footer_) {
      record = file_.read(record_);
      return true;
    }
    if (found == footer_) return false;
    if (found < footer_) {
      throw file_.data_loss(file_.offset(), message("the file is truncated; expected ", footer_,
                                                    " bytes of the footer, found ", found, "."));
    }
    throw file_.data_loss(
        file_.offset(),
        message("the file is truncated or its records have a different length; expected ", record_,
                " bytes of a record, found ", found - footer_, "."));
  }

  InputFile file_;
  uint64_t record_;
  uint64_t footer_;
};

// ---- csv --------------------------------------------------------------------------

class CsvFileReader final : public FileReader {
 public:
  CsvFileReader(const std::string& path, const CsvOptions& options) : reader_(path, options) {}

  bool next(Element& out) override {
    CsvRow row;
    if (!reader_.next(row)) return false;
    out.structure.clear();
    out.values = std::move(row.values);
    return true;
  }
  bool skip() override { return reader_.next_fields(fields_); }
  Position position() const override {
    return {reader_.position().offset, reader_.position().line};
  }
  void seek(Position position) override { reader_.seek({position.offset, position.line}); }

 private:
  CsvReader reader_;
  std::vector<std::string_view> fields_;
};

ValueSpec csv_spec(CsvType type) {
  switch (type) {
    case CsvType::kString:
      break;
    case CsvType::kInt64:
      return {ValueSpec::Kind::kNumber, at::kLong, std::nullopt};
    case CsvType::kFloat:
      return {ValueSpec::Kind::kNumber, at::kFloat, std::nullopt};
    case CsvType::kDouble:
      return {ValueSpec::Kind::kNumber, at::kDouble, std::nullopt};
    case CsvType::kBool:
      return {ValueSpec::Kind::kNumber, at::kBool, std::nullopt};
  }
  return string_spec();
}

}  // namespace

NodePtr make_text_line(std::vector<std::string> files, const TextLineOptions& options) {
  return make_file_source(std::move(files),
                          {.name = "text_line",
                           .spec = {string_spec()},
                           .open = [options](const std::string& path, Iteration::Stage*) {
                             return std::make_unique<TextLineReader>(path, options);
                           }});
}

NodePtr make_tf_record(std::vector<std::string> files, const TfRecordReaderOptions& options) {
  return make_file_source(std::move(files),
                          {.name = "tf_record",
                           .spec = {string_spec()},
                           .counts_skipped = options.skip_corrupt,
                           .open = [options](const std::string& path, Iteration::Stage* stage) {
                             return std::make_unique<RecordReader>(path, options, stage);
                           }});
}

NodePtr make_fixed_length_record(std::vector<std::string> files, int64_t record_bytes,
                                 const FixedLengthRecordOptions& options) {
  // More than a process can hold, so that sums do not overflow.
  constexpr int64_t kMost = int64_t{1} << 48;
  const auto check = [](const char* what, int64_t bytes, int64_t least) {
    if (bytes >= least && bytes <= kMost) return;
    throw Error(ErrorCode::kInvalidArgument, message("fixed_length_record: ", what, " is ", bytes,
                                                     "; it must be ", least, " or more."));
  };
  check("record_bytes", record_bytes, 1);
  check("header_bytes", options.header_bytes, 0);
  check("footer_bytes", options.footer_bytes, 0);
  return make_file_source(
      std::move(files),
      {.name = "fixed_length_record",
       .spec = {string_spec()},
       .open = [record_bytes, options](const std::string& path, Iteration::Stage*) {
         return std::make_unique<FixedLengthReader>(path, static_cast<uint64_t>(record_bytes),
                                                    options);
       }});
}

NodePtr make_csv(std::vector<std::string> files, const CsvOptions& options) {
  if (options.columns.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "csv: no columns are requested.");
  }
  std::vector<ValueSpec> spec;
  for (const CsvColumn& column : options.columns) spec.push_back(csv_spec(column.type));
  return make_file_source(std::move(files),
                          {.name = "csv",
                           .spec = std::move(spec),
                           .open = [options](const std::string& path, Iteration::Stage*) {
                             return std::make_unique<CsvFileReader>(path, options);
                           }});
}

}  // namespace tutti::data
