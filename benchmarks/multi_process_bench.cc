// SPDX-License-Identifier: Apache-2.0
//
// Sums of float32 over the processes of one machine, 4 B to 100 MB, 2 and 4 processes: ours against
// c10d's Gloo, OpenMPI and MPICH, where they are installed. Every peer has its own processes, each
// pinned to a core; the peers take turns.
//
// bench_multi_process --rank <rank> <size> <socket> is one of our processes.

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "tutti/base/log.h"
#include "tutti/device/cpu_threads.h"
#include "tutti/group/connect.h"

#include "benchmarks/support/group_sum.h"
#include "benchmarks/support/harness.h"
#include "benchmarks/support/process_group.h"
#include "benchmarks/support/rank_loop.h"

namespace {

using bench::ProcessGroup;
using bench::Variant;

// ---- a rank

class TuttiWork final : public bench::RankWork {
 public:
  TuttiWork(int rank, int size, bench::RankSocket& socket) : tree_(size, 1) {
    tutti::GroupOptions options;
    options.rank = rank;
    for (int r = 0; r < size; ++r) options.names.push_back("rank " + std::to_string(r));
    options.epoch = 1;
    options.gather = [&socket, size](const std::string& mine) {
      socket.send(mine);
      std::vector<std::string> texts;
      for (int r = 0; r < size; ++r) texts.push_back(socket.receive());
      return texts;
    };
    group_ = tutti::make_group(options);
  }

  // "private" is memory of the process, "arena" is memory that the others can read.
  float* allocate(const std::string& kind, int64_t count) override {
    at::Tensor& tensor = tensors_[kind];
    tensor = at::Tensor();
    tensor = kind == "arena" ? group_->arena()->empty({count}, at::kFloat)
                             : at::empty({count}, at::kFloat);
    return tensor.data_ptr<float>();
  }

  void all_reduce(float* data, int64_t count) override {
    bench::sum_over_group(*group_, tree_, data, count);
  }

