// SPDX-License-Identifier: Apache-2.0

#include "tutti/files/input_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <limits>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

namespace tutti::data {

const char* to_string(Compression compression) {
  switch (compression) {
    case Compression::kAuto:
      return "kAuto";
    case Compression::kNone:
      return "kNone";
    case Compression::kGzip:
      return "kGzip";
    case Compression::kZlib:
      return "kZlib";
  }
  return "unknown";
}

namespace internal {

Error system_error(std::string_view who, std::string_view action, std::string_view path,
                   int error_number) {
  ErrorCode code = ErrorCode::kFailedPrecondition;
  if (error_number == ENOENT || error_number == ENOTDIR) code = ErrorCode::kNotFound;
  if (error_number == EIO) code = ErrorCode::kDataLoss;
  const char* const advice =
      error_number == EFBIG ? " Is there a limit on the size of files (ulimit -f)?" : "";
  return Error(code, message(who, ": cannot ", action, " \"", path,
                             "\": ", std::generic_category().message(error_number), ".", advice));
}

}  // namespace internal

namespace {

// Deflate expands one byte to 1032 at most; the slack covers what zlib holds back.
constexpr uint64_t kDeflateRatio = 1032;
constexpr uint64_t kDeflateSlack = 1 << 17;
constexpr uint64_t kUnknownSize = std::numeric_limits<uint64_t>::max();

bool is_gzip(std::string_view start) { return start.substr(0, 3) == "\x1f\x8b\x08"; }

}  // namespace

namespace internal {

/// A raw stream of bytes from a file or memory.
class ByteSource {
 public:
  ByteSource(const std::string& path, const std::string& reader) : path_(path), reader_(reader) {
    do {
      descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
    } while (descriptor_ < 0 && errno == EINTR);
    if (descriptor_ < 0) throw internal::system_error(reader, "open", path, errno);
    struct stat status = {};
    if (::fstat(descriptor_, &status) == 0) {
      if (S_ISDIR(status.st_mode)) {
        ::close(descriptor_);
        throw internal::system_error(reader, "read", path, EISDIR);
      }
      is_regular_ = S_ISREG(status.st_mode);
      size_ = is_regular_ ? static_cast<uint64_t>(status.st_size) : kUnknownSize;
    }
#if defined(POSIX_FADV_SEQUENTIAL)
    ::posix_fadvise(descriptor_, 0, 0, POSIX_FADV_SEQUENTIAL);
#endif
  }
  ByteSource(std::string_view memory, std::string name)
      : memory_(memory), size_(memory.size()), path_(std::move(name)) {}
  ~ByteSource() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  ByteSource(const ByteSource&) = delete;
  ByteSource& operator=(const ByteSource&) = delete;

  bool in_memory() const { return descriptor_ < 0; }
  bool can_go_back() const { return in_memory() || is_regular_; }
  std::string_view memory() const { return memory_; }
  uint64_t offset() const { return offset_; }
  const std::string& path() const { return path_; }

  /// Reads at least one byte, except at the end.
  size_t read(char* to, size_t size) {
    if (in_memory()) {
      const std::string_view part = memory_.substr(offset_, size);
      if (part.empty()) return 0;
      std::memcpy(to, part.data(), part.size());
      offset_ += part.size();
      return part.size();
    }
    while (true) {
      const ssize_t count = ::read(descriptor_, to, std::min(size, size_t{1} << 30));
      if (count >= 0) {
        offset_ += static_cast<uint64_t>(count);
        return static_cast<size_t>(count);
      }
      if (errno != EINTR) throw internal::system_error(reader_, "read", path_, errno);
    }
  }

  void seek(uint64_t offset) {
    if (!in_memory() && ::lseek(descriptor_, static_cast<off_t>(offset), SEEK_SET) < 0) {
      throw internal::system_error(reader_, "seek in", path_, errno);
    }
    offset_ = offset;
  }

  /// The size, queried again if `known` exceeds it, since files grow.
  uint64_t size_beyond(uint64_t known) const {
    if (is_regular_ && known > size_) {
      struct stat status = {};
      if (::fstat(descriptor_, &status) == 0) size_ = static_cast<uint64_t>(status.st_size);
    }
    return size_;
  }

