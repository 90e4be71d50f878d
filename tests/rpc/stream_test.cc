// SPDX-License-Identifier: Apache-2.0
//
// Streams: order, memory, pauses, and every kind of end.

#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/rpc/channel.h"
#include "tutti/rpc/listener.h"

#include "tests/rpc/rpc_fixture.h"
#include "tests/support/expect_error.h"

namespace tutti::rpc::stream_test {

using namespace tutti::rpc::test;  // NOLINT

/// A listener whose method "data" collects messages.
struct Receiving {
  explicit Receiving(ListenerOptions options = listener_options()) : listener(std::move(options)) {
    listener.handle_stream("data", [this](const Caller&, std::string_view text,
                                          std::shared_ptr<IncomingStream> handle) {
      MutexLock lock(mutex);
      opening = text;
      incoming = std::move(handle);
      return collector;
    });
  }
  std::shared_ptr<IncomingStream> handle() {
    MutexLock lock(mutex);
    return incoming;
  }

  std::shared_ptr<Collector> collector = std::make_shared<Collector>();
  Mutex mutex;
  std::string opening;
  std::shared_ptr<IncomingStream> incoming;
  Listener listener;
};

TEST(SendStream, DeliversMessagesInOrderAndThenTheEnd) {
  Receiving peer;
  const auto channel = connect(peer.listener);
  BrokenFlag broken;
  auto stream = channel->open_stream("data", "open", broken.callback());
  std::atomic<int> sent{0};
  std::vector<std::string> bodies;
  for (int i = 0; i < 500; ++i)
    bodies.push_back(std::string(1 + 37 * (i % 50), char('a' + i % 26)));
  for (int i = 0; i < 500; ++i) {
    stream->send(bytes_of(std::to_string(i) + ":"), bytes_of(bodies[i]),
                 [&](bool ok) { sent += ok ? 1 : 1000; });
  }
  stream->close();
  ASSERT_TRUE(eventually([&] { return peer.collector->closed(); }));
  EXPECT_EQ(what_of(peer.collector->why()), "");
  EXPECT_EQ(peer.opening, "open");
  const auto messages = peer.collector->messages();
  ASSERT_EQ(messages.size(), 500u);
  for (int i = 0; i < 500; ++i) EXPECT_EQ(messages[i], std::to_string(i) + ":" + bodies[i]);
  EXPECT_TRUE(eventually([&] { return sent == 500; })) << sent;
  stream.reset();
  EXPECT_EQ(broken.count(), 0);
}

TEST(SendStream, DoesNotCopyLargeBodiesAndReleasesThemOnce) {
  Receiving peer;
  const auto channel = connect(peer.listener);
  auto stream = channel->open_stream("data", "", {});
  std::vector<std::string> bodies(8);
  std::vector<std::atomic<int>> released(bodies.size());
  for (size_t i = 0; i < bodies.size(); ++i) {
    bodies[i].assign(4 << 20, static_cast<char>('a' + i));
    stream->send({}, bytes_of(bodies[i]), [&released, i](bool ok) { released[i] += ok ? 1 : 100; });
  }
  for (size_t i = 0; i < bodies.size(); ++i) {
    ASSERT_TRUE(eventually([&] { return released[i] == 1; })) << released[i];
    bodies[i].assign(bodies[i].size(), '!');  // Released memory may be changed.
  }
  stream->close();
  ASSERT_TRUE(eventually([&] { return peer.collector->closed(); }));
  const auto messages = peer.collector->messages();
  ASSERT_EQ(messages.size(), bodies.size());
  for (size_t i = 0; i < bodies.size(); ++i) {
    EXPECT_EQ(messages[i], std::string(4 << 20, static_cast<char>('a' + i))) << i;
    EXPECT_EQ(released[i], 1);
  }
}

TEST(SendStream, APausedReceiverSlowsDownOnlyItsSender) {
  Receiving peer;
  peer.collector->pause_after(1);
  peer.listener.handle("echo",
                       [](const Caller&, std::string_view text) { return std::string(text); });
  const auto channel = connect(peer.listener);
  auto stream = channel->open_stream("data", "", {});
  const std::string body(1 << 20, 'b');
  std::atomic<int> sent{0};
  constexpr int kMessages = 64;
  for (int i = 0; i < kMessages; ++i)
    stream->send({}, bytes_of(body), [&](bool ok) { sent += ok; });
  ASSERT_TRUE(eventually([&] { return peer.collector->count() == 1; }));
  EXPECT_EQ(channel->call("echo", "free", soon()), "free");
  EXPECT_EQ(peer.collector->count(), 1u);
  EXPECT_LT(sent, kMessages);  // The rest waits at the sender.
  stream->close();
  for (size_t i = 2; i <= kMessages; ++i) {
    peer.handle()->resume();
    ASSERT_TRUE(eventually([&] { return peer.collector->count() >= i; })) << i;
  }
  peer.handle()->resume();
  ASSERT_TRUE(eventually([&] { return peer.collector->closed(); }));
  EXPECT_EQ(what_of(peer.collector->why()), "");
  EXPECT_TRUE(eventually([&] { return sent == kMessages; })) << sent;
  peer.handle()->resume();  // Does nothing.
  peer.handle()->cancel();
}

TEST(SendStream, TellsTheSenderWhenTheReceiverCancels) {
  Receiving peer;
  peer.collector->pause_after(1);
  const auto channel = connect(peer.listener);
  BrokenFlag broken;
  auto stream = channel->open_stream("data", "", broken.callback());
  stream->send(bytes_of("one"), {}, [](bool) {});
  ASSERT_TRUE(eventually([&] { return peer.collector->count() == 1; }));
  peer.handle()->cancel();
  ASSERT_TRUE(eventually([&] { return peer.collector->closed() && broken.count() == 1; }));
  EXPECT_NE(what_of(peer.collector->why()).find("cancelled by the receiver"), std::string::npos);
  EXPECT_NE(what_of(broken.why()).find(peer.listener.address()), std::string::npos);
  std::atomic<int> failed{0};
  stream->send(bytes_of("two"), {}, [&](bool ok) { failed += ok ? 100 : 1; });
  EXPECT_TRUE(eventually([&] { return failed == 1; }));
}

TEST(SendStream, TellsTheReceiverWhenTheSenderCancelsOrDies) {
  for (const bool destroy : {false, true}) {
    Receiving peer;
    const auto channel = connect(peer.listener);
    BrokenFlag broken;
    auto stream = channel->open_stream("data", "", broken.callback());
    stream->send(bytes_of("one"), {}, [](bool) {});
    ASSERT_TRUE(eventually([&] { return peer.collector->count() == 1; }));
    destroy ? stream.reset() : stream->cancel();
    ASSERT_TRUE(eventually([&] { return peer.collector->closed(); }));
    EXPECT_NE(what_of(peer.collector->why()).find("\"data\" from 127.0.0.1:"), std::string::npos);
    stream.reset();
    EXPECT_EQ(broken.count(), 0);
  }
}

TEST(SendStream, PassesErrorsOfReceiverAndHandlerToTheSender) {
  Listener listener(listener_options());
  class Thrower : public Collector {
    bool on_message(Message) override { throw Error(ErrorCode::kDataLoss, "cannot read this"); }
  };
  listener.handle_stream("data",
                         [](const Caller&, std::string_view opening,
                            std::shared_ptr<IncomingStream>) -> std::shared_ptr<StreamReceiver> {
                           if (opening == "bad")
                             throw Error(ErrorCode::kInvalidArgument, "no such data");
                           return std::make_shared<Thrower>();
                         });
  const auto channel = connect(listener);
  BrokenFlag refused;
  auto first = channel->open_stream("data", "bad", refused.callback());
  ASSERT_TRUE(eventually([&] { return refused.count() == 1; }));
  EXPECT_TUTTI_ERROR(std::rethrow_exception(refused.why()), ErrorCode::kInvalidArgument,
                     "no such data", listener.address());
  BrokenFlag broken;
  auto second = channel->open_stream("data", "", broken.callback());
  second->send(bytes_of("x"), {}, [](bool) {});
  ASSERT_TRUE(eventually([&] { return broken.count() == 1; }));
  EXPECT_TUTTI_ERROR(std::rethrow_exception(broken.why()), ErrorCode::kDataLoss,
                     "cannot read this");
  BrokenFlag unknown;
  auto third = channel->open_stream("other", "", unknown.callback());
  ASSERT_TRUE(eventually([&] { return unknown.count() == 1; }));
  EXPECT_TUTTI_ERROR(std::rethrow_exception(unknown.why()), ErrorCode::kUnimplemented, "\"other\"");
}

TEST(SendStream, ChecksSizes) {
  ListenerOptions small = listener_options();
  small.max_message_bytes = small.max_call_bytes = 1 << 16;
  Receiving peer(small);
  const auto channel = connect(peer.listener);
  BrokenFlag broken;
  auto stream = channel->open_stream("data", "", broken.callback());
  EXPECT_TUTTI_ERROR(stream->send({}, {}, [](bool) { FAIL(); }), ErrorCode::kInvalidArgument,
                     "0 bytes");
  const std::string huge(17 << 20, 'x');
  EXPECT_TUTTI_ERROR(stream->send({}, bytes_of(huge), [](bool) { FAIL(); }),
                     ErrorCode::kInvalidArgument, "max_message_bytes");
  // The client allows this size, the listener does not.
  const std::string large(1 << 20, 'x');
  std::atomic<bool> released{false};
  stream->send({}, bytes_of(large), [&](bool) { released = true; });
  ASSERT_TRUE(eventually([&] { return broken.count() == 1 && released; }));
  EXPECT_TRUE(eventually([&] { return peer.collector->closed(); }));
  EXPECT_EQ(peer.collector->count(), 0u);
  EXPECT_TUTTI_ERROR(channel->call("x", large, soon()), ErrorCode::kUnimplemented, "x");
  peer.listener.handle("echo", [](const Caller&, std::string_view) { return std::string(); });
  EXPECT_ANY_THROW(channel->call("echo", large, soon()));
}

TEST(SendStream, ReleasesEverythingImmediatelyWhenTheChannelAborts) {
  Receiving peer;
  peer.collector->pause_after(1);
  const auto channel = connect(peer.listener);
  BrokenFlag broken;
  auto stream = channel->open_stream("data", "", broken.callback());
  const std::string body(4 << 20, 'b');
  std::atomic<int> calls{0};
  for (int i = 0; i < 16; ++i) stream->send({}, bytes_of(body), [&](bool) { ++calls; });
  ASSERT_TRUE(eventually([&] { return peer.collector->count() == 1; }));
  channel->abort();
  EXPECT_TRUE(eventually([&] { return calls == 16 && broken.count() == 1; })) << calls;
  EXPECT_TUTTI_ERROR(channel->call("echo", "", soon()), ErrorCode::kUnavailable,
                     peer.listener.address());
  EXPECT_TRUE(eventually([&] { return peer.collector->closed(); }));
}

TEST(SendStream, BreaksWhenTheListenerStops) {
  Receiving peer;
  const auto channel = connect(peer.listener);
  BrokenFlag broken;
  auto stream = channel->open_stream("data", "", broken.callback());
  stream->send(bytes_of("one"), {}, [](bool) {});
  ASSERT_TRUE(eventually([&] { return peer.collector->count() == 1; }));
  peer.listener.stop();
  EXPECT_TRUE(peer.collector->closed());
  EXPECT_TRUE(eventually([&] { return broken.count() == 1; }));
}

}  // namespace tutti::rpc::stream_test
