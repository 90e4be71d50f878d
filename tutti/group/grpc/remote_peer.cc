// SPDX-License-Identifier: Apache-2.0

#include "tutti/group/grpc/remote_peer.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <type_traits>
#include <utility>

#include "tutti/base/error.h"

namespace tutti::internal {
namespace {

constexpr uint64_t kWireMagic = 0x3165726977747574;
// Bytes of messages that were not asked for yet; beyond this limit the sender is paused.
constexpr size_t kMaxQueuedBytes = size_t{64} << 20;
constexpr size_t kMaxInFlightBytes = size_t{32} << 20;
constexpr size_t kMaxMessageBytes = size_t{4} << 20;
constexpr size_t kSpareBuffers = 8;
constexpr size_t kMaxNoteBytes = 4096;
constexpr std::chrono::seconds kAbortTime{5};

static_assert(std::is_trivially_copyable_v<WireHead>);

}  // namespace

std::optional<WireHead> parse_wire_head(std::span<const std::byte> bytes) {
  WireHead head;
  if (bytes.size() < sizeof head) return std::nullopt;
  std::memcpy(&head, bytes.data(), sizeof head);
  if (head.magic != kWireMagic || head.kind > WireHead::Kind::kGoodbye) return std::nullopt;
  return head;
}

WireHead make_wire_head(WireHead::Kind kind, const MessageHead& head,
                        const Fingerprint& fingerprint) {
  WireHead made;
  made.magic = kWireMagic;
  made.kind = kind;
  made.head = head;
  made.fingerprint = fingerprint;
  return made;
}

// ---- Mailbox

Mailbox::Received Mailbox::take_buffer(size_t bytes) {
  for (size_t i = 0; i < spare_.size(); ++i) {
    if (spare_[i].capacity < bytes) continue;
    Received found = std::move(spare_[i]);
    spare_.erase(spare_.begin() + static_cast<std::ptrdiff_t>(i));
    return found;
  }
  Received made;
  made.capacity = bytes;
  made.bytes = std::make_unique_for_overwrite<std::byte[]>(bytes);
  return made;
}

bool Mailbox::add(const WireHead& head, const rpc::Message& message) {
  const size_t size = message.size() - sizeof head;
  Received received;
  {
    const MutexLock lock(mutex_);
    received = take_buffer(size);
  }
  received.head = head;
  received.size = size;
  if (size > 0) message.copy_to(sizeof head, {received.bytes.get(), size});
  bool go_on = true;
  {
    const MutexLock lock(mutex_);
    queue_.push_back(std::move(received));
    queued_bytes_ += size + sizeof(Received);
    paused_ = queued_bytes_ > kMaxQueuedBytes;
    go_on = !paused_;
  }
  news_.bump();
  return go_on;
}

const Mailbox::Received* Mailbox::front() {
  const MutexLock lock(mutex_);
  return queue_.empty() ? nullptr : &queue_.front();
}

void Mailbox::pop() {
  std::shared_ptr<rpc::IncomingStream> resumed;
  {
    const MutexLock lock(mutex_);
    Received done = std::move(queue_.front());
    queue_.pop_front();
    queued_bytes_ -= done.size + sizeof(Received);
    if (spare_.size() < kSpareBuffers) spare_.push_back(std::move(done));
    if (paused_ && queued_bytes_ <= kMaxQueuedBytes) {
      paused_ = false;
      resumed = stream_;
    }
  }
  if (resumed != nullptr) resumed->resume();
}

void Mailbox::set_stream(std::shared_ptr<rpc::IncomingStream> stream) {
  if (stream != nullptr) connected_.store(true);
  {
    const MutexLock lock(mutex_);
    stream_ = std::move(stream);
  }
  news_.bump();
}

// ---- RemotePeer

void RemotePeer::fail(PeerFailure failure) {
  {
    const MutexLock lock(mutex_);
    if (failure_ && (failure_->reported || !failure.reported)) return;
    failure_ = std::move(failure);
  }
  for (Mailbox& each : mailboxes_) each.news().bump();
}

std::optional<PeerFailure> RemotePeer::failure() const {
  const MutexLock lock(mutex_);
  return failure_;
}

bool RemotePeer::said_goodbye() const {
  return std::any_of(mailboxes_.begin(), mailboxes_.end(),
                     [](const Mailbox& each) { return each.ended(); });
}

void RemotePeer::send_control(size_t lane, WireHead::Kind kind, ErrorCode code,
                              const std::string& text) {
  rpc::SendStream* const stream = streams_[lane].get();
  if (stream == nullptr) return;
  MessageHead head;
  head.tag = static_cast<uint64_t>(code);
  const WireHead wire = make_wire_head(kind, head, {});
  const auto kept = std::make_shared<std::string>(text.substr(0, kMaxNoteBytes));
  stream->send(std::as_bytes(std::span(&wire, 1)), std::as_bytes(std::span(*kept)),
               [kept](bool) {});
}

// Each lane gets it, so that no goodbye overtakes it.
void RemotePeer::send_abort(ErrorCode code, const std::string& text) {
  if (abort_sent_.exchange(true)) return;
  for (size_t c = 0; c < lanes(); ++c) send_control(c, WireHead::Kind::kAbort, code, text);
}

// ---- GrpcLink

GrpcLink::GrpcLink(std::shared_ptr<RemotePeer> peer, size_t lane)
    : peer_(std::move(peer)), lane_(lane), box_(peer_->mailbox(lane)) {}

GrpcLink::~GrpcLink() = default;

size_t GrpcLink::room() { return flight_->bytes.load() < kMaxInFlightBytes ? kMaxMessageBytes : 0; }

void GrpcLink::post(const MessageHead& head, const Fingerprint& fingerprint, Pieces pieces,
                    Use /*use*/) {
  const WireHead wire = make_wire_head(WireHead::Kind::kData, head, fingerprint);
  size_t bytes = 0;
  for (const auto& piece : pieces) bytes += piece.size();
  flight_->messages.fetch_add(1);
  flight_->bytes.fetch_add(bytes);
  std::shared_ptr<std::vector<std::byte>> joined;
  std::span<const std::byte> body = pieces.empty() ? std::span<const std::byte>() : pieces[0];
  if (pieces.size() > 1 || bytes <= kCopiedBytes) {
    joined = std::make_shared<std::vector<std::byte>>();
    joined->reserve(bytes);
    for (const auto& piece : pieces) joined->insert(joined->end(), piece.begin(), piece.end());
    body = *joined;
  } else {
    flight_->lent.fetch_add(1);
  }
  peer_->stream(lane_)->send(std::as_bytes(std::span(&wire, 1)), body,
                             [flight = flight_, peer = peer_, lane = lane_, bytes, joined](bool) {
                               flight->bytes.fetch_sub(bytes);
                               if (joined == nullptr) flight->lent.fetch_sub(1);
                               flight->messages.fetch_sub(1);
                               peer->mailbox(lane).news().bump();
                             });
}

const Incoming* GrpcLink::peek() {
  const Mailbox::Received* const received = box_.front();
  if (received == nullptr) return nullptr;
  incoming_.head = received->head.head;
  incoming_.fingerprint = &received->head.fingerprint;
  incoming_.bytes = {received->bytes.get(), received->size};
  return &incoming_;
}

void GrpcLink::pop() { box_.pop(); }

bool GrpcLink::drained() { return flight_->messages.load() == 0; }

void GrpcLink::wait(const Deadline& until, FunctionRef<bool()> ready) {
  const uint32_t seen = box_.news().load();
  if (!ready()) box_.news().park(seen, until);
}

std::optional<PeerFailure> GrpcLink::failure(Look look) {
  std::optional<PeerFailure> failure = peer_->failure();
  if (look == Look::kReported) return failure && failure->reported ? failure : std::nullopt;
  // Confirmations of what it has read may still be in transit.
  if (!failure && box_.ended() && drained()) {
    failure = {ErrorCode::kUnavailable, "it has left the group.", false};
  }
  return failure;
}

void GrpcLink::abort(ErrorCode code, const std::string& text,
                     const std::optional<Deadline>& patience) {
  peer_->send_abort(code, text);
  if (patience) take_back(*patience);
}

void GrpcLink::take_back(const Deadline& patience) {
  const auto is_back = [this] { return flight_->lent.load() == 0; };
  const auto wait_until = [&](const Deadline& deadline) {
    while (!is_back() && !deadline.passed()) wait(deadline, is_back);
  };
  wait_until(patience);
  if (is_back()) return;
  peer_->abort_connection();
  wait_until(Deadline::after(kAbortTime));
}

}  // namespace tutti::internal
