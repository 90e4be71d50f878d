// SPDX-License-Identifier: Apache-2.0
//
// cache: the first complete pass is stored, later ones read it. A pass that begins before one is
// complete stores separately, so that any number may run concurrently; the first to end (in memory)
// or the last (in a file) is kept, and a dropped pass leaves nothing.
//
// A file has the line "tutti cache 1", then records: the length of the payload (8 bytes), the
// payload, and the masked CRC-32C of both (4 bytes), all in the byte order of the machine. The
// first payload is a checksum of the pipeline; the others are 1 and an element, the last one 0 and
// the number of elements.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <exception>
#include <filesystem>
#include <utility>

#include "tutti/base/crc32c.h"
#include "tutti/base/error.h"
#include "tutti/base/mutex.h"
#include "tutti/data/internal/random.h"
#include "tutti/data/transforms.h"
#include "tutti/files/input_file.h"
#include "tutti/files/output_file.h"

namespace tutti::data {
namespace {

constexpr const char* kCacheUser = "Dataset::cache";

class CacheReader {
 public:
  virtual ~CacheReader() = default;
  virtual bool next(Element& out) = 0;
  virtual void save(StateWriter& state) = 0;
  virtual void seek(int64_t index, int64_t offset) = 0;
};

/// Dropped before complete(), it leaves nothing behind.
class CacheWriter {
 public:
  virtual ~CacheWriter() = default;
  virtual void add(const Element& element) = 0;
  virtual void complete() = 0;
};

/// Shared by all passes. Thread-safe.
class CacheStore {
 public:
  virtual ~CacheStore() = default;
  /// Returns null if no pass is complete yet.
  virtual std::unique_ptr<CacheReader> read() = 0;
  virtual std::unique_ptr<CacheWriter> write() = 0;
};

// ---- in memory -------------------------------------------------------------------

using Elements = std::vector<Element>;

class MemoryReader final : public CacheReader {
 public:
  explicit MemoryReader(std::shared_ptr<const Elements> elements)
      : elements_(std::move(elements)) {}

  bool next(Element& out) override {
    if (index_ == elements_->size()) return false;
    out = (*elements_)[index_++];
    return true;
  }
  void save(StateWriter& state) override {
    state.number(static_cast<int64_t>(index_));
    state.number(0);
  }
  void seek(int64_t index, int64_t) override {
    index_ = std::min(static_cast<size_t>(index), elements_->size());
  }

 private:
  std::shared_ptr<const Elements> elements_;
  size_t index_ = 0;
};

class MemoryStore final : public CacheStore {
 public:
  std::unique_ptr<CacheReader> read() override {
    const MutexLock lock(mutex_);
    return elements_ != nullptr ? std::make_unique<MemoryReader>(elements_) : nullptr;
  }
  std::unique_ptr<CacheWriter> write() override { return std::make_unique<Writer>(*this); }

 private:
  class Writer final : public CacheWriter {
   public:
    explicit Writer(MemoryStore& store) : store_(store) {}
    void add(const Element& element) override { elements_.push_back(element); }
    void complete() override {
      const auto all = std::make_shared<const Elements>(std::move(elements_));
      const MutexLock lock(store_.mutex_);
      if (store_.elements_ == nullptr) store_.elements_ = all;
    }

   private:
    MemoryStore& store_;
    Elements elements_;
  };

  Mutex mutex_;
  std::shared_ptr<const Elements> elements_ TUTTI_GUARDED_BY(mutex_);
};

// ---- in a file -------------------------------------------------------------------

constexpr std::string_view kCacheMagic = "tutti cache 1\n";
enum : int64_t { kCacheEnd, kCacheElement };

// Describes the transforms and files before the cache, as far as they are visible.
void describe_pipeline(const Node& node, std::string& text) {
  const NodeTraits traits = node.traits();
  text += node.name();
  text += traits.arguments;
  if (traits.files != nullptr) {
    for (const std::string& file : *traits.files) text += '\n' + file;
  }
  text += '(';
  for (const NodePtr& each : node.inputs()) describe_pipeline(*each, text);
  text += ')';
}

class CacheFileReader final : public CacheReader {
 public:
  CacheFileReader(const std::string& path, int64_t pipeline)
      : file_(path, {.compression = Compression::kNone,
                     .max_read_size = UINT64_MAX,
                     .reader = kCacheUser}) {
    guarded([&] {
      if (file_.read(kCacheMagic.size()) != kCacheMagic) {
        throw file_.data_loss(0, "this is not a cache of this version of the library.");
      }
      const std::string payload = record();
      StateReader header(payload);
      if (header.number() != pipeline) {
        throw file_.error(ErrorCode::kFailedPrecondition,
                          "the cache was written by a different pipeline: the transforms or files "
                          "before cache() differ. Delete it, or use a different path.");
      }
    });
  }

