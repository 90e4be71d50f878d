// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/internal/outgoing_stream.h"

#include <array>
#include <atomic>
#include <cstddef>
#include <deque>
#include <span>
#include <thread>
#include <utility>

#include <grpcpp/client_context.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/client_callback.h>

#include "tutti/base/error.h"
#include "tutti/base/mutex.h"
#include "tutti/rpc/internal/grpc_bytes.h"
#include "tutti/rpc/internal/handover.h"
#include "tutti/rpc/internal/listener_core.h"

namespace tutti::rpc::internal {
namespace {

/// Calls `sent` when two things have happened, in any order: gRPC has finished the write, and
/// nothing references the caller's memory any longer.
class Ticket {
 public:
  Ticket(std::function<void(bool)> sent, int parts) : sent_(std::move(sent)), open_(parts) {}

  static void release(void* ticket) {
    take_over(ticket);
    static_cast<Ticket*>(ticket)->part_done(true);
  }
  /// Deletes the ticket with the last part.
  void part_done(bool ok) {
    if (!ok) failed_ = true;
    if (open_.fetch_sub(1) != 1) return;
    if (sent_) sent_(!failed_);
    delete this;
  }

 private:
  std::function<void(bool)> sent_;
  std::atomic<int> open_;
  std::atomic<bool> failed_{false};
};

struct Outgoing {
  grpc::ByteBuffer buffer;
  Ticket* ticket;
};

/// The call as gRPC sees it. Never holds its mutex while it calls gRPC or `sent`: gRPC may release
/// memory, and so call back, inside any call.
class StreamState final : public grpc::ClientBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer>,
                          public std::enable_shared_from_this<StreamState> {
 public:
  StreamState(StreamTarget target, std::function<void(std::exception_ptr)> on_broken)
      : target_(std::move(target)), stub_(target_.channel), on_broken_(std::move(on_broken)) {}

  void start(std::string_view opening);
  void send(std::span<const std::byte> header, std::span<const std::byte> body,
            std::function<void(bool)> sent);
  void close();
  void cancel();
  void detach();

  void OnReadDone(bool) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  void push(Outgoing message, bool last);
  void write_front();
  void drop_queue();
  void report(const grpc::Status& status);

  const StreamTarget target_;
  grpc::GenericStub stub_;
  std::function<void(std::exception_ptr)> on_broken_;
  grpc::ByteBuffer ignored_;
  std::shared_ptr<StreamState> self_;  ///< gRPC's share of the ownership, until OnDone

  Mutex mutex_;
  CondVar reported_;
  OpenCalls::Context context_ TUTTI_GUARDED_BY(mutex_);  ///< null when the call is over
  std::deque<Outgoing> queue_ TUTTI_GUARDED_BY(mutex_);  ///< the front is being written
  bool writing_ TUTTI_GUARDED_BY(mutex_) = false;
  bool closing_ TUTTI_GUARDED_BY(mutex_) = false;  ///< the last message is in the queue
  bool over_ TUTTI_GUARDED_BY(mutex_) = false;     ///< gRPC accepts no more
  bool held_ TUTTI_GUARDED_BY(mutex_) = true;
  bool given_up_ TUTTI_GUARDED_BY(mutex_) = false;  ///< by the owner; nothing to report
  bool reporting_ TUTTI_GUARDED_BY(mutex_) = false;
  std::thread::id reporter_ TUTTI_GUARDED_BY(mutex_);
};

void StreamState::start(std::string_view opening) {
  self_ = shared_from_this();
  const auto context = std::make_shared<grpc::ClientContext>();
  {
    MutexLock lock(mutex_);
    context_ = context;
  }
  if (!target_.token.empty()) context->AddMetadata(kTokenHeader, target_.token);
  stub_.PrepareBidiStreamingCall(context.get(), std::string(kMethodPrefix) + target_.method, {},
                                 this);
  target_.open_calls->add(context);
  AddHold();  // Writes start outside of gRPC's callbacks.
  StartRead(&ignored_);
  hand_over(this);
  StartCall();
  push({to_buffer(opening), new Ticket({}, 1)}, false);
}

void StreamState::send(std::span<const std::byte> header, std::span<const std::byte> body,
                       std::function<void(bool)> sent) {
  const size_t size = header.size() + body.size();
  if (size == 0 || size > target_.max_message_bytes) {
    throw Error(ErrorCode::kInvalidArgument,
                message("rpc::SendStream: a message of ", size, " bytes for ", target_.address,
                        "; it must have 1 to ", target_.max_message_bytes,
                        " (ChannelOptions::max_message_bytes)."));
  }
  auto* const ticket = new Ticket(std::move(sent), body.empty() ? 1 : 2);
  hand_over(ticket);
  std::array<grpc::Slice, 2> slices;
  size_t count = 0;
  if (!header.empty()) slices[count++] = grpc::Slice(header.data(), header.size());
  if (!body.empty()) {
    slices[count++] =
        grpc::Slice(const_cast<std::byte*>(body.data()), body.size(), &Ticket::release, ticket);
  }
  push({grpc::ByteBuffer(slices.data(), count), ticket}, false);
}

void StreamState::push(Outgoing message, bool last) {
  bool begin = false;
  {
    MutexLock lock(mutex_);
    const bool refused = over_ || closing_;
    if (!refused) {
      queue_.push_back(std::move(message));
      message.buffer.Clear();
      message.ticket = nullptr;
      closing_ = last;
      begin = !std::exchange(writing_, true);
    }
  }
  if (begin) write_front();
  if (message.ticket != nullptr) {
    message.buffer.Clear();
    message.ticket->part_done(false);
  }
}

/// Called only by the thread that set writing_; the stream stays held until OnWriteDone.
void StreamState::write_front() {
  const grpc::ByteBuffer* buffer = nullptr;
  bool last = false;
  {
    MutexLock lock(mutex_);
    buffer = &queue_.front().buffer;
    last = closing_ && queue_.size() == 1;
  }
  // Appending to a deque does not move its elements.
  hand_over(this);
  if (last) {
    StartWriteLast(buffer, grpc::WriteOptions());
  } else {
    StartWrite(buffer);
  }
}

void StreamState::OnWriteDone(bool ok) {
  take_over(this);
  Outgoing done;
  bool go_on = false;
  bool let_go = false;
  {
    MutexLock lock(mutex_);
    done = std::move(queue_.front());
    queue_.front().buffer.Clear();
    queue_.pop_front();
    if (!ok || (closing_ && queue_.empty())) over_ = true;
    go_on = !over_ && !queue_.empty();
    writing_ = go_on;
    let_go = over_ && std::exchange(held_, false);
  }
  done.buffer.Clear();
  done.ticket->part_done(ok);
  if (go_on) write_front();
  if (let_go) {
    drop_queue();
    hand_over(this);
    RemoveHold();
  }
}

/// The peer sends nothing, so the end of a read is the end of the stream.
void StreamState::OnReadDone(bool) {
  take_over(this);
  bool let_go = false;
  {
    MutexLock lock(mutex_);
    over_ = true;
    let_go = !writing_ && std::exchange(held_, false);
  }
  if (!let_go) return;
  drop_queue();
  hand_over(this);
  RemoveHold();
}

void StreamState::drop_queue() {
  std::deque<Outgoing> dropped;
  {
    MutexLock lock(mutex_);
    dropped.swap(queue_);
  }
  for (Outgoing& message : dropped) {
    message.buffer.Clear();
    message.ticket->part_done(false);
  }
}

void StreamState::OnDone(const grpc::Status& status) {
  take_over(this);
  const std::shared_ptr<StreamState> self = std::move(self_);
  {
    // gRPC keeps unsent messages as long as the context lives.
    OpenCalls::Context context;
    MutexLock lock(mutex_);
    context.swap(context_);
    target_.open_calls->remove(context);
  }
  drop_queue();
  if (!status.ok()) report(status);
}

void StreamState::report(const grpc::Status& status) {
  {
    MutexLock lock(mutex_);
    if (given_up_) return;
    reporting_ = true;
    reporter_ = std::this_thread::get_id();
  }
  if (on_broken_) {
    on_broken_(std::make_exception_ptr(
        Error(to_code(status.error_code()),
              message("rpc: stream \"", target_.method, "\" to ", target_.address,
                      " broke: ", status.error_message()))));
  }
  MutexLock lock(mutex_);
  reporting_ = false;
  reported_.notify_all();
}

void StreamState::close() { push({grpc::ByteBuffer(nullptr, 0), new Ticket({}, 1)}, true); }

void StreamState::cancel() {
  OpenCalls::Context context;
  {
    MutexLock lock(mutex_);
    given_up_ = true;
    context = context_;
  }
  if (context != nullptr) context->TryCancel();
}

/// Called when the owner is destroyed: cancels the stream unless it was closed; on_broken is not
/// called afterwards.
void StreamState::detach() {
  OpenCalls::Context context;
  {
    MutexLock lock(mutex_);
    given_up_ = true;
    if (!closing_) context = context_;
    while (reporting_ && reporter_ != std::this_thread::get_id()) reported_.wait(mutex_);
  }
  if (context != nullptr) context->TryCancel();
}

/// What the user owns.
class OutgoingStream final : public SendStream {
 public:
  explicit OutgoingStream(std::shared_ptr<StreamState> state) : state_(std::move(state)) {}
  ~OutgoingStream() override { state_->detach(); }

  void send(std::span<const std::byte> header, std::span<const std::byte> body,
            std::function<void(bool)> sent) override {
    state_->send(header, body, std::move(sent));
  }
  void close() override { state_->close(); }
  void cancel() override { state_->cancel(); }

 private:
  std::shared_ptr<StreamState> state_;
};

}  // namespace

std::unique_ptr<SendStream> open_outgoing_stream(
    StreamTarget target, std::string_view opening,
    std::function<void(std::exception_ptr)> on_broken) {
  auto state = std::make_shared<StreamState>(std::move(target), std::move(on_broken));
  state->start(opening);
  return std::make_unique<OutgoingStream>(std::move(state));
}

}  // namespace tutti::rpc::internal
