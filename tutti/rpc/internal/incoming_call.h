// SPDX-License-Identifier: Apache-2.0
//
// One call that came in: its request is read, a handler gets it, the answer goes back.

#pragma once

#include <memory>
#include <string>

#include <grpcpp/generic/async_generic_service.h>

#include "tutti/base/mutex.h"
#include "tutti/rpc/internal/server_core.h"
#include "tutti/rpc/server.h"

namespace tutti::rpc::internal {
class IncomingCall;
}  // namespace tutti::rpc::internal

namespace tutti::rpc {

/// Where the answer of one call goes. Replies own it together; when they are gone, it answers
/// itself. Thread-safe.
class Reply::Slot {
 public:
  Slot(std::shared_ptr<internal::ServerCore> core, internal::IncomingCall* call)
      : core_(std::move(core)), call_(call) {}
  ~Slot();

  /// The first answer counts.
  void finish(const grpc::ByteBuffer& answer);
  /// Nobody waits for an answer any more.
  void give_up();
  bool is_over();

 private:
  std::shared_ptr<internal::ServerCore> core_;
  Mutex mutex_;
  internal::IncomingCall* call_ TUTTI_GUARDED_BY(mutex_);  ///< null once answered
};

}  // namespace tutti::rpc

namespace tutti::rpc::internal {

/// Owned by gRPC: deletes itself when gRPC is done with it.
class IncomingCall final : public grpc::ServerGenericBidiReactor {
 public:
  IncomingCall(std::shared_ptr<ServerCore> core, std::shared_ptr<const DeferredHandler> handler,
               const grpc::GenericCallbackServerContext& context);

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

  /// At most one of these, once; the slot sees to it.
  void respond(const grpc::ByteBuffer& answer);
  void abandon();

 private:
  std::shared_ptr<ServerCore> core_;
  std::shared_ptr<const DeferredHandler> handler_;
  Caller caller_;
  std::shared_ptr<Reply::Slot> first_slot_;  ///< until the handler has it
  std::weak_ptr<Reply::Slot> slot_;
  grpc::ByteBuffer request_;
  grpc::ByteBuffer response_;
};

/// Answers any call with a status. Owned by gRPC.
class RefusedCall final : public grpc::ServerGenericBidiReactor {
 public:
  explicit RefusedCall(grpc::Status status);
  void OnDone() override;
};

}  // namespace tutti::rpc::internal
