// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/internal/random.h"

#include <sys/random.h>

#include <cerrno>
#include <string_view>
#include <system_error>

#include "tutti/base/error.h"

namespace tutti::rpc::internal {

void fill_random(std::span<std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t count = getrandom(bytes.data(), bytes.size(), 0);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      throw Error(ErrorCode::kUnavailable, message("rpc: the system provides no random numbers: ",
                                                   std::generic_category().message(errno), "."));
    }
    bytes = bytes.subspan(static_cast<size_t>(count));
  }
}

std::string to_hex(std::span<const std::byte> bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string text;
  for (const std::byte value : bytes) {
    const auto number = std::to_integer<unsigned>(value);
    text += {kDigits[number >> 4], kDigits[number & 15]};
  }
  return text;
}

}  // namespace tutti::rpc::internal
