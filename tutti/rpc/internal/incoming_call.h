// SPDX-License-Identifier: Apache-2.0
//
// One incoming call: its request is read and passed to a handler, and the response is sent back.

#pragma once

#include <memory>
#include <string>

#include <grpcpp/generic/async_generic_service.h>

#include "tutti/base/mutex.h"
#include "tutti/rpc/internal/listener_core.h"
#include "tutti/rpc/listener.h"

namespace tutti::rpc::internal {
class IncomingCall;
}  // namespace tutti::rpc::internal

namespace tutti::rpc {

/// The destination of one call's response, shared by its Replies; when the last of them is gone, it
/// responds with an error. Thread-safe.
class Reply::Slot {
 public:
  Slot(std::shared_ptr<internal::ListenerCore> core, internal::IncomingCall* call)
      : core_(std::move(core)), call_(call) {}
  ~Slot();

  /// The first response counts.
  void finish(const grpc::ByteBuffer& answer);
  /// The caller no longer waits for a response.
  void give_up();
  bool is_over();

 private:
  std::shared_ptr<internal::ListenerCore> core_;
  Mutex mutex_;
  internal::IncomingCall* call_ TUTTI_GUARDED_BY(mutex_);  ///< null once answered
};

}  // namespace tutti::rpc

namespace tutti::rpc::internal {

/// Owned by gRPC: deletes itself when gRPC is done with it. Only threads of gRPC and the slot call
/// it; OnCancel() may overlap the other calls, and the mutex of the slot orders what they share.
class IncomingCall final : public grpc::ServerGenericBidiReactor {
 public:
  IncomingCall(std::shared_ptr<ListenerCore> core, std::shared_ptr<const DeferredHandler> handler,
               const grpc::GenericCallbackServerContext& context);

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  /// At most one of these is called, once; the slot ensures it.
  void respond(const grpc::ByteBuffer& answer);
  void abandon();

 private:
  std::shared_ptr<ListenerCore> core_;
  std::shared_ptr<const DeferredHandler> handler_;
  Caller caller_;
  std::shared_ptr<Reply::Slot> first_slot_;  ///< until the handler has it
  std::weak_ptr<Reply::Slot> slot_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
};

/// Ends any call with a status. Owned by gRPC. Only threads of gRPC call it.
class RefusedCall final : public grpc::ServerGenericBidiReactor {
 public:
  explicit RefusedCall(grpc::Status status);
  void OnDone() override;
};

}  // namespace tutti::rpc::internal
