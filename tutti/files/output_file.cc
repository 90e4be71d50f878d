// SPDX-License-Identifier: Apache-2.0

#include "tutti/files/output_file.h"

#include <fcntl.h>
#include <pthread.h>
#include <unistd.h>
#include <zlib.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <ctime>
#include <new>
#include <utility>
#include <vector>

#include "tutti/base/log.h"

namespace tutti::data {
namespace {

// A write beyond the file size limit fails with EFBIG; the signal that accompanies it would
// terminate the process.
ssize_t write_without_signal(int descriptor, const char* bytes, size_t size) {
  sigset_t signal;
  sigset_t before;
  sigemptyset(&signal);
  sigaddset(&signal, SIGXFSZ);
  ::pthread_sigmask(SIG_BLOCK, &signal, &before);
  const ssize_t count = ::write(descriptor, bytes, size);
  const int error = errno;
  if (sigismember(&before, SIGXFSZ) == 0) {
    const timespec now = {};
    if (count < 0 && error == EFBIG) ::sigtimedwait(&signal, nullptr, &now);
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  }
  errno = error;
  return count;
}

}  // namespace

struct OutputFile::Impl {
  OutputFileOptions options;
  std::string path;
  int descriptor = -1;
  std::vector<char> buffer = {};  // Ready to be written.
  uint64_t offset = 0;
  z_stream stream = {};
  bool packs = false;
  bool is_broken = false;  // A write failed: the content of the file is unknown.

  ~Impl() {
    if (packs) ::deflateEnd(&stream);
    if (descriptor >= 0) ::close(descriptor);
  }

  void open() {
    do {
      descriptor = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    } while (descriptor < 0 && errno == EINTR);
    if (descriptor < 0) throw internal::system_error(options.writer, "create", path, errno);
    buffer.reserve(options.buffer_size);
    if (options.compression != Compression::kGzip && options.compression != Compression::kZlib) {
      return;
    }
    const int window = options.compression == Compression::kGzip ? 15 + 16 : 15;
    if (::deflateInit2(&stream, options.compression_level, Z_DEFLATED, window, 8,
                       Z_DEFAULT_STRATEGY) != Z_OK) {
      throw Error(ErrorCode::kInvalidArgument,
                  message(options.writer, ": compression_level is ", options.compression_level,
                          "; it must be between -1 and 9."));
    }
    packs = true;
  }

  void check_open(const char* call) const {
    if (descriptor < 0) {
      throw Error(ErrorCode::kFailedPrecondition,
                  message(options.writer, ": ", path, ": ", call, "() after close()."));
    }
    check_whole();
  }

  void check_whole() const {
    if (is_broken) {
      throw Error(ErrorCode::kFailedPrecondition,
                  message(options.writer, ": ", path,
                          ": an earlier write failed; the file is incomplete."));
    }
  }

  void send(const char* bytes, size_t size) {
    while (size > 0) {
      const ssize_t count =
          write_without_signal(descriptor, bytes, std::min(size, size_t{1} << 30));
      if (count < 0 && errno == EINTR) continue;
      if (count < 0) {
        is_broken = true;
        throw internal::system_error(options.writer, "write", path, errno);
      }
      bytes += count;
      size -= static_cast<size_t>(count);
    }
  }

  void send_buffer() {
    send(buffer.data(), buffer.size());
    buffer.clear();
  }

  void append(std::string_view bytes) {
    if (buffer.size() + bytes.size() > options.buffer_size) send_buffer();
    if (bytes.size() >= options.buffer_size) {
      send(bytes.data(), bytes.size());
    } else {
      buffer.insert(buffer.end(), bytes.begin(), bytes.end());
    }
  }

  void pack(std::string_view bytes, int mode) {
    char chunk[1 << 14];
    do {
      const std::string_view part = bytes.substr(0, size_t{1} << 30);
      bytes.remove_prefix(part.size());
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(part.data()));
      stream.avail_in = static_cast<uInt>(part.size());
      do {
        stream.next_out = reinterpret_cast<Bytef*>(chunk);
        stream.avail_out = sizeof(chunk);
        ::deflate(&stream, bytes.empty() ? mode : Z_NO_FLUSH);
        append({chunk, sizeof(chunk) - stream.avail_out});
      } while (stream.avail_out == 0);
    } while (!bytes.empty());
  }

  void close() {
    if (descriptor < 0) return;
    try {
      check_whole();
      if (packs) pack({}, Z_FINISH);
      send_buffer();
    } catch (...) {
      ::close(std::exchange(descriptor, -1));
      throw;
    }
    // Some file systems report a full disk only here. After EINTR the descriptor is closed too.
    if (::close(std::exchange(descriptor, -1)) != 0 && errno != EINTR) {
      throw internal::system_error(options.writer, "close", path, errno);
    }
  }
};

OutputFile::OutputFile(const std::string& path, OutputFileOptions options)
    : impl_(new Impl{std::move(options), path}) {
  impl_->open();
}

OutputFile::OutputFile(OutputFile&&) noexcept = default;

OutputFile& OutputFile::operator=(OutputFile&& other) noexcept {
  // The file that this object held is closed as in the destructor.
  OutputFile old(std::move(*this));
  impl_ = std::move(other.impl_);
  return *this;
}

OutputFile::~OutputFile() {
  if (impl_ == nullptr || impl_->is_broken) return;  // The error has already been thrown.
  try {
    impl_->close();
  } catch (const std::exception& error) {
    log(LogLevel::kError, message(error.what(), " Call close() to handle this."));
  }
}

void OutputFile::write(std::string_view bytes) {
  impl_->check_open("write");
  impl_->offset += bytes.size();
  if (impl_->packs) {
    impl_->pack(bytes, Z_NO_FLUSH);
  } else {
    impl_->append(bytes);
  }
}

void OutputFile::flush() {
  impl_->check_open("flush");
  if (impl_->packs) impl_->pack({}, Z_SYNC_FLUSH);
  impl_->send_buffer();
}

void OutputFile::close() { impl_->close(); }

uint64_t OutputFile::offset() const { return impl_->offset; }
const std::string& OutputFile::path() const { return impl_->path; }

}  // namespace tutti::data
