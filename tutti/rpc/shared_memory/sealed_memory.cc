// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/shared_memory/sealed_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstdint>
#include <system_error>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::rpc {
namespace {

Error system_error(const std::string& what) {
  return Error(ErrorCode::kUnavailable,
               message("shared memory: ", what, ": ", std::generic_category().message(errno), "."));
}

// The limit on the size of files holds for a memfd too, and ftruncate beyond it kills the process.
void check_file_size_limit(size_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || bytes <= limit.rlim_cur) return;
  throw Error(ErrorCode::kUnavailable,
              message("shared memory: a segment has ", bytes, " bytes, but files may have at most ",
                      limit.rlim_cur, ". Raise the limit (ulimit -f)."));
}

}  // namespace

SealedMemory SealedMemory::create(size_t bytes) {
  check_file_size_limit(bytes);
  FileDescriptor descriptor(memfd_create("tutti", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!descriptor.is_open()) throw system_error("memfd_create failed");
  void* memory = MAP_FAILED;
  if (ftruncate(descriptor.get(), static_cast<off_t>(bytes)) == 0) {
    fcntl(descriptor.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
    memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor.get(), 0);
  }
  if (memory == MAP_FAILED) throw system_error(message("cannot map ", bytes, " bytes"));
  return {std::move(descriptor), memory, bytes};
}

SealedMemory SealedMemory::map(int descriptor, size_t bytes, const std::string& peer) {
  struct stat info {};
  const int seals = fcntl(descriptor, F_GET_SEALS);  // -1 if it is not a memfd
  if (fstat(descriptor, &info) != 0 || static_cast<uint64_t>(info.st_size) != bytes || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    throw Error(ErrorCode::kFailedPrecondition,
                message("shared memory: ", peer, " sent a segment of ", info.st_size,
                        " bytes; expected ", bytes, " bytes that are sealed."));
  }
  void* const memory = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, descriptor, 0);
  if (memory == MAP_FAILED) throw system_error(message("cannot map the segment of ", peer));
  return {FileDescriptor(), memory, bytes};
}

SealedMemory::SealedMemory(FileDescriptor descriptor, void* data, size_t size)
    : descriptor_(std::move(descriptor)), data_(static_cast<std::byte*>(data)), size_(size) {}

SealedMemory::SealedMemory(SealedMemory&& other) noexcept
    : descriptor_(std::move(other.descriptor_)),
      data_(std::exchange(other.data_, nullptr)),
      size_(other.size_) {}

SealedMemory::~SealedMemory() {
  if (data_ != nullptr) munmap(data_, size_);
}

}  // namespace tutti::rpc
