// SPDX-License-Identifier: Apache-2.0
//
// File descriptors that close themselves, and pipes.

#pragma once

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::cli {

/// Owns a file descriptor, or none. Not thread-safe.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int descriptor) : descriptor_(descriptor) {}
  ~Descriptor() { reset(); }

  Descriptor(Descriptor&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    reset();
    descriptor_ = std::exchange(other.descriptor_, -1);
    return *this;
  }

  int get() const { return descriptor_; }
  bool is_open() const { return descriptor_ >= 0; }
  int release() { return std::exchange(descriptor_, -1); }
  void reset() {
    if (descriptor_ >= 0) close(descriptor_);
    descriptor_ = -1;
  }

 private:
  int descriptor_ = -1;
};

/// Bytes written to one end can be read from the other. Programs that are started do not inherit
/// either end. Not thread-safe.
struct Pipe {
  Descriptor read_end;
  Descriptor write_end;

  /// Throws kUnavailable if no descriptors are left.
  Pipe() {
    int ends[2] = {-1, -1};
    if (pipe2(ends, O_CLOEXEC) != 0) {
      throw Error(ErrorCode::kUnavailable, message("cannot make a pipe: ", std::strerror(errno)));
    }
    read_end = Descriptor(ends[0]);
    write_end = Descriptor(ends[1]);
  }
};

}  // namespace tutti::cli