 private:
  int descriptor_ = -1;
  bool is_regular_ = false;
  std::string_view memory_;
  mutable uint64_t size_ = kUnknownSize;
  uint64_t offset_ = 0;
  std::string path_;
  std::string reader_;
};

}  // namespace internal

struct InputFile::Impl {
  InputFileOptions options;
  internal::ByteSource source;
  Compression compression = Compression::kNone;

  // The decoded bytes data[begin, end) are next. Plain memory is not copied: data points into it,
  // and buffer stays empty.
  std::vector<char> buffer;
  const char* data = nullptr;
  size_t begin = 0;
  size_t end = 0;
  uint64_t offset = 0;  // Offset of data[begin].

  std::vector<char> packed;  // Compressed bytes, not yet inflated.
  z_stream stream = {};
  bool has_stream = false;
  bool member_open = false;  // Inside a gzip member or zlib stream.
  bool stream_ended = false;
  bool any_member = false;

  template <class Where>
  Impl(const Where& where, std::string second, InputFileOptions opts)
      : options(std::move(opts)), source(where, std::move(second)) {
    if (options.buffer_size == 0) options.buffer_size = 1;
    const Compression asked = options.compression;
    start_plain();
    if (asked == Compression::kAuto) {
      if (is_gzip(fill(3))) {
        start_packed(Compression::kGzip);
      } else if (!source.in_memory() && source.path().ends_with(".gz")) {
        // Read as plain bytes, a damaged file would yield garbage.
        throw packed_error(
            "the name ends in .gz, but the file does not begin with gzip's magic bytes. It is "
            "damaged, or not compressed; in the latter case use Compression::kNone.");
      }
    } else if (asked != Compression::kNone) {
      start_packed(asked);
    }
  }
  ~Impl() {
    if (has_stream) ::inflateEnd(&stream);
  }
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;

  std::string_view available() const { return {data + begin, end - begin}; }

  void start_plain() {
    if (!source.in_memory()) return;
    data = source.memory().data();
    end = source.memory().size();
  }

  /// Turns the bytes read ahead into compressed input.
  void start_packed(Compression kind) {
    compression = kind;
    packed.assign(std::max(options.buffer_size, end - begin), '\0');
    if (source.in_memory()) {
      source.seek(0);
      begin = end = 0;
    } else if (end > begin) {
      std::memcpy(packed.data(), data + begin, end - begin);
    }
    stream = {};
    stream.next_in = reinterpret_cast<Bytef*>(packed.data());
    stream.avail_in = static_cast<uInt>(end - begin);
    const int window = kind == Compression::kGzip ? 15 + 16 : 15;
    if (::inflateInit2(&stream, window) != Z_OK) throw std::bad_alloc();
    has_stream = true;
    buffer.clear();
    data = nullptr;
    begin = end = 0;
  }

  void rewind() {
    source.seek(0);
    offset = 0;
    begin = end = 0;
    if (compression == Compression::kNone) {
      start_plain();
      return;
    }
    ::inflateReset(&stream);
    stream.avail_in = 0;
    member_open = stream_ended = any_member = false;
  }

  uint64_t packed_offset() const { return has_stream ? source.offset() - stream.avail_in : offset; }

  bool refill_packed() {
    if (stream.avail_in > 0) return true;
    const size_t count = source.read(packed.data(), packed.size());
    stream.next_in = reinterpret_cast<Bytef*>(packed.data());
    stream.avail_in = static_cast<uInt>(count);
    return count > 0;
  }

  Error packed_error(std::string_view text) const {
    return Error(ErrorCode::kDataLoss,
                 message(options.reader, ": ", source.path(), ": at compressed byte ",
                         packed_offset(), ": ", text));
  }

  /// Whether another member follows; after a gzip member, zero padding may precede the end.
  bool next_member() {
    if (!refill_packed()) return false;
    if (!any_member) return true;
    if (compression == Compression::kGzip && *stream.next_in == 0x1f) return true;
    if (compression == Compression::kGzip) {
      while (refill_packed()) {
        if (*stream.next_in != 0) {
          throw packed_error("expected another gzip member or the end, found other bytes.");
        }
        ++stream.next_in;
        --stream.avail_in;
      }
      return false;
    }
    throw packed_error("expected the end after the zlib stream, found more bytes.");
  }

