// SPDX-License-Identifier: Apache-2.0
//
// A cache that does not fit on the disk. A limit on the size of files stands in for the disk.

#include <sys/resource.h>

#include <filesystem>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "tutti/data/dataset.h"

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace tutti::data::cache_full_disk_test {

void limit_file_size(rlim_t bytes) {
  rlimit limit{};
  ASSERT_EQ(::getrlimit(RLIMIT_FSIZE, &limit), 0);
  limit.rlim_cur = bytes;
  ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
}

TEST(CacheFullDisk, IsAnErrorThatStaysAndLeavesNoFile) {
  const test::TempFolder folder;
  const std::string path = folder.path("cache");
  const auto dataset = range(100).map([](int64_t i) { return at::full({1000}, i, at::kLong); });
  limit_file_size(300'000);
  {
    auto pass = dataset.cache(path).prefetch(2).iterator();
    int64_t delivered = 0;
    const auto drain = [&] {
      while (const auto tensor = pass.next()) {
        EXPECT_EQ((*tensor)[0].item<int64_t>(), delivered);
        ++delivered;
      }
    };
    EXPECT_TUTTI_ERROR(drain(), ErrorCode::kFailedPrecondition, "Dataset::cache", "write", path,
                       "File too large", "ulimit -f");
    EXPECT_GT(delivered, 0);
    EXPECT_LT(delivered, 100);
    EXPECT_TUTTI_ERROR(pass.next(), ErrorCode::kFailedPrecondition, "File too large");
    EXPECT_TRUE(std::filesystem::is_empty(folder.path(""))) << "removed immediately";
  }
  // The buffered bytes of a small cache are refused at the end.
  limit_file_size(1000);
  auto pass = dataset.take(2).cache(path).iterator();
  EXPECT_TRUE(pass.next().has_value());
  EXPECT_TRUE(pass.next().has_value());
  EXPECT_TUTTI_ERROR(pass.next(), ErrorCode::kFailedPrecondition, "File too large");
  EXPECT_TRUE(std::filesystem::is_empty(folder.path("")));
}

}  // namespace tutti::data::cache_full_disk_test