  bool next(Element& out) override {
    if (ended_) return false;
    guarded([&] {
      const uint64_t begin = file_.offset();
      const std::string payload = record();
      try {
        StateReader state(payload);
        if (state.count(kCacheElement) == kCacheElement) {
          out = state.element();
          ++index_;
        } else {
          ended_ = state.number() == index_ && file_.at_end();
          if (!ended_) throw Error(ErrorCode::kDataLoss, "the end marker is in the wrong place.");
        }
        state.finish();
      } catch (const Error& error) {
        throw file_.data_loss(begin, error.what());
      }
    });
    return !ended_;
  }
  void save(StateWriter& state) override {
    state.number(index_);
    state.number(static_cast<int64_t>(file_.offset()));
  }
  void seek(int64_t index, int64_t offset) override {
    guarded([&] { file_.seek(static_cast<uint64_t>(offset)); });
    index_ = index;
    ended_ = file_.at_end();
  }

 private:
  std::string record() {
    const uint64_t begin = file_.offset();
    const std::string head(file_.read_exactly(sizeof(uint64_t), "the length of an element"));
    uint64_t size = 0;
    std::memcpy(&size, head.data(), sizeof(size));
    std::string payload(file_.read_exactly(size, "an element"));
    uint32_t masked = 0;
    file_.read_exactly(&masked, sizeof(masked), "a checksum");
    const uint32_t crc = crc32c(payload.data(), payload.size(), crc32c(head.data(), head.size()));
    if (crc != unmask_crc32c(masked)) {
      throw file_.data_loss(begin, "the checksum of an element does not match.");
    }
    return payload;
  }

  template <class F>
  static void guarded(const F& fn) {
    try {
      fn();
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kDataLoss) throw;
      throw Error(ErrorCode::kDataLoss,
                  message(error.what(),
                          " The cache is damaged. Delete the file; the next pass rebuilds it."));
    }
  }

  InputFile file_;
  int64_t index_ = 0;
  bool ended_ = false;
};

class CacheFileWriter final : public CacheWriter {
 public:
  CacheFileWriter(std::string path, int64_t pipeline)
      : path_(std::move(path)), temporary_(unique_name(path_)), file_(temporary_, options()) {
    try {
      file_.write(kCacheMagic);
      StateWriter header;
      header.number(pipeline);
      record(header.take());
    } catch (...) {
      drop();
      throw;
    }
  }
  ~CacheFileWriter() override {
    if (!complete_) drop();
  }

  void add(const Element& element) override {
    StateWriter state;
    state.number(kCacheElement);
    state.element(element);
    record(state.take());
    ++count_;
  }
  void complete() override {
    StateWriter state;
    state.number(kCacheEnd);
    state.number(count_);
    record(state.take());
    file_.close();
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
      throw internal::system_error(kCacheUser, "rename the complete cache to", path_, errno);
    }
    complete_ = true;
  }

 private:
  // Passes of other processes and hosts may write concurrently.
  static std::string unique_name(const std::string& path) {
    char digits[17];
    std::snprintf(digits, sizeof(digits), "%016llx",
                  static_cast<unsigned long long>(random_seed()));
    return path + ".tmp-" + digits;
  }
  static OutputFileOptions options() {
    OutputFileOptions options;
    options.writer = kCacheUser;
    return options;
  }

  void record(const std::string& payload) {
    char head[sizeof(uint64_t)];
    const uint64_t size = payload.size();
    std::memcpy(head, &size, sizeof(head));
    const uint32_t masked =
        mask_crc32c(crc32c(payload.data(), payload.size(), crc32c(head, sizeof(head))));
    char tail[sizeof(masked)];
    std::memcpy(tail, &masked, sizeof(tail));
    file_.write({head, sizeof(head)});
    file_.write(payload);
    file_.write({tail, sizeof(tail)});
  }

  void drop() {
    ::unlink(temporary_.c_str());
    try {
      file_.close();
    } catch (const std::exception&) {
      // A cache that could not be written is not needed.
    }
  }

  const std::string path_;
  const std::string temporary_;
  OutputFile file_;
  int64_t count_ = 0;
  bool complete_ = false;
};

class FileStore final : public CacheStore {
 public:
  FileStore(std::string path, const Node& input) : path_(std::move(path)) {
    std::string text;
    describe_pipeline(input, text);
    pipeline_ = crc32c(text.data(), text.size());
  }

