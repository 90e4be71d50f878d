// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/internal/callback_threads.h"

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>
#include <string>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/slice.h>

#include "tutti/base/mutex.h"
#include "tutti/rpc/internal/handover.h"
#include "tutti/rpc/internal/random.h"

namespace tutti::rpc::internal {
namespace {

// A thread that has been idle for a second does not react for the next 100 ms.
constexpr std::chrono::milliseconds kPulse{400};

// Makes calls that nobody answers, one after the other: each times out, which is work for one of
// the threads. A channel counts as a user from its first call on.
class Keeper {
 public:
  Keeper() { call(); }

  // The program is exiting: what a call needs may soon be destroyed.
  void stop() {
    const MutexLock lock(mutex_);
    stopped_ = true;
  }

 private:
  struct Call {
    grpc::ClientContext context;
    grpc::ByteBuffer response;
  };

  void call() {
    const UnseenWrites unseen;
    const MutexLock lock(mutex_);
    if (stopped_) return;
    call_ = std::make_unique<Call>();
    call_->context.set_wait_for_ready(true);
    call_->context.set_deadline(std::chrono::system_clock::now() + kPulse);
    stub_.UnaryCall(&call_->context, "/tutti.Nobody/None", {}, &request_, &call_->response,
                    [this](const grpc::Status&) { call(); });
  }

  // No other process can guess the name and answer.
  static std::string nowhere() {
    std::array<std::byte, 16> random = {};
    fill_random(random);
    return "unix-abstract:tutti-nobody-" + to_hex(random);
  }

  grpc::GenericStub stub_{grpc::CreateChannel(nowhere(), grpc::InsecureChannelCredentials())};
  const grpc::Slice nothing_{"\n"};
  const grpc::ByteBuffer request_{&nothing_, 1};
  Mutex mutex_;
  bool stopped_ TUTTI_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Call> call_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace

// Not static, so that the compiler keeps it, and leak checkers find what it points to.
Keeper* callback_threads_keeper = nullptr;

void keep_callback_threads() {
  static std::once_flag once;
  std::call_once(once, [] {
    callback_threads_keeper = new Keeper;  // outlives every user
    std::atexit([] { callback_threads_keeper->stop(); });
  });
}

}  // namespace tutti::rpc::internal
