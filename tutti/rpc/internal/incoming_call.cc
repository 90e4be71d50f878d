// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/internal/incoming_call.h"

#include <exception>
#include <utility>

#include "tutti/rpc/internal/grpc_bytes.h"
#include "tutti/rpc/internal/handover.h"

namespace tutti::rpc {

Reply::Slot::~Slot() {
  finish(internal::error_buffer(ErrorCode::kInternal,
                                "rpc::Listener: the handler dropped the call without a response."));
}

void Reply::Slot::finish(const grpc::ByteBuffer& answer) {
  {
    MutexLock lock(mutex_);
    if (call_ == nullptr) return;
    std::exchange(call_, nullptr)->respond(answer);
  }
  MutexLock lock(core_->mutex);
  core_->waiting.erase(this);
}

void Reply::Slot::give_up() {
  {
    MutexLock lock(mutex_);
    if (call_ == nullptr) return;
    std::exchange(call_, nullptr)->abandon();
  }
  MutexLock lock(core_->mutex);
  core_->waiting.erase(this);
}

bool Reply::Slot::is_over() {
  MutexLock lock(mutex_);
  return call_ == nullptr;
}

void Reply::answer(std::string_view response) const {
  slot_->finish(internal::answer_buffer(response));
}

void Reply::fail(const Error& error) const {
  slot_->finish(internal::error_buffer(error.code(), error.what()));
}

bool Reply::is_over() const { return slot_->is_over(); }

}  // namespace tutti::rpc

namespace tutti::rpc::internal {
namespace {

void run_handler(const DeferredHandler& handler, const Caller& caller, const std::string& request,
                 const Reply& reply) {
  try {
    handler(caller, request, reply);
  } catch (const Error& error) {
    reply.fail(error);
  } catch (const std::exception& other) {
    reply.fail(Error(ErrorCode::kInternal, other.what()));
  } catch (...) {
    reply.fail(Error(ErrorCode::kInternal, "an exception of unknown type"));
  }
}

}  // namespace

IncomingCall::IncomingCall(std::shared_ptr<ListenerCore> core,
                           std::shared_ptr<const DeferredHandler> handler,
                           const grpc::GenericCallbackServerContext& context)
    : core_(std::move(core)),
      handler_(std::move(handler)),
      caller_{peer_address(context.peer())},
      first_slot_(std::make_shared<Reply::Slot>(core_, this)),
      slot_(first_slot_) {
  hand_over(this);
  StartRead(&request_);
}

void IncomingCall::OnReadDone(bool ok) {
  take_over(this);
  const std::shared_ptr<Reply::Slot> slot = std::exchange(first_slot_, nullptr);
  if (!ok) return slot->give_up();
  if (request_.Length() > core_->max_call_bytes) {
    return slot->finish(
        error_buffer(ErrorCode::kInvalidArgument,
                     message("rpc::Listener: a request of ", request_.Length(), " bytes exceeds ",
                             core_->max_call_bytes, " (ListenerOptions::max_call_bytes).")));
  }
  bool stopped = false;
  {
    MutexLock lock(core_->mutex);
    stopped = core_->stopped;
    if (!stopped) core_->waiting[slot.get()] = slot;
  }
  const bool posted =
      !stopped &&
      core_->pool.post([handler = handler_, caller = caller_, request = to_text(request_),
                        reply = Reply(slot)] { run_handler(*handler, caller, request, reply); });
  if (!posted) {
    slot->finish(error_buffer(ErrorCode::kCancelled,
                              message("rpc::Listener: ", core_->address, " is stopping.")));
  }
}

void IncomingCall::OnCancel() {
  take_over(this);
  if (const std::shared_ptr<Reply::Slot> slot = slot_.lock()) slot->give_up();
}

void IncomingCall::respond(const grpc::ByteBuffer& answer) {
  response_ = answer;
  hand_over(this);
  StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
}

void IncomingCall::OnDone() {
  take_over(this);
  delete this;
}

void IncomingCall::abandon() {
  hand_over(this);
  Finish(grpc::Status(grpc::StatusCode::CANCELLED, "the caller is gone"));
}

RefusedCall::RefusedCall(grpc::Status status) {
  hand_over(this);
  Finish(std::move(status));
}

void RefusedCall::OnDone() {
  take_over(this);
  delete this;
}

}  // namespace tutti::rpc::internal
