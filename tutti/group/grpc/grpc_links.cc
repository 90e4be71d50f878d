// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/grpc/grpc_links.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <span>
#include <string_view>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/group/grpc/factory.h"
#include "tutti/group/grpc/remote_peer.h"

namespace tutti::internal {
namespace {

constexpr char kMethod[] = "/tutti.Data/Stream";
constexpr std::chrono::seconds kGoodbyeTime{2};
constexpr size_t kMaxReasonBytes = 4096;
constexpr size_t kLargeBlock = size_t{31} << 20;

std::string opening_text(uint64_t epoch, int rank, size_t lane) {
  return message(epoch, " ", rank, " ", lane);
}

// Three numbers, separated by blanks.
bool parse_opening(std::string_view text, uint64_t* epoch, size_t* rank, size_t* lane) {
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](auto* value) {
    const auto [next, error] = std::from_chars(at, end, *value);
    at = next;
    if (error != std::errc()) return false;
    if (at != end && *at == ' ') ++at;
    return true;
  };
  return number(epoch) && number(rank) && number(lane) && at == end;
}

std::string reason_of(const std::exception_ptr& why) {
  try {
    std::rethrow_exception(why);
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an unknown error";
  }
}

// gRPC allocates what it reads, and frees it when a message has been taken. glibc returns memory at
// the end of a heap to the system as soon as more than a threshold is free there, initially 128 KB,
// so that every message would fault in its pages again: a fifth of the time of a sum over a fast
// network. It raises the threshold, up to 64 MB, when a large block is allocated and freed.
void keep_freed_memory() {
  static const bool done = [] {
    void* volatile block = std::malloc(kLargeBlock);
    std::free(block);
    return true;
  }();
  static_cast<void>(done);
}

void fail_connection(RemotePeer& peer, const std::exception_ptr& why) {
  peer.fail({ErrorCode::kUnavailable, message("the connection to it broke (", reason_of(why), ")."),
             false});
}

// One incoming stream: puts messages into the mailbox of its lane.
class Receiver final : public rpc::StreamReceiver {
 public:
  Receiver(std::shared_ptr<RemotePeer> peer, size_t lane) : peer_(std::move(peer)), lane_(lane) {}

  bool on_message(rpc::Message message) override {
    std::array<std::byte, sizeof(WireHead)> first;
    if (message.size() < first.size()) throw bad_message();
    message.copy_to(0, first);
    const std::optional<WireHead> head = parse_wire_head(first);
    if (!head) throw bad_message();
    switch (head->kind) {
      case WireHead::Kind::kData:
        return peer_->mailbox(lane_).add(*head, message);
      case WireHead::Kind::kGoodbye:
        peer_->mailbox(lane_).set_ended();
        return true;
      case WireHead::Kind::kAbort:
        break;
    }
    std::string text(std::min(message.size() - first.size(), kMaxReasonBytes), '\0');
    message.copy_to(first.size(), std::as_writable_bytes(std::span(text)));
    const bool known = head->head.tag <= static_cast<uint64_t>(ErrorCode::kInternal);
    peer_->fail({known ? static_cast<ErrorCode>(head->head.tag) : ErrorCode::kCancelled,
                 std::move(text), true});
    return true;
  }

  void on_closed(std::exception_ptr why) override {
    // On each stream a goodbye precedes the end.
    if (peer_->mailbox(lane_).ended()) {
      // It has left in order.
    } else if (why != nullptr) {
      fail_connection(*peer_, why);
    } else {
      peer_->fail({ErrorCode::kUnavailable, "it has left the group.", false});
    }
    peer_->mailbox(lane_).set_stream(nullptr);
  }

 private:
  static Error bad_message() {
    return Error(ErrorCode::kInvalidArgument, "a message of a group has a malformed head.");
  }

  const std::shared_ptr<RemotePeer> peer_;
  const size_t lane_;
};

}  // namespace

GrpcLinks::GrpcLinks(std::shared_ptr<rpc::Listener> listener, Options options)
    : listener_(std::move(listener)), options_(std::move(options)) {
  for (size_t r = 0; r < options_.addresses.size(); ++r) {
    peers_.push_back(std::make_shared<RemotePeer>(kLanes));
  }
  listener_->handle_stream(
      kMethod,
      [peers = peers_, epoch = options_.epoch](
          const rpc::Caller&, std::string_view opening,
          std::shared_ptr<rpc::IncomingStream> stream) -> std::shared_ptr<Receiver> {
        uint64_t theirs = 0;
        size_t rank = 0;
        size_t lane = 0;
        if (!parse_opening(opening, &theirs, &rank, &lane) || theirs != epoch ||
            rank >= peers.size() || lane >= kLanes) {
          throw Error(ErrorCode::kFailedPrecondition,
                      "the stream belongs to another group of workers.");
        }
        peers[rank]->mailbox(lane).set_stream(std::move(stream));
        return std::make_shared<Receiver>(peers[rank], lane);
      });
}