  size_t inflate_some(char* to, size_t size) {
    stream.next_out = reinterpret_cast<Bytef*>(to);
    stream.avail_out = static_cast<uInt>(std::min(size, size_t{1} << 30));
    const uInt room = stream.avail_out;
    while (stream.avail_out == room && !stream_ended) {
      if (!member_open) {
        if (!next_member()) {
          if (!any_member) {
            throw packed_error(message("the file is empty; expected ", to_string(compression),
                                       " compressed bytes."));
          }
          stream_ended = true;
          break;
        }
        ::inflateReset(&stream);
        member_open = any_member = true;
      }
      if (!refill_packed()) {
        throw packed_error("the compressed file is truncated; it ends within a compressed stream.");
      }
      const int result = ::inflate(&stream, Z_NO_FLUSH);
      if (result == Z_STREAM_END) {
        member_open = false;
      } else if (result == Z_MEM_ERROR) {
        throw std::bad_alloc();
      } else if (result != Z_OK && result != Z_BUF_ERROR) {
        throw packed_error(message("the compressed bytes are damaged (",
                                   stream.msg != nullptr ? stream.msg : "no valid stream",
                                   "; read as ", to_string(compression), ")."));
      }
    }
    return room - stream.avail_out;
  }

  size_t produce(char* to, size_t size) {
    return compression == Compression::kNone ? source.read(to, size) : inflate_some(to, size);
  }

  /// Returns at least `size` bytes from data[begin], or the rest.
  std::string_view fill(size_t size) {
    if (end - begin >= size) return available();
    if (compression == Compression::kNone && source.in_memory()) return available();
    while (end - begin < size) {
      make_room(size);
      const size_t count = produce(buffer.data() + end, buffer.size() - end);
      if (count == 0) break;
      end += count;
    }
    data = buffer.data();
    return available();
  }

  void make_room(size_t wanted) {
    if (buffer.empty()) buffer.resize(options.buffer_size);
    if (begin > 0 && (begin == end || buffer.size() - begin < wanted)) {
      std::memmove(buffer.data(), buffer.data() + begin, end - begin);
      end -= begin;
      begin = 0;
    }
    // Doubling follows the bytes that were read, not those that a length field promised.
    if (end == buffer.size()) buffer.resize(buffer.size() * 2);
    data = buffer.data();
  }

  std::string_view take(size_t size) {
    const std::string_view result(data + begin, size);
    begin += size;
    offset += size;
    return result;
  }

