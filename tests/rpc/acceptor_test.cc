// SPDX-License-Identifier: Apache-2.0
//
// Hostile and slow connections must not keep honest ones from being served.

#include <poll.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/rpc/channel.h"
#include "tutti/rpc/internal/sockets.h"
#include "tutti/rpc/listener.h"

#include "tests/rpc/peer_process.h"
#include "tests/rpc/rpc_fixture.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_capture.h"

namespace tutti::rpc::acceptor_test {

using namespace tutti::rpc::test;  // NOLINT
using std::chrono::milliseconds;

FileDescriptor open_socket(const std::string& address) {
  const auto parts = internal::split_address("test", address);
  return internal::connect_to(internal::resolve(parts, soon()).at(0), soon());
}

void send_text(const FileDescriptor& fd, std::string_view text) {
  ::send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
}

/// True once the peer has closed the connection.
bool is_closed(const FileDescriptor& fd) {
  char byte = 0;
  if (!internal::wait_for(fd.get(), POLLIN, soon())) return false;
  return recv(fd.get(), &byte, 1, 0) <= 0;
}

TEST(Acceptor, ServesAfterAFloodOfGarbageWithFewFileDescriptors) {
  rlimit limits = {};
  getrlimit(RLIMIT_NOFILE, &limits);
  limits.rlim_cur = limits.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limits);
  const PeerProcess peer(kSecret, "96");
  const size_t held = std::min<size_t>(600, limits.rlim_cur / 2);
  std::vector<FileDescriptor> garbage(held);
  for (size_t i = 0; i < 3000; ++i) {
    FileDescriptor& fd = garbage[i % held];
    fd.reset();
    fd = open_socket(peer.address());
    if (i % 3 == 0) send_text(fd, "GET / HTTP/1.1\r\n\r\n");
    if (i % 3 == 1) send_text(fd, "tuttirpc");  // and then silence
  }
  const auto channel = Channel::connect(peer.address(), channel_options(), soon());
  EXPECT_EQ(channel->call("echo", "still here", soon()), "still here");
}

TEST(Acceptor, EndsSlowHandshakesThatDelayNoOther) {
  tutti::test::LogCapture log;
  ListenerOptions options = listener_options();
  options.handshake_timeout = milliseconds(300);
  Listener listener(options);
  listener.handle("echo", [](const Caller&, std::string_view text) { return std::string(text); });
  std::vector<FileDescriptor> slow;
  for (int i = 0; i < 100; ++i) {
    slow.push_back(open_socket(listener.address()));
    send_text(slow.back(), "tutti");
  }
  EXPECT_EQ(connect(listener)->call("echo", "quick", soon()), "quick");
  for (const FileDescriptor& fd : slow) EXPECT_TRUE(is_closed(fd));
  EXPECT_GE(log.count("did not prove the job secret within 300 ms"), 1);
  EXPECT_LE(log.count(" refused "), 20);  // There is not a line for each.
}

