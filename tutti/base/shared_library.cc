// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/shared_library.h"

#include <dlfcn.h>

#include <vector>

#include "tutti/base/error.h"
#include "tutti/base/joined.h"

namespace tutti {

std::optional<SharedLibrary> SharedLibrary::open_first(std::span<const std::string> paths,
                                                       std::string* reasons) {
  std::vector<std::string> failures;
  for (const std::string& path : paths) {
    if (void* const handle = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return SharedLibrary(handle, path);
    }
    const char* const reason = dlerror();
    failures.push_back(
        message('"', path, "\" (", reason == nullptr ? "no reason given" : reason, ")"));
  }
  *reasons = joined(failures, "; ");
  return std::nullopt;
}

void* SharedLibrary::address_of(const char* name) const {
  return dlsym(handle_ != nullptr ? handle_ : RTLD_DEFAULT, name);
}

}  // namespace tutti
