// SPDX-License-Identifier: Apache-2.0
//
// How sharding explains itself; tests/property tests which rows each worker gets.

#include "tutti/data/auto_shard.h"

#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "tutti/data/dataset.h"
#include "tutti/data/files.h"

namespace tutti::data {
namespace {

// Nothing opens the files: sharding looks only at their names.
std::string explanation_of(int64_t workers, int64_t worker) {
  std::vector<std::string> names;
  for (int64_t i = 0; i < workers; ++i) names.push_back("lines-" + std::to_string(i) + ".txt");
  const auto lines = from_tensor_slices(std::move(names)).flat_map([](const std::string& name) {
    return text_line(name);
  });
  return shard_pipeline(lines.node(), {.num_workers = workers, .worker = worker}).explanation;
}

TEST(AutoShard, NamesTheFilesOfAWorkerByOrdinals) {
  EXPECT_EQ(explanation_of(2, 1),
            "sharded by file (kFile): there are files for each of 2 workers, and this one reads "
            "every 2nd file, starting with file 1");
  const std::vector<std::pair<int64_t, std::string>> ordinals = {
      {3, "3rd"},   {4, "4th"},   {10, "10th"},   {11, "11th"},   {12, "12th"},  {13, "13th"},
      {14, "14th"}, {20, "20th"}, {21, "21st"},   {22, "22nd"},   {23, "23rd"},  {24, "24th"},
      {30, "30th"}, {31, "31st"}, {101, "101st"}, {111, "111th"}, {112, "112th"}};
  for (const auto& [workers, ordinal] : ordinals) {
    const std::string text = explanation_of(workers, 0);
    EXPECT_TRUE(text.ends_with("reads every " + ordinal + " file, starting with file 0")) << text;
  }
}

TEST(AutoShard, SaysWhatTheOnlyWorkerReads) {
  EXPECT_EQ(explanation_of(1, 0), "sharded by file (kFile): the only worker reads everything");
}

}  // namespace
}  // namespace tutti::data