TEST(Acceptor, LogsWhichPeerSpokeWhichProtocol) {
  tutti::test::LogCapture log;
  Listener listener(listener_options());
  const FileDescriptor web = open_socket(listener.address());
  send_text(web, "GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(is_closed(web));
  const FileDescriptor tls = open_socket(listener.address());
  send_text(tls, "\x16\x03\x01");
  EXPECT_TRUE(is_closed(tls));
  EXPECT_EQ(log.count("does not speak this protocol"), 1) << log.text();
  EXPECT_EQ(log.count("it speaks TLS, for which this listener has no certificates"), 1);
}

TEST(Acceptor, DoesNotAcceptItsOwnBytesAsProof) {
  Listener listener(listener_options());
  listener.handle("echo", [](const Caller&, std::string_view text) { return std::string(text); });
  const FileDescriptor fd = open_socket(listener.address());
  std::string hello = "tuttirpc";
  hello += '\x01';
  hello += '\x01';
  hello.resize(64, '\0');
  send_text(fd, hello);
  std::string challenge(64, '\0');
  ASSERT_TRUE(internal::wait_for(fd.get(), POLLIN, soon()));
  ASSERT_EQ(recv(fd.get(), challenge.data(), 64, MSG_WAITALL), 64);
  EXPECT_EQ(challenge.substr(0, 8), "tuttirpc");
  std::string proof = challenge;  // sends the listener's own bytes back
  proof[9] = '\x03';
  send_text(fd, proof);
  std::string verdict(64, '\0');
  ASSERT_TRUE(internal::wait_for(fd.get(), POLLIN, soon()));
  ASSERT_EQ(recv(fd.get(), verdict.data(), 64, MSG_WAITALL), 64);
  EXPECT_EQ(verdict[10], '\x01');  // the wrong secret
  EXPECT_EQ(verdict.substr(16, 32), std::string(32, '\0'));
  EXPECT_TRUE(is_closed(fd));
}

TEST(Acceptor, LimitsConnectionsAndFreesClosedOnes) {
  ListenerOptions options = listener_options();
  options.max_connections = 4;
  Listener listener(options);
  listener.handle("echo", [](const Caller&, std::string_view text) { return std::string(text); });
  std::vector<std::shared_ptr<Channel>> channels;
  for (int i = 0; i < 4; ++i) channels.push_back(connect(listener));
  // connect() retries until the deadline, so this allows more time only if the first response took
  // longer.
  std::string refusal;
  ErrorCode code = {};
  for (auto limit = milliseconds(100); refusal.find("too many connections") == std::string::npos;
       limit *= 2) {
    ASSERT_LT(limit, std::chrono::minutes(1)) << refusal;
    try {
      Channel::connect(listener.address(), channel_options(), Deadline::after(limit));
      FAIL() << "connected";
    } catch (const Error& error) {
      refusal = error.what();
      code = error.code();
    }
  }
  EXPECT_EQ(code, ErrorCode::kUnavailable) << refusal;
  EXPECT_NE(refusal.find(listener.address()), std::string::npos) << refusal;
  EXPECT_EQ(channels[3]->call("echo", "x", soon()), "x");
  channels.pop_back();
  EXPECT_EQ(connect(listener)->call("echo", "y", soon()), "y");
}

// Limits how many files the process may open, while it lives.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t limit) {
    getrlimit(RLIMIT_NOFILE, &before_);
    const rlimit lower{limit, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_NOFILE, &lower), 0);
  }
  ~DescriptorLimit() { setrlimit(RLIMIT_NOFILE, &before_); }

 private:
  rlimit before_ = {};
};

TEST(Acceptor, DropsTheOldestOfTooManySilentGuests) {
  constexpr rlim_t kDescriptors = 160;
  constexpr size_t kGuests = kDescriptors / 4;
  constexpr size_t kMore = 10;
  tutti::test::LogCapture log;
  ListenerOptions options = listener_options();
  options.handshake_timeout = std::chrono::minutes(10);
  std::unique_ptr<Listener> listener;
  {
    const DescriptorLimit limit(kDescriptors);
    listener = std::make_unique<Listener>(options);
  }
  listener->handle("echo", [](const Caller&, std::string_view text) { return std::string(text); });
  std::vector<FileDescriptor> silent;
  for (size_t i = 0; i < kGuests + kMore; ++i) silent.push_back(open_socket(listener->address()));
  for (size_t i = 0; i < kMore; ++i) ASSERT_TRUE(is_closed(silent[i])) << i;
  EXPECT_GE(log.count("it was slow while many others connected"), 1) << log.text();
  EXPECT_EQ(connect(*listener)->call("echo", "quick", soon()), "quick");
  // Only those that had to make room were dropped.
  for (size_t i = kMore + 1; i < silent.size(); ++i) {
    EXPECT_FALSE(internal::wait_for(silent[i].get(), POLLIN, Deadline::after(milliseconds(0))))
        << i;
  }
}

}  // namespace tutti::rpc::acceptor_test
