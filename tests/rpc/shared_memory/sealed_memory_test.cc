// SPDX-License-Identifier: Apache-2.0

#include "tutti/rpc/shared_memory/sealed_memory.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <utility>

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace tutti::rpc::sealed_memory_test {

constexpr size_t kBytes = 3 << 20;

TEST(SealedMemory, ShowsPeersWhatItsOwnerWrites) {
  SealedMemory mine = SealedMemory::create(kBytes);
  EXPECT_EQ(mine.size(), kBytes);
  const SealedMemory theirs = SealedMemory::map(mine.descriptor(), kBytes, "the test");
  EXPECT_EQ(theirs.size(), kBytes);
  EXPECT_EQ(theirs.descriptor(), -1);
  EXPECT_NE(theirs.data(), std::as_const(mine).data());
  EXPECT_EQ(theirs.data()[kBytes - 1], std::byte{0});
  mine.data()[kBytes - 1] = std::byte{42};
  EXPECT_EQ(theirs.data()[kBytes - 1], std::byte{42});
}

TEST(SealedMemory, IsReadOnlyForPeers) {
  const SealedMemory mine = SealedMemory::create(kBytes);
  SealedMemory theirs = SealedMemory::map(mine.descriptor(), kBytes, "the test");
  ::testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(theirs.data()[0] = std::byte{1}, "");
}

TEST(SealedMemory, OutlivesItsOwnerWhereItIsMapped) {
  const SealedMemory theirs = [] {
    SealedMemory mine = SealedMemory::create(kBytes);
    mine.data()[5] = std::byte{7};
    return SealedMemory::map(mine.descriptor(), kBytes, "the test");
  }();
  EXPECT_EQ(theirs.data()[5], std::byte{7});
}

TEST(SealedMemory, KeepsItsMappingWhenItIsMoved) {
  SealedMemory first = SealedMemory::create(kBytes);
  std::byte* const data = first.data();
  const SealedMemory second = std::move(first);
  EXPECT_EQ(second.data(), data);
  data[0] = std::byte{1};
  EXPECT_GE(second.descriptor(), 0);
}

TEST(SealedMemory, KeepsItsSize) {
  const SealedMemory mine = SealedMemory::create(kBytes);
  EXPECT_NE(ftruncate(mine.descriptor(), 4096), 0);
  EXPECT_NE(ftruncate(mine.descriptor(), 2 * kBytes), 0);
}

TEST(SealedMemory, RefusesADifferentSize) {
  const SealedMemory mine = SealedMemory::create(kBytes);
  EXPECT_TUTTI_ERROR(SealedMemory::map(mine.descriptor(), kBytes + 4096, "server 3"),
                     ErrorCode::kFailedPrecondition, "server 3", std::to_string(kBytes),
                     std::to_string(kBytes + 4096));
}

TEST(SealedMemory, RefusesMemoryThatMayShrink) {
  const FileDescriptor plain(memfd_create("plain", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(ftruncate(plain.get(), kBytes), 0);
  EXPECT_TUTTI_ERROR(SealedMemory::map(plain.get(), kBytes, "server 3"),
                     ErrorCode::kFailedPrecondition, "sealed");
}

TEST(SealedMemory, RefusesAFileWhichCannotBeSealed) {
  std::string name = ::testing::TempDir() + "tutti_sealed_XXXXXX";
  const FileDescriptor file(mkstemp(name.data()));
  ASSERT_TRUE(file.is_open());
  unlink(name.c_str());
  ASSERT_EQ(ftruncate(file.get(), kBytes), 0);
  // A file of a disk has no seals at all; one in memory (tmpfs) has none set, or cannot have any.
  EXPECT_TUTTI_ERROR(SealedMemory::map(file.get(), kBytes, "server 3"),
                     ErrorCode::kFailedPrecondition, "server 3");
}

TEST(SealedMemory, RefusesWhatIsNotMemory) {
  int ends[2] = {};
  ASSERT_EQ(pipe(ends), 0);
  EXPECT_TUTTI_ERROR(SealedMemory::map(ends[0], kBytes, "server 3"), ErrorCode::kFailedPrecondition,
                     "server 3");
  close(ends[0]);
  close(ends[1]);
  EXPECT_TUTTI_ERROR(SealedMemory::map(-1, kBytes, "server 3"), ErrorCode::kFailedPrecondition,
                     "server 3");
}

TEST(SealedMemory, NamesTheLimitOnTheSizeOfFiles) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  rlimit limit = before;
  limit.rlim_cur = kBytes - 1;
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &limit), 0);
  EXPECT_TUTTI_ERROR(SealedMemory::create(kBytes), ErrorCode::kUnavailable, std::to_string(kBytes),
                     "ulimit -f");
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &before), 0);
}

}  // namespace tutti::rpc::sealed_memory_test
