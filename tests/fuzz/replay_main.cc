// SPDX-License-Identifier: Apache-2.0
//
// Runs a fuzz target over the files of folders, with any compiler: <format>_replay <folder>...
// Each file is also cut short and damaged a little, so that a small corpus reaches far.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace {

void run_target(const std::string& bytes) {
  // A copy of exactly this size, so that a sanitizer sees a read behind the end.
  const std::vector<uint8_t> copy(bytes.begin(), bytes.end());
  LLVMFuzzerTestOneInput(copy.data(), copy.size());
}

void replay(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes(std::istreambuf_iterator<char>(file), {});
  run_target(bytes);
  for (size_t i = 0; i < std::min<size_t>(bytes.size(), 300); ++i) {
    run_target(bytes.substr(0, i));
    std::string changed = bytes;
    for (const int mask : {0x01, 0x80, 0xff}) {
      changed[i] = static_cast<char>(bytes[i] ^ mask);
      run_target(changed);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  int count = 0;
  for (int i = 1; i < argc; ++i) {
    for (const auto& entry : std::filesystem::directory_iterator(argv[i])) {
      if (!entry.is_regular_file()) continue;
      replay(entry.path());
      ++count;
    }
  }
  std::printf("replay: %d files\n", count);
  return count > 0 ? 0 : 1;
}
