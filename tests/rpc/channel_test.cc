// SPDX-License-Identifier: Apache-2.0
//
// Calls between a listener and channels over real sockets.

#include "tutti/rpc/channel.h"

#include <poll.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/rpc/internal/sockets.h"
#include "tutti/rpc/listener.h"

#include "tests/rpc/peer_process.h"
#include "tests/rpc/rpc_fixture.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_capture.h"

namespace tutti::rpc::channel_test {

using namespace tutti::rpc::test;  // NOLINT

TEST(Channel, CallsAndGetsTheResponse) {
  Listener listener(listener_options());
  listener.handle("echo", [](const Caller& caller, std::string_view request) {
    return caller.address.substr(0, 10) + std::string(request);
  });
  const auto channel = connect(listener);
  EXPECT_EQ(channel->call("echo", "hello", soon()), "127.0.0.1:hello");
  EXPECT_EQ(channel->call("echo", "", soon()), "127.0.0.1:");
  const std::string large(1 << 20, 'x');
  EXPECT_EQ(channel->call("echo", large, soon()).size(), large.size() + 10);
}

TEST(Channel, KeepsCodeAndTextOfAHandlersError) {
  Listener listener(listener_options());
  listener.handle("fail", [](const Caller&, std::string_view request) -> std::string {
    if (request == "plain") throw std::runtime_error("a plain exception");
    throw Error(ErrorCode::kDataLoss, "lost: " + std::string(3000, 'y'));
  });
  const auto channel = connect(listener);
  EXPECT_TUTTI_ERROR(channel->call("fail", "", soon()), ErrorCode::kDataLoss,
                     "lost: " + std::string(3000, 'y'));
  EXPECT_TUTTI_ERROR(channel->call("fail", "plain", soon()), ErrorCode::kInternal,
                     "a plain exception");
  EXPECT_TUTTI_ERROR(channel->call("other", "", soon()), ErrorCode::kUnimplemented, "\"other\"",
                     listener.address());
}

TEST(Channel, EndsACallAtItsDeadline) {
  Listener listener(listener_options());
  std::atomic<bool> over{false};
  listener.handle_deferred("never", [&](const Caller&, std::string_view, const Reply& reply) {
    over = eventually([&] { return reply.is_over(); });
  });
  const auto channel = connect(listener);
  const auto short_time = Deadline::after(std::chrono::milliseconds(50));
  EXPECT_TUTTI_ERROR(channel->call("never", "", short_time), ErrorCode::kDeadlineExceeded,
                     "\"never\"", listener.address());
  EXPECT_TRUE(eventually([&] { return over.load(); }));
}

TEST(Channel, CallsBothWaysAtOnceWhileHandlersBlockAndCall) {
  std::shared_ptr<Channel> to_second;  // Outlives the handlers that use it.
  Listener first(listener_options());
  Listener second(listener_options());
  const auto to_first = connect(first);
  to_second = connect(second);
  first.handle("ask", [&](const Caller&, std::string_view text) {
    return "1" + to_second->call("answer", text, soon());
  });
  second.handle("answer",
                [&](const Caller&, std::string_view text) { return "2" + std::string(text); });
  std::vector<std::thread> threads;
  std::atomic<int> good{0};
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      for (int j = 0; j < 20; ++j) good += to_first->call("ask", "x", soon()) == "12x" ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(good, 160);
}

TEST(Channel, ReportsADroppedReply) {
  Listener listener(listener_options());
  listener.handle_deferred("drop", [](const Caller&, std::string_view, const Reply&) {});
  EXPECT_TUTTI_ERROR(connect(listener)->call("drop", "", soon()), ErrorCode::kInternal,
                     "without a response");
}

TEST(Channel, WaitsForAPeerThatStartsLate) {
  const std::string address = [] { return Listener(listener_options()).address(); }();
  std::vector<std::string> reasons;
  std::unique_ptr<Listener> listener;
  ChannelOptions options = channel_options();
  options.on_waiting = [&](const std::string& why) {
    reasons.push_back(why);
    if (reasons.size() == 3) {
      listener = std::make_unique<Listener>(
          ListenerOptions{.address = address, .security = with_secret()});
    }
  };
  const auto channel = Channel::connect(address, options, soon());
  EXPECT_GE(reasons.size(), 3u);
  EXPECT_NE(reasons.at(0).find("Connection refused"), std::string::npos) << reasons.at(0);
  EXPECT_TUTTI_ERROR(channel->call("x", "", soon()), ErrorCode::kUnimplemented);
}

TEST(Channel, RetriesAnUnknownNameAndThenNamesIt) {
  int attempts = 0;
  ChannelOptions options = channel_options();
  options.on_waiting = [&](const std::string&) { ++attempts; };
  EXPECT_TUTTI_ERROR(
      Channel::connect("no-such-host.invalid:1", options, Deadline::after(std::chrono::seconds(2))),
      ErrorCode::kUnavailable, "no-such-host.invalid:1");
  EXPECT_GE(attempts, 2);
  EXPECT_TUTTI_ERROR(Channel::connect("no port", options, soon()), ErrorCode::kInvalidArgument,
                     "hostA:4321");
}

TEST(Channel, RecognizesAnotherProtocol) {
  FileDescriptor socket_of_listener = internal::listen_on({"127.0.0.1", 0});
  const std::string address =
      "127.0.0.1:" + std::to_string(internal::local_port(socket_of_listener.get()));
  std::thread stranger([&] {
    internal::wait_for(socket_of_listener.get(), POLLIN, soon());
    const FileDescriptor fd(accept(socket_of_listener.get(), nullptr, nullptr));
    const std::string text = "220 mail.example ready\r\n";
    send(fd.get(), text.data(), text.size(), MSG_NOSIGNAL);
    char byte = 0;
    while (recv(fd.get(), &byte, 1, 0) > 0) {
    }
  });
  EXPECT_TUTTI_ERROR(Channel::connect(address, channel_options(), soon()),
                     ErrorCode::kFailedPrecondition, address, "does not speak this protocol");
  stranger.join();
}

TEST(Channel, DetectsAndNamesAKilledPeer) {
  const PeerProcess peer(kSecret);
  const auto channel = Channel::connect(peer.address(), channel_options(), soon());
  EXPECT_EQ(channel->call("echo", "alive", soon()), "alive");
  BrokenFlag broken;
  auto stream = channel->open_stream("data", "", broken.callback());
  std::thread killer([&] {
    while (true) {  // Shows that one call waits while others are served.
      if (channel->call("echo", "x", soon()) == "x") break;
    }
    peer.signal(SIGKILL);
  });
  EXPECT_TUTTI_ERROR(channel->call("never", "", soon()), ErrorCode::kUnavailable, peer.address(),
                     "\"never\"");
  killer.join();
  EXPECT_TRUE(eventually([&] { return broken.count() == 1; }));
  EXPECT_NE(what_of(broken.why()).find(peer.address()), std::string::npos);
}

TEST(Channel, DetectsAStoppedPeerByKeepalive) {
  const PeerProcess peer(kSecret);
  ChannelOptions options = channel_options();
  options.keepalive_interval = std::chrono::milliseconds(200);
  options.keepalive_timeout = std::chrono::milliseconds(300);
  const auto channel = Channel::connect(peer.address(), options, soon());
  EXPECT_EQ(channel->call("echo", "alive", soon()), "alive");
  peer.signal(SIGSTOP);
  EXPECT_TUTTI_ERROR(channel->call("never", "", soon()), ErrorCode::kUnavailable, peer.address());
}

TEST(Listener, AnswersWaitingCallsWhenItStops) {
  Listener listener(listener_options());
  std::vector<Reply> kept;
  std::atomic<bool> asked{false};
  listener.handle_deferred("never", [&](const Caller&, std::string_view, const Reply& reply) {
    kept.push_back(reply);
    asked = true;
  });
  const auto channel = connect(listener);
  std::thread stopper([&] {
    EXPECT_TRUE(eventually([&] { return asked.load(); }));
    listener.stop();
  });
  EXPECT_TUTTI_ERROR(channel->call("never", "", soon()), ErrorCode::kCancelled, "stopping",
                     listener.address());
  stopper.join();
  kept.at(0).answer("too late");
  listener.stop();
}

TEST(Listener, ChecksItsOptions) {
  EXPECT_TUTTI_ERROR(Listener({.max_message_bytes = 1}), ErrorCode::kInvalidArgument,
                     "max_message_bytes");
  EXPECT_TUTTI_ERROR(Listener({.max_connections = 0}), ErrorCode::kInvalidArgument,
                     "max_connections");
  EXPECT_TUTTI_ERROR(Listener({.address = "nonsense"}), ErrorCode::kInvalidArgument, "nonsense");
  Listener listener(listener_options());
  EXPECT_TUTTI_ERROR(listener.handle("a b", {}), ErrorCode::kInvalidArgument, "a b");
}

TEST(Message, CopiesAcrossPieces) {
  const std::string a = "abc";
  const std::string b = "defg";
  const Message message({bytes_of(a), bytes_of(""), bytes_of(b)}, nullptr);
  EXPECT_EQ(message.size(), 7u);
  std::string part(4, ' ');
  message.copy_to(2, std::as_writable_bytes(std::span(part)));
  EXPECT_EQ(part, "cdef");
  EXPECT_TUTTI_ERROR(message.copy_to(4, std::as_writable_bytes(std::span(part))),
                     ErrorCode::kInvalidArgument, "4 bytes from offset 4");
}

}  // namespace tutti::rpc::channel_test
