// SPDX-License-Identifier: Apache-2.0

#include "tutti/base/env.h"

#include <cstdlib>

namespace tutti {

std::optional<std::string> read_env(const char* name) {
  const char* value = std::getenv(name);
  if (value == nullptr || *value == '\0') return std::nullopt;
  return value;
}

bool has_env(const char* name) { return std::getenv(name) != nullptr; }

}  // namespace tutti
