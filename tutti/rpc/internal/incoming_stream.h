// SPDX-License-Identifier: Apache-2.0
//
// One incoming stream. The first message is the opening; an empty message marks a clean end, which
// a broken connection cannot imitate.

#pragma once

#include <exception>
#include <memory>
#include <string>

#include <grpcpp/generic/async_generic_service.h>

#include "tutti/base/mutex.h"
#include "tutti/rpc/internal/listener_core.h"
#include "tutti/rpc/listener.h"

namespace tutti::rpc::internal {

class StreamCall;

/// The receiver's handle; outlives the call. Its mutex also guards the state of the call: reads,
/// cancellations and our own resume() run on different threads.
class StreamLink final : public IncomingStream {
 public:
  explicit StreamLink(StreamCall* call) : call_(call) {}

  // Clang cannot know that the call's link is this one.
  void resume() override TUTTI_THREAD_ANNOTATION(no_thread_safety_analysis);
  void cancel() override TUTTI_THREAD_ANNOTATION(no_thread_safety_analysis);

 private:
  friend class StreamCall;

  Mutex mutex_;
  StreamCall* call_ TUTTI_GUARDED_BY(mutex_);  ///< null when gRPC is done with it
};

/// Owned by gRPC: deletes itself when gRPC is done with it. Only threads of gRPC and the link call
/// it; the mutex of the link guards what they share.
class StreamCall final : public grpc::ServerGenericBidiReactor {
 public:
  StreamCall(std::shared_ptr<ListenerCore> core, std::shared_ptr<const StreamHandler> handler,
             grpc::GenericCallbackServerContext& context);

  void OnReadDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  friend class StreamLink;

  bool deliver();
  void after_delivery(bool go_on);
  void read_next() TUTTI_REQUIRES(link_->mutex_);
  void break_off(ErrorCode code, const char* what) TUTTI_REQUIRES(link_->mutex_);
  bool may_close() const TUTTI_REQUIRES(link_->mutex_);
  void close();

  std::shared_ptr<ListenerCore> core_;
  std::shared_ptr<const StreamHandler> handler_;
  grpc::GenericCallbackServerContext& context_;
  const std::string method_;
  const Caller caller_;
  const std::shared_ptr<StreamLink> link_;
  std::shared_ptr<StreamReceiver> receiver_;  ///< null until the opening was read
  grpc::ByteBuffer buffer_;                   ///< what a read fills

  bool reading_ TUTTI_GUARDED_BY(link_->mutex_) = true;
  bool delivering_ TUTTI_GUARDED_BY(link_->mutex_) = false;
  bool resume_wanted_ TUTTI_GUARDED_BY(link_->mutex_) = false;
  bool ended_ TUTTI_GUARDED_BY(link_->mutex_) = false;   ///< cleanly
  bool closed_ TUTTI_GUARDED_BY(link_->mutex_) = false;  ///< on_closed() was or is being called
  std::exception_ptr why_ TUTTI_GUARDED_BY(link_->mutex_);
};

}  // namespace tutti::rpc::internal
