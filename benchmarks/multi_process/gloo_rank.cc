// SPDX-License-Identifier: Apache-2.0
//
// gloo_rank <rank> <size> <pinned|free> <address> <file of the store> <socket>: a rank of c10d's
// process group Gloo at its own address, with its defaults, for bench_multi_process and
// bench_multi_worker.

#include <cstdlib>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/FileStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "benchmarks/support/rank_loop.h"

namespace {

class GlooWork final : public bench::RankWork {
 public:
  GlooWork(int rank, int size, const std::string& address, const std::string& file) {
    auto options = c10d::ProcessGroupGloo::Options::create();
    options->devices.push_back(c10d::ProcessGroupGloo::createDeviceForHostname(address));
    group_ = c10::make_intrusive<c10d::ProcessGroupGloo>(
        c10::make_intrusive<c10d::FileStore>(file, size), rank, size, options);
  }

  float* allocate(const std::string&, int64_t count) override {
    tensors_ = {at::empty({count}, at::kFloat)};
    return tensors_[0].data_ptr<float>();
  }

  void all_reduce(float*, int64_t) override { group_->allreduce(tensors_)->wait(); }

 private:
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  std::vector<at::Tensor> tensors_;
};

}  // namespace

int main(int argc, char** argv) {
  if (argc != 7) return 2;
  const int rank = std::atoi(argv[1]);
  const int size = std::atoi(argv[2]);
  if (std::string_view(argv[3]) == "pinned") bench::pin_process_to_core(rank);
  bench::RankSocket socket(argv[6], rank);
  GlooWork work(rank, size, argv[4], argv[5]);
  bench::serve(socket, rank, size, work);
}