 private:
  tutti::WorkerTree tree_;
  std::shared_ptr<tutti::WorkerGroup> group_;
  std::map<std::string, at::Tensor> tensors_;
};

int run_rank(int rank, int size, const std::string& path) {
  tutti::set_log_level(tutti::LogLevel::kWarning);
  bench::RankSocket socket(path, rank);
  // The group counts the cores of the machine, so it is made before this rank is pinned to one.
  TuttiWork work(rank, size, socket);
  bench::pin_process_to_core(rank);
  bench::serve(socket, rank, size, work);
  return 0;
}

// ---- the peers

std::unique_ptr<ProcessGroup> start_each(const std::string& name, int size,
                                         const std::vector<std::string>& program,
                                         const std::vector<std::string>& more) {
  std::vector<ProcessGroup::Command> commands;
  for (int r = 0; r < size; ++r) {
    ProcessGroup::Command command = program;
    command.push_back(std::to_string(r));
    command.push_back(std::to_string(size));
    command.insert(command.end(), more.begin(), more.end());
    commands.push_back(std::move(command));
  }
  return ProcessGroup::start(name, size, commands);
}

// Its ranks have several threads each, so it is measured both "pinned", as all others, and "free".
std::unique_ptr<ProcessGroup> start_gloo(const std::string& name, const std::string& where,
                                         int size) {
  const std::string program = bench::program_beside("bench_rank_gloo");
  if (program.empty()) return nullptr;
  const std::string store = bench::scratch_folder() + "/" + name + std::to_string(size);
  return start_each(name, size, {program}, {where, "127.0.0.1", store});
}

std::unique_ptr<ProcessGroup> start_openmpi(int size) {
  const std::string program = bench::program_beside("bench_rank_openmpi");
  if (program.empty()) return nullptr;
  // Ranks pin themselves. OpenMPI yields when there are more ranks than cores.
  const bool crowded = size > tutti::usable_cores();
  ProcessGroup::Command command = {
      "mpirun.openmpi", "--oversubscribe",     "--bind-to",        "none",
      "--mca",          "mpi_yield_when_idle", crowded ? "1" : "0"};
  if (geteuid() == 0) command.push_back("--allow-run-as-root");
  for (const std::string& each : {std::string("-n"), std::to_string(size), program}) {
    command.push_back(each);
  }
  return ProcessGroup::start("openmpi", size, {command});
}

std::unique_ptr<ProcessGroup> start_mpich(int size) {
  const std::string program = bench::program_beside("bench_rank_mpich");
  if (program.empty()) return nullptr;
  return ProcessGroup::start("mpich", size,
                             {{"mpiexec.mpich", "-n", std::to_string(size), program}});
}

struct Peer {
  std::string name;
  std::unique_ptr<ProcessGroup> group;
};

std::vector<Peer> start_peers(int size) {
  std::vector<Peer> peers;
  peers.push_back({"gloo", start_gloo("gloo", "pinned", size)});
  peers.push_back({"gloo_free", start_gloo("gloo_free", "free", size)});
  peers.push_back({"openmpi", start_openmpi(size)});
  peers.push_back({"mpich", start_mpich(size)});
  for (const Peer& peer : peers) {
    if (peer.group == nullptr) {
      std::printf("no peer %s; `make install-bench-deps` installs it\n", peer.name.c_str());
    }
  }
  std::erase_if(peers, [](const Peer& peer) { return peer.group == nullptr; });
  return peers;
}

// ---- targets

double target(const std::string& peer, const std::string& kind, int size, int64_t bytes) {
  const bool gloo = peer == "gloo" || peer == "gloo_free";
  if (size > tutti::usable_cores()) return gloo ? 5 : 0;
  if (gloo) {
    if (bytes <= 4 << 10) return 100;
    if (bytes <= 64 << 10) return 30;
    if (bytes <= 1 << 20) return kind == "arena" ? 30 : 10;
    return kind == "arena" ? 6 : 4;
  }
  if (peer == "openmpi") {
    if (bytes <= 64 << 10) return 1;
    return bytes <= 25 << 20 ? 1.3 : 3;
  }
  return 0;
}

// ---- cases

constexpr std::array<const char*, 2> kKinds = {"private", "arena"};  // ours

struct Row {
  std::string name;
  std::vector<Variant> variants;  // ours, then peers
  bench::Comparison result;
};

Row measure(bench::Harness& harness, const std::string& name, int size, int64_t bytes,
            ProcessGroup& ours, const std::vector<Peer>& peers) {
  Row row;
  row.name = name;
  const auto add = [&](const std::string& variant, ProcessGroup& group, const std::string& kind) {
    group.open(kind, bytes / 4);
    row.variants.push_back(
        {variant, [&group, kind](int64_t iterations) { return group.run(kind, iterations); }});
  };
  for (const char* kind : kKinds) add(kind, ours, kind);
  for (const Peer& peer : peers) {
    add(peer.name, *peer.group, "private");
    row.variants.back().target = target(peer.name, kKinds[0], size, bytes);
    row.variants.back().more_targets = {target(peer.name, kKinds[1], size, bytes)};
  }
  row.result = harness.compare(name, row.variants, kKinds.size());
  return row;
}

void print_table(const std::vector<Row>& rows) {
  std::printf("\n%-9s", "us");
  for (const Variant& each : rows[0].variants) std::printf(" %11s", each.name.c_str());
  std::printf("   ratios (targets), ! if missed\n");
  for (const Row& row : rows) {
    std::printf("%-9s", row.name.c_str());
    for (size_t v = 0; v < row.variants.size(); ++v) {
      std::printf(" %11.2f", row.result.typical(v) * 1e6);
    }
    for (size_t o = 0; o < kKinds.size(); ++o) {
      std::printf("  %s:", kKinds[o]);
      for (size_t v = kKinds.size(); v < row.variants.size(); ++v) {
        const Variant& peer = row.variants[v];
        const double ratio = row.result.ratio(v, o);
        const double goal = o == 0 ? peer.target : peer.more_targets[0];
        std::printf(" %s %.2f", peer.name.c_str(), ratio);
        if (goal > 0) std::printf(" (%g)%s", goal, ratio < goal ? "!" : "");
      }
    }
    std::printf("%s\n", row.result.noisy ? "  noisy: best times" : "");
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 5 && std::strcmp(argv[1], "--rank") == 0) {
    return run_rank(std::atoi(argv[2]), std::atoi(argv[3]), argv[4]);
  }
  bench::Harness harness("multi_process", argc, argv);
  std::vector<int64_t> sizes = {4, 4 << 10, 64 << 10, 1 << 20, 25 << 20, 100 << 20};
  if (harness.smoke()) sizes = {4, 64 << 10, 1 << 20};
  for (const int size : {2, 4}) {
    std::vector<std::pair<std::string, int64_t>> cases;
    for (const int64_t bytes : sizes) {
      const std::string name = std::to_string(size) + "x" + bench::size_name(bytes);
      if (harness.wants(name)) cases.emplace_back(name, bytes);
    }
    if (cases.empty()) continue;
    const std::unique_ptr<ProcessGroup> ours =
        start_each("ours", size, {"/proc/self/exe", "--rank"}, {});
    bench::Harness::check(ours != nullptr, "our processes did not start");
    const std::vector<Peer> peers = start_peers(size);
    std::vector<Row> rows;
    for (const auto& [name, bytes] : cases) {
      rows.push_back(measure(harness, name, size, bytes, *ours, peers));
    }
    print_table(rows);
  }
}
