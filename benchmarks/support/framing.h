// SPDX-License-Identifier: Apache-2.0
//
// Sends texts through a local socket, each prefixed with its length.

#pragma once

#include <sys/socket.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace bench {

inline bool send_bytes(int socket, const void* bytes, size_t size) {
  const auto* at = static_cast<const char*>(bytes);
  while (size > 0) {
    const ssize_t sent = ::send(socket, at, size, MSG_NOSIGNAL);
    if (sent <= 0) return false;
    at += sent;
    size -= static_cast<size_t>(sent);
  }
  return true;
}

inline bool receive_bytes(int socket, void* bytes, size_t size) {
  auto* at = static_cast<char*>(bytes);
  while (size > 0) {
    const ssize_t received = ::recv(socket, at, size, 0);
    if (received <= 0) return false;
    at += received;
    size -= static_cast<size_t>(received);
  }
  return true;
}

/// Returns false when the other end is gone.
inline bool send_frame(int socket, const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  return send_bytes(socket, &size, sizeof size) && send_bytes(socket, text.data(), text.size());
}

inline bool receive_frame(int socket, std::string* text) {
  uint32_t size = 0;
  if (!receive_bytes(socket, &size, sizeof size)) return false;
  text->resize(size);
  return receive_bytes(socket, text->data(), size);
}

}  // namespace bench