  std::unique_ptr<CacheReader> read() override {
    std::error_code ignored;  // opening the file reports the error
    if (std::filesystem::status(path_, ignored).type() == std::filesystem::file_type::not_found) {
      return nullptr;
    }
    return std::make_unique<CacheFileReader>(path_, pipeline_);
  }
  std::unique_ptr<CacheWriter> write() override {
    return std::make_unique<CacheFileWriter>(path_, pipeline_);
  }

 private:
  const std::string path_;
  int64_t pipeline_ = 0;
};

// ---- passes ----------------------------------------------------------------------

class CacheStream final : public ElementStream {
 public:
  using Make = std::function<std::unique_ptr<ElementStream>()>;

  CacheStream(std::shared_ptr<CacheStore> store, Make make_input)
      : store_(std::move(store)), make_input_(std::move(make_input)) {}

  bool next(Element& out) override {
    if (error_ != nullptr) std::rethrow_exception(error_);
    begin();
    try {
      if (reader_ != nullptr) return reader_->next(out);
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
    bool has = false;
    try {
      has = input_->next(out);
    } catch (...) {
      writer_.reset();  // the pass is not complete, even if it continues
      throw;
    }
    if (writer_ != nullptr) store(has, out);
    return has;
  }

  // Elements stored so far are not part of a position: a pass that is restored while filling the
  // cache does not fill it.
  void save(StateWriter& state) override {
    if (error_ != nullptr) std::rethrow_exception(error_);
    begin();
    state.tag("cache");
    state.number(reader_ != nullptr ? 1 : 0);
    if (reader_ != nullptr) {
      reader_->save(state);
    } else {
      input_->save(state);
    }
  }

  void restore(StateReader& state) override {
    state.tag("cache");
    if (state.count(1) == 0) {
      input_ = make_input_();
      input_->restore(state);
      return;
    }
    const int64_t index = state.count(INT64_MAX);
    const int64_t offset = state.count(INT64_MAX);
    begin();
    if (reader_ != nullptr) {
      reader_->seek(index, offset);
    } else {
      skip(index);  // the cache is gone, so this pass rebuilds it
    }
  }

 private:
  void begin() {
    if (reader_ != nullptr || input_ != nullptr) return;
    try {
      reader_ = store_->read();
      if (reader_ != nullptr) return;
      writer_ = store_->write();
    } catch (...) {
      error_ = std::current_exception();
      throw;
    }
    input_ = make_input_();
  }

  void store(bool has, const Element& element) {
    try {
      if (has) {
        writer_->add(element);
        return;
      }
      writer_->complete();
    } catch (...) {
      error_ = std::current_exception();
      writer_.reset();
      throw;
    }
    writer_.reset();
  }

  const std::shared_ptr<CacheStore> store_;
  const Make make_input_;
  std::unique_ptr<CacheReader> reader_;
  std::unique_ptr<CacheWriter> writer_;   // null once the pass is incomplete
  std::unique_ptr<ElementStream> input_;  // null if there is a reader
  std::exception_ptr error_;
};

class CacheNode final : public Node {
 public:
  // An empty path means memory.
  CacheNode(NodePtr from, std::string path) : Node({std::move(from)}), path_(std::move(path)) {
    if (path_.empty()) {
      store_ = std::make_shared<MemoryStore>();
    } else {
      store_ = std::make_shared<FileStore>(path_, input());
    }
  }

  std::string_view name() const override { return "cache"; }
  // Different inputs have different elements, so the store is new.
  NodePtr with_inputs(std::vector<NodePtr> inputs) const override {
    return std::make_shared<CacheNode>(std::move(inputs[0]), path_);
  }
  std::unique_ptr<ElementStream> iterate(Iteration& iteration) const override {
    return std::make_unique<CacheStream>(store_,
                                         [this, &iteration] { return input().iterate(iteration); });
  }
  int64_t cardinality() const override { return input().cardinality(); }
  ElementSpec spec() const override { return input().spec(); }
  NodeTraits traits() const override {
    return {.batch_size = input().batch_size(), .keeps_elements = true};
  }

 private:
  std::string path_;
  std::shared_ptr<CacheStore> store_;
};

}  // namespace

NodePtr make_cache(NodePtr input) { return std::make_shared<CacheNode>(std::move(input), ""); }

NodePtr make_cache(NodePtr input, std::string path) {
  if (path.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "Dataset::cache: the path is empty. Use cache() without a path for memory.");
  }
  return std::make_shared<CacheNode>(std::move(input), std::move(path));
}

}  // namespace tutti::data
