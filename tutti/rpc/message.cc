// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/message.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::rpc {

Message::Message(std::vector<Piece> pieces, std::shared_ptr<const void> owner)
    : pieces_(std::move(pieces)), owner_(std::move(owner)) {
  for (const Piece piece : pieces_) size_ += piece.size();
}

void Message::copy_to(size_t offset, std::span<std::byte> to) const {
  if (offset > size_ || to.size() > size_ - offset) {
    throw Error(ErrorCode::kInvalidArgument,
                message("Message: cannot copy ", to.size(), " bytes from offset ", offset,
                        " of a message of ", size_, " bytes."));
  }
  for (const Piece piece : pieces_) {
    if (to.empty()) return;
    if (offset >= piece.size()) {
      offset -= piece.size();
      continue;
    }
    const size_t count = std::min(piece.size() - offset, to.size());
    std::memcpy(to.data(), piece.data() + offset, count);
    to = to.subspan(count);
    offset = 0;
  }
}

}  // namespace tutti::rpc