  uint64_t remaining() const {
    const uint64_t held = end - begin;
    if (compression == Compression::kNone) {
      if (source.in_memory()) return held;
      const uint64_t size = source.size_beyond(source.offset() + 1);
      if (size == kUnknownSize) return kUnknownSize;
      return held + (size > source.offset() ? size - source.offset() : 0);
    }
    const uint64_t size = source.size_beyond(packed_offset() + 1);
    if (size == kUnknownSize) return kUnknownSize;
    const uint64_t rest = size > packed_offset() ? size - packed_offset() : 0;
    return held + rest * kDeflateRatio + kDeflateSlack;
  }
};

InputFile::InputFile(const std::string& path, InputFileOptions options) {
  std::string reader = options.reader;
  impl_ = std::make_unique<Impl>(path, std::move(reader), std::move(options));
}

InputFile::InputFile(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
InputFile::InputFile(InputFile&&) noexcept = default;
InputFile& InputFile::operator=(InputFile&&) noexcept = default;
InputFile::~InputFile() = default;

InputFile InputFile::from_memory(std::string_view bytes, std::string name,
                                 InputFileOptions options) {
  return InputFile(std::make_unique<Impl>(bytes, std::move(name), std::move(options)));
}

std::string_view InputFile::peek(size_t size) { return impl_->fill(size).substr(0, size); }

std::string_view InputFile::read(size_t size) {
  return impl_->take(std::min(impl_->fill(size).size(), size));
}

namespace {

std::string too_short(uint64_t size, std::string_view what, uint64_t found) {
  return message("the file is truncated; expected ", size, " bytes of ", what, ", found ", found,
                 ".");
}

}  // namespace

std::string_view InputFile::read_exactly(uint64_t size, std::string_view what) {
  Impl& impl = *impl_;
  if (impl.end - impl.begin < size) {
    if (size > impl.options.max_read_size) {
      throw data_loss(impl.offset, message(what, " has ", size, " bytes, more than the limit of ",
                                           impl.options.max_read_size, "."));
    }
    const uint64_t most = impl.remaining();
    if (size > most) throw data_loss(impl.offset, too_short(size, what, most));
    const uint64_t found = impl.fill(size).size();
    if (found < size) throw data_loss(impl.offset, too_short(size, what, found));
  }
  return impl.take(size);
}

void InputFile::read_exactly(void* to, uint64_t size, std::string_view what) {
  Impl& impl = *impl_;
  const uint64_t start = impl.offset;
  auto* out = static_cast<char*>(to);
  uint64_t done = std::min<uint64_t>(size, impl.end - impl.begin);
  if (done > 0) std::memcpy(out, impl.take(done).data(), done);
  while (done < size) {
    if (impl.compression == Compression::kNone && impl.source.in_memory()) break;
    const size_t count = impl.produce(out + done, size - done);
    if (count == 0) break;
    done += count;
    impl.offset += count;
  }
  if (done < size) throw data_loss(start, too_short(size, what, done));
}

bool InputFile::read_line(std::string_view& line) {
  Impl& impl = *impl_;
  size_t searched = 0;
  while (true) {
    const std::string_view held = impl.available();
    const size_t feed = held.find('\n', searched);
    if (feed != std::string_view::npos) {
      line = impl.take(feed + 1).substr(0, feed);
      return true;
    }
    searched = held.size();
    if (searched > impl.options.max_read_size) {
      throw data_loss(impl.offset, message("a line exceeds the limit of ",
                                           impl.options.max_read_size, " bytes."));
    }
    if (impl.fill(searched + 1).size() == searched) {
      line = impl.take(searched);
      return searched > 0;
    }
  }
}

uint64_t InputFile::offset() const { return impl_->offset; }

void InputFile::seek(uint64_t offset) {
  Impl& impl = *impl_;
  const bool plain = impl.compression == Compression::kNone;
  if (offset < impl.offset && !impl.source.can_go_back()) {
    throw error(ErrorCode::kFailedPrecondition,
                message("cannot seek back from byte ", impl.offset, " to byte ", offset,
                        "; this is not a regular file."));
  }
  if (plain && impl.source.can_go_back()) {
    const uint64_t size = impl.source.size_beyond(offset);
    if (offset > size) {
      throw data_loss(offset, message("cannot seek here; the file has ", size, " bytes."));
    }
    if (offset >= impl.offset && offset - impl.offset <= impl.end - impl.begin) {
      impl.take(offset - impl.offset);
    } else if (impl.source.in_memory()) {
      impl.begin = offset;
      impl.offset = offset;
    } else {
      impl.source.seek(offset);
      impl.begin = impl.end = 0;
      impl.offset = offset;
    }
    return;
  }
  if (offset < impl.offset) impl.rewind();
  while (impl.offset < offset) {
    const uint64_t wanted = std::min<uint64_t>(offset - impl.offset, impl.options.buffer_size);
    if (read(wanted).size() < wanted) {
      throw data_loss(offset, message("cannot seek here; the file has ", impl.offset, " bytes."));
    }
  }
}

uint64_t InputFile::remaining_at_most() const { return impl_->remaining(); }

void InputFile::decompress(Compression compression) {
  TUTTI_CHECK(impl_->offset == 0 && impl_->compression == Compression::kNone);
  if (compression == Compression::kGzip || compression == Compression::kZlib) {
    impl_->start_packed(compression);
  }
}

const std::string& InputFile::path() const { return impl_->source.path(); }

Error InputFile::data_loss(uint64_t offset, std::string_view text) const {
  return error(ErrorCode::kDataLoss, message("at byte ", offset, ": ", text));
}

Error InputFile::error(ErrorCode code, std::string_view text) const {
  return Error(code, message(impl_->options.reader, ": ", path(), ": ", text));
}

}  // namespace tutti::data
