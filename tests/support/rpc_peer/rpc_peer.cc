// SPDX-License-Identifier: Apache-2.0
//
// A process for the tests of rpc: rpc_peer <secret> [<limit of file descriptors>]. Prints the
// address of its listener, and serves until its standard input ends.

#include <sys/resource.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <string>

#include "tutti/base/log.h"
#include "tutti/rpc/listener.h"

namespace {

class Discards : public tutti::rpc::StreamReceiver {
 public:
  bool on_message(tutti::rpc::Message) override { return true; }
  void on_closed(std::exception_ptr) override {}
};

}  // namespace

int main(int argc, char** argv) {
  using namespace tutti::rpc;
  if (argc > 2) {
    const auto limit = static_cast<rlim_t>(std::atoi(argv[2]));
    const rlimit limits{limit, limit};
    if (setrlimit(RLIMIT_NOFILE, &limits) != 0) return 2;
  }
  tutti::set_log_level(tutti::LogLevel::kError);
  Listener listener({.security = {.job_secret = argv[1]},
                     .keepalive_interval = std::chrono::milliseconds(200),
                     .keepalive_timeout = std::chrono::milliseconds(1000)});
  listener.handle("echo", [](const Caller&, std::string_view text) { return std::string(text); });
  listener.handle_deferred("never", [](const Caller&, std::string_view, const Reply& reply) {
    static auto* const kept = new Reply(reply);
    *kept = reply;
  });
  listener.handle_stream("data",
                         [](const Caller&, std::string_view, std::shared_ptr<IncomingStream>) {
                           return std::make_shared<Discards>();
                         });
  std::printf("%s\n", listener.address().c_str());
  std::fflush(stdout);
  char ignored = 0;
  while (read(STDIN_FILENO, &ignored, 1) > 0) {
  }
  return 0;
}
