// SPDX-License-Identifier: Apache-2.0
//
// The names of files as a dataset.

#include <glob.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <utility>

#include "tutti/base/error.h"
#include "tutti/data/files.h"

namespace tutti::data {
namespace {

// glob() cannot pass an argument to its error function.
thread_local std::string unreadable_folder;
thread_local int unreadable_reason = 0;

int note_unreadable(const char* folder, int reason) {
  if (reason == ENOENT || reason == ENOTDIR) return 0;  // no match
  unreadable_folder = folder;
  unreadable_reason = reason;
  return 1;
}

void append_matches(const std::string& pattern, std::vector<std::string>& files) {
  struct Matches {
    ::glob_t found = {};
    Matches() = default;
    Matches(const Matches&) = delete;
    Matches& operator=(const Matches&) = delete;
    ~Matches() { ::globfree(&found); }
  } matches;
  const int result =
      ::glob(pattern.c_str(), GLOB_NOSORT | GLOB_MARK, note_unreadable, &matches.found);
  if (result == GLOB_NOSPACE) throw std::bad_alloc();
  if (result == GLOB_ABORTED) {
    throw internal::system_error("list_files", "read the folder", unreadable_folder,
                                 unreadable_reason);
  }
  const size_t before = files.size();
  for (size_t i = 0; result == 0 && i < matches.found.gl_pathc; ++i) {
    std::string path = matches.found.gl_pathv[i];
    if (!path.ends_with('/')) files.push_back(std::move(path));  // GLOB_MARK: no folder
  }
  if (files.size() == before) {
    throw Error(ErrorCode::kNotFound, message("list_files: no file matches \"", pattern, "\"."));
  }
}

}  // namespace

std::vector<std::string> match_files(FileNames patterns) {
  std::vector<std::string> files;
  for (const std::string& pattern : std::move(patterns).take()) append_matches(pattern, files);
  std::sort(files.begin(), files.end());
  files.erase(std::unique(files.begin(), files.end()), files.end());
  return files;
}

NodePtr make_list_files(const std::vector<std::string>& patterns, const ListFilesOptions& options) {
  std::vector<std::string> files = match_files(patterns);
  const auto count = static_cast<int64_t>(files.size());
  NodePtr names = make_tensor_slices(to_element(std::move(files)));
  if (!options.shuffle || count == 0) return names;
  return make_shuffle(std::move(names), count, {.seed = options.seed});
}

}  // namespace tutti::data
