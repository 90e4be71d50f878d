// SPDX-License-Identifier: Apache-2.0
//
// mpi_rank <socket>: a rank of MPI, started by mpirun, for bench_multi_process. Built once for each
// implementation of MPI.

// Only the functions of C: the classes for C++ would need another library.
#define OMPI_SKIP_MPICXX   // NOLINT(readability-identifier-naming)
#define MPICH_SKIP_MPICXX  // NOLINT(readability-identifier-naming)
#include <mpi.h>

#include <memory>

#include "benchmarks/support/rank_loop.h"

namespace {

class MpiWork final : public bench::RankWork {
 public:
  float* allocate(const std::string&, int64_t count) override {
    memory_.reset();
    memory_ = std::make_unique<float[]>(static_cast<size_t>(count));
    return memory_.get();
  }

  void all_reduce(float* data, int64_t count) override {
    MPI_Allreduce(MPI_IN_PLACE, data, static_cast<int>(count), MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }

 private:
  std::unique_ptr<float[]> memory_;
};

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  bench::pin_process_to_core(rank);
  {
    bench::RankSocket socket(argv[argc - 1], rank);
    MpiWork work;
    bench::serve(socket, rank, size, work);
  }
  MPI_Finalize();
}
