// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/internal/incoming_stream.h"

#include <utility>

#include "tutti/base/log.h"
#include "tutti/rpc/internal/grpc_bytes.h"
#include "tutti/rpc/internal/handover.h"

namespace tutti::rpc::internal {

void StreamLink::resume() {
  MutexLock lock(mutex_);
  if (call_ == nullptr || call_->closed_ || call_->reading_) return;
  if (call_->delivering_) {
    call_->resume_wanted_ = true;
  } else {
    call_->read_next();
  }
}

void StreamLink::cancel() {
  MutexLock lock(mutex_);
  if (call_ == nullptr || call_->closed_) return;
  call_->break_off(ErrorCode::kCancelled, "was cancelled by the receiver");
  // OnCancel() follows on a thread of gRPC and closes the stream.
  call_->context_.TryCancel();
}

StreamCall::StreamCall(std::shared_ptr<ListenerCore> core,
                       std::shared_ptr<const StreamHandler> handler,
                       grpc::GenericCallbackServerContext& context)
    : core_(std::move(core)),
      handler_(std::move(handler)),
      context_(context),
      method_(context.method().substr(kMethodPrefix.size())),
      caller_{peer_address(context.peer())},
      link_(std::make_shared<StreamLink>(this)) {
  hand_over(this);
  StartRead(&buffer_);
}

void StreamCall::OnReadDone(bool ok) {
  take_over(this);
  bool go_on = false;
  {
    MutexLock lock(link_->mutex_);
    reading_ = false;
    if (ok && receiver_ != nullptr && buffer_.Length() == 0) ended_ = true;
    if (!ok && !ended_) {
      break_off(ErrorCode::kUnavailable, "broke: the sender cancelled it or is gone");
    }
    go_on = !ended_ && why_ == nullptr;
    delivering_ = go_on;
  }
  if (!go_on) return close();
  after_delivery(deliver());
}

/// Delivers what was read; returns false if the receiver wants no more for now.
bool StreamCall::deliver() {
  grpc::ByteBuffer buffer;
  buffer.Swap(&buffer_);
  try {
    if (receiver_ != nullptr) return receiver_->on_message(to_message(buffer));
    receiver_ = (*handler_)(caller_, to_text(buffer), link_);
    if (receiver_ == nullptr) {
      throw Error(ErrorCode::kInternal, "rpc::Listener: the handler returned no receiver.");
    }
    return true;
  } catch (...) {
    MutexLock lock(link_->mutex_);
    if (why_ == nullptr) why_ = std::current_exception();
    return false;
  }
}

void StreamCall::after_delivery(bool go_on) {
  {
    MutexLock lock(link_->mutex_);
    delivering_ = false;
    if (why_ == nullptr) {
      if (go_on || resume_wanted_) read_next();
      return;
    }
  }
  close();
}

void StreamCall::OnCancel() {
  take_over(this);
  {
    MutexLock lock(link_->mutex_);
    if (!ended_) break_off(ErrorCode::kUnavailable, "broke: the sender cancelled it or is gone");
    if (!may_close()) return;  // A read or delivery in progress will detect it.
  }
  close();
}

void StreamCall::OnDone() {
  take_over(this);
  {
    MutexLock lock(link_->mutex_);
    link_->call_ = nullptr;
  }
  delete this;
}

void StreamCall::read_next() {
  resume_wanted_ = false;
  reading_ = true;
  hand_over(this);
  StartRead(&buffer_);
}

void StreamCall::break_off(ErrorCode code, const char* what) {
  if (why_ != nullptr) return;
  why_ = std::make_exception_ptr(
      Error(code, message("rpc: stream \"", method_, "\" from ", caller_.address, " ", what, ".")));
}

bool StreamCall::may_close() const { return !reading_ && !delivering_ && !closed_; }

void StreamCall::close() {
  std::exception_ptr why;
  {
    MutexLock lock(link_->mutex_);
    if (!may_close()) return;
    closed_ = true;
    why = why_;
  }
  if (receiver_ != nullptr) {
    try {
      receiver_->on_closed(why);
    } catch (const std::exception& error) {
      core_->log.warn(
          message("rpc: on_closed() of stream \"", method_, "\" threw: ", error.what()));
    }
  }
  hand_over(this);
  Finish(why == nullptr ? grpc::Status::OK : to_status(why));
}

}  // namespace tutti::rpc::internal
