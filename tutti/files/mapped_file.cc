// SPDX-License-Identifier: Apache-2.0

#include "tutti/files/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "tutti/files/input_file.h"

namespace tutti::data {

MappedFile::MappedFile(const std::string& path, std::string_view who) {
  int descriptor = -1;
  do {
    descriptor = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  } while (descriptor < 0 && errno == EINTR);
  if (descriptor < 0) throw internal::system_error(who, "open", path, errno);
  struct stat status = {};
  int failure = ::fstat(descriptor, &status) == 0 ? 0 : errno;
  if (failure == 0 && S_ISDIR(status.st_mode)) failure = EISDIR;
  size_ = static_cast<size_t>(status.st_size);
  if (failure == 0 && size_ > 0) {
    void* const memory = ::mmap(nullptr, size_, PROT_READ | PROT_WRITE, MAP_PRIVATE, descriptor, 0);
    if (memory == MAP_FAILED) {
      failure = errno;
    } else {
      data_ = static_cast<char*>(memory);
    }
  }
  ::close(descriptor);
  if (failure != 0) throw internal::system_error(who, "map", path, failure);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(data_, size_);
}

}  // namespace tutti::data
