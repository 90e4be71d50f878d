// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/shared_memory/local_socket.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <cstring>
#include <string>

#include <gtest/gtest.h>

#include "tutti/rpc/shared_memory/sealed_memory.h"

namespace tutti::rpc::local_socket_test {

using std::chrono::milliseconds;

const std::array<std::byte, 4> kHello = {std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};

Deadline soon() { return Deadline::after(std::chrono::seconds(10)); }

/// Two connected sockets.
struct Pair {
  Pair() {
    int ends[2] = {};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    near.reset(ends[0]);
    far.reset(ends[1]);
  }

  FileDescriptor near;
  FileDescriptor far;
};

/// How many descriptors this process has open.
int open_descriptors() {
  int count = 0;
  for (int fd = 0; fd < 256; ++fd) count += fcntl(fd, F_GETFD) != -1 ? 1 : 0;
  return count;
}

/// Sends bytes with `count` duplicates of a descriptor, as a peer that is not ours might.
void send_many(int socket, std::span<const std::byte> bytes, int descriptor, size_t count) {
  iovec content{const_cast<std::byte*>(bytes.data()), bytes.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(4 * sizeof(int))] = {};
  msghdr header{};
  header.msg_iov = &content;
  header.msg_iovlen = 1;
  if (count > 0) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(count * sizeof(int));
    cmsghdr* const rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(count * sizeof(int));
    for (size_t i = 0; i < count; ++i) {
      std::memcpy(CMSG_DATA(rights) + i * sizeof(int), &descriptor, sizeof descriptor);
    }
  }
  EXPECT_EQ(sendmsg(socket, &header, MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
}

TEST(LocalListener, AcceptsThoseThatKnowItsName) {
  const LocalListener listener(2);
  EXPECT_EQ(listener.name().size(), std::string("tutti-").size() + 32);
  EXPECT_NE(listener.name(), LocalListener(2).name());
  const FileDescriptor client = connect_locally(listener.name());
  ASSERT_TRUE(client.is_open());
  const FileDescriptor accepted = listener.accept(soon());
  ASSERT_TRUE(accepted.is_open());
  EXPECT_EQ(write(client.get(), "x", 1), 1);
  char letter = 0;
  EXPECT_EQ(read(accepted.get(), &letter, 1), 1);
  EXPECT_EQ(letter, 'x');
}

TEST(LocalListener, GivesUpAtTheDeadline) {
  const LocalListener listener(2);
  EXPECT_FALSE(listener.accept(Deadline::after(milliseconds(20))).is_open());
}

TEST(LocalListener, VanishesWithItsName) {
  std::string name;
  {
    const LocalListener listener(2);
    name = listener.name();
  }
  EXPECT_FALSE(connect_locally(name).is_open());
  EXPECT_FALSE(connect_locally("").is_open());
  EXPECT_FALSE(connect_locally(std::string(200, 'n')).is_open());
}

TEST(Descriptors, ArriveWithTheBytesThatIntroduceThem) {
  const Pair pair;
  SealedMemory memory = SealedMemory::create(1 << 20);
  memory.data()[9] = std::byte{9};
  send_descriptor(pair.near.get(), kHello, memory.descriptor());
  std::array<std::byte, 4> bytes{};
  const FileDescriptor arrived = receive_descriptor(pair.far.get(), bytes, soon());
  ASSERT_TRUE(arrived.is_open());
  EXPECT_EQ(bytes, kHello);
  EXPECT_NE(fcntl(arrived.get(), F_GETFD) & FD_CLOEXEC, 0) << "programs that are started get it";
  EXPECT_EQ(SealedMemory::map(arrived.get(), 1 << 20, "near").data()[9], std::byte{9});
}

TEST(Descriptors, AreNotAwaitedBeyondTheDeadline) {
  const Pair pair;
  std::array<std::byte, 4> bytes{};
  const Deadline deadline = Deadline::after(milliseconds(20));
  EXPECT_FALSE(receive_descriptor(pair.far.get(), bytes, deadline).is_open());
}

TEST(Descriptors, AreMissingWhenThePeerIsGone) {
  Pair pair;
  pair.near.reset();
  std::array<std::byte, 4> bytes{};
  EXPECT_FALSE(receive_descriptor(pair.far.get(), bytes, soon()).is_open());
  send_descriptor(pair.far.get(), kHello, pair.far.get());  // does not kill this process
}

TEST(Descriptors, AreClosedUnlessExactlyOneArrivesWithAllBytes) {
  const SealedMemory memory = SealedMemory::create(4096);
  const int before = open_descriptors();
  for (const size_t count : {0, 2, 3, 4}) {
    const Pair pair;
    send_many(pair.near.get(), kHello, memory.descriptor(), count);
    std::array<std::byte, 4> bytes{};
    EXPECT_FALSE(receive_descriptor(pair.far.get(), bytes, soon()).is_open()) << count;
  }
  {
    const Pair pair;
    send_many(pair.near.get(), std::span(kHello).first(3), memory.descriptor(), 1);
    std::array<std::byte, 4> bytes{};
    EXPECT_FALSE(receive_descriptor(pair.far.get(), bytes, soon()).is_open());
  }
  EXPECT_EQ(open_descriptors(), before);
}

}  // namespace tutti::rpc::local_socket_test