GrpcLinks::~GrpcLinks() {
  const Deadline deadline = Deadline::after(kGoodbyeTime);
  for (const int r : connected_) {
    RemotePeer& peer = *peers_[static_cast<size_t>(r)];
    for (size_t c = 0; c < peer.lanes(); ++c) {
      peer.send_control(c, WireHead::Kind::kGoodbye, ErrorCode::kUnavailable, "");
    }
  }
  for (const int r : connected_) {
    RemotePeer& peer = *peers_[static_cast<size_t>(r)];
    for (size_t c = 0; c < peer.lanes(); ++c) {
      Mailbox& box = peer.mailbox(c);
      const auto over = [&] { return box.ended() || peer.failure() || deadline.passed(); };
      while (!over()) {
        const uint32_t seen = box.news().load();
        if (over()) break;
        box.news().park(seen, deadline);
      }
    }
  }
  listener_->handle_stream(
      kMethod,
      [](const rpc::Caller&, std::string_view,
         std::shared_ptr<rpc::IncomingStream>) -> std::shared_ptr<rpc::StreamReceiver> {
        throw Error(ErrorCode::kUnavailable, "the group of workers has ended.");
      });
  for (const auto& peer : peers_) {
    for (size_t c = 0; c < peer->lanes(); ++c) {
      if (peer->stream(c) != nullptr) peer->stream(c)->close();
      peer->set_stream(c, nullptr);
    }
    peer->set_channel(nullptr);
  }
}

void GrpcLinks::connect(const std::vector<int>& ranks, const Deadline& deadline) {
  if (!ranks.empty()) keep_freed_memory();
  for (const int r : ranks) {
    const auto index = static_cast<size_t>(r);
    const std::shared_ptr<RemotePeer> peer = peers_[index];
    const std::shared_ptr<rpc::Channel> channel =
        rpc::Channel::connect(options_.addresses[index], options_.channel, deadline);
    peer->set_channel(channel);
    for (size_t c = 0; c < kLanes; ++c) {
      peer->set_stream(
          c, channel->open_stream(kMethod, opening_text(options_.epoch, options_.rank, c),
                                  [weak = std::weak_ptr<RemotePeer>(peer)](std::exception_ptr why) {
                                    // A peer that leaves ends its streams one by one.
                                    const auto kept = weak.lock();
                                    if (kept && !kept->said_goodbye()) fail_connection(*kept, why);
                                  }));
    }
    connected_.push_back(r);
  }
  for (const int r : ranks) await_streams(r, deadline);
}

// A rank that is done may leave immediately, and no peer can connect to it any more; so no rank
// begins before all have connected.
void GrpcLinks::await_streams(int rank, const Deadline& deadline) {
  RemotePeer& peer = *peers_[static_cast<size_t>(rank)];
  for (size_t c = 0; c < peer.lanes(); ++c) {
    Mailbox& box = peer.mailbox(c);
    for (;;) {
      const uint32_t seen = box.news().load();
      if (box.connected() || peer.failure()) break;
      if (deadline.passed()) {
        throw Error(ErrorCode::kUnavailable,
                    message("a group of workers: rank ", rank, " (",
                            options_.addresses[static_cast<size_t>(rank)],
                            ") can be reached but did not connect to rank ", options_.rank, " (",
                            options_.addresses[static_cast<size_t>(options_.rank)],
                            ") in time. Can it reach that address, and does it still run?"));
      }
      box.news().park(seen, deadline);
    }
  }
}

std::unique_ptr<Link> GrpcLinks::make_link(size_t lane, int rank) {
  return std::make_unique<GrpcLink>(peers_[static_cast<size_t>(rank)], lane);
}

}  // namespace tutti::internal

namespace tutti {

std::shared_ptr<RemoteLinks> make_remote_links(const GroupOptions& options,
                                               const RemoteOptions& remote) {
  const auto listener = std::make_shared<rpc::Listener>(
      rpc::ListenerOptions{.address = remote.address, .security = remote.security});
  return make_grpc_links(listener, options.rank, options.epoch, options.gather(listener->address()),
                         {.security = remote.security});
}

std::shared_ptr<RemoteLinks> make_grpc_links(std::shared_ptr<rpc::Listener> listener, int rank,
                                             uint64_t epoch, std::vector<std::string> addresses,
                                             const rpc::ChannelOptions& options) {
  return std::make_shared<internal::GrpcLinks>(
      std::move(listener),
      internal::GrpcLinks::Options{rank, epoch, std::move(addresses), options});
}

}  // namespace tutti
