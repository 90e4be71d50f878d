// SPDX-License-Identifier: Apache-2.0
//
// Many workers, in three groups of cases:
//   namespaces: sums over two hosts (network namespaces), at 1 Gbit/s and without a limit: ours
//               over gRPC against c10d's Gloo
//   overlap:    training on these two hosts, with gradients sent during backward or after it
//   training:   two worker processes of one machine against two replicas in one process
// The processes of each variant sleep while it is not their turn.
//
// bench_multi_worker --sums <rank> <socket> is a rank of ours in `namespaces`,
// bench_multi_worker --worker <rank> <address 0> <address 1> <full|smoke> <socket> a worker.

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tutti/group/connect.h"
#include "tutti/tutti.h"

#include "benchmarks/support/group_sum.h"
#include "benchmarks/support/harness.h"
#include "benchmarks/support/models.h"
#include "benchmarks/support/network.h"
#include "benchmarks/support/process_group.h"
#include "benchmarks/support/rank_loop.h"
#include "cli/local_cluster.h"

namespace {

using bench::Harness;
using bench::Model;
using bench::ProcessGroup;
using bench::Trainer;
using bench::TwoHosts;
using bench::Variant;

constexpr int kWorkers = 2;
constexpr char kSecret[] = "the secret of a benchmark";
constexpr char kSumsPort[] = ":4321";
constexpr char kWorkerPort[] = ":4322";

using Addresses = std::vector<std::string>;

// ---- a rank of `namespaces`

// Connects ranks as MultiWorkerMirroredStrategy connects workers on different machines.
class GrpcSums final : public bench::RankWork {
 public:
  GrpcSums(int rank, const Addresses& addresses, bench::RankSocket& socket) : tree_(kWorkers, 1) {
    tutti::GroupOptions options;
    options.rank = rank;
    options.names.assign(addresses.begin(), addresses.end());
    options.epoch = 1;
    options.gather = [&socket](const std::string& mine) {
      socket.send(mine);
      std::vector<std::string> texts;
      for (int r = 0; r < kWorkers; ++r) texts.push_back(socket.receive());
      return texts;
    };
    options.remote = tutti::make_remote_links(
        options,
        {.address = addresses[static_cast<size_t>(rank)], .security = {.job_secret = kSecret}});
    group_ = tutti::make_group(options);
    Harness::check(group_->options().has_remote, "the hosts share memory");
  }

  float* allocate(const std::string&, int64_t count) override {
    tensor_ = at::Tensor();
    tensor_ = group_->arena()->empty({count}, at::kFloat);
    return tensor_.data_ptr<float>();
  }

  void all_reduce(float* data, int64_t count) override {
    bench::sum_over_group(*group_, tree_, data, count);
  }

 private:
  tutti::WorkerTree tree_;
  std::shared_ptr<tutti::WorkerGroup> group_;
  at::Tensor tensor_;
};

Addresses addresses_of_hosts(const char* port) {
  return {TwoHosts::address(0) + port, TwoHosts::address(1) + port};
}

int run_sums(int rank, const std::string& path) {
  bench::RankSocket socket(path, rank);
  GrpcSums work(rank, addresses_of_hosts(kSumsPort), socket);
  bench::serve(socket, rank, kWorkers, work);
  return 0;
}

// ---- a worker that trains

// The rows of a replica's batch. Overlap helps most where computation takes as long as the network,
// so they are chosen for the machine; workers find it in their environment.
constexpr char kRowsVariable[] = "TUTTI_BENCH_ROWS";
constexpr int64_t kMostRows = 768;

int64_t overlap_rows() {
  const char* const text = std::getenv(kRowsVariable);
  return text != nullptr ? std::atoll(text) : kMostRows;
}

// 25 million parameters in many layers, so that gradients arrive throughout backward, or in two, so
// that most of backward is over when the first large one arrives.
std::vector<Model> overlap_models(bool smoke) {
  if (smoke) {
    return {{"deep", bench::layers(std::vector<int64_t>(5, 128)), {4, 128}, 128},
            {"wide", bench::layers({64, 128, 128, 10}), {4, 64}}};
  }
  const int64_t rows = overlap_rows();
  return {{"deep", bench::layers(std::vector<int64_t>(25, 1024)), {rows, 1024}, 1024},
          {"wide", bench::layers({2048, 4096, 4096, 10}), {rows, 2048}}};
}

Model find_model(const std::string& name, bool smoke) {
  for (const auto& list : {bench::models(smoke), overlap_models(smoke)}) {
    for (const Model& model : list) {
      if (model.name == name) return model;
    }
  }
  Harness::check(false, "there is no model " + name);
  return {};
}

std::string exactly(double value) {
  std::array<char, 32> text = {};
  std::snprintf(text.data(), text.size(), "%.17g", value);
  return text.data();
}

// Its kinds of work are steps of the model that was opened last: "<model>", "<model>:after", which
// leaves the sums of the gradients to step(), and "<model>:never", which omits them.
class TrainingTask final : public bench::RankTask {
 public:
  TrainingTask(int rank, const Addresses& addresses, bool smoke)
      : rank_(rank), smoke_(smoke), strategy_(join(rank, addresses)) {}

  // Trains `count` steps and answers with the first and the last loss.
  std::string open(const std::string& kind, int64_t count) override {
    trainer_.reset();
    trainer_.emplace(strategy_, find_model(kind, smoke_), rank_);
    // The time at which gradients are summed must not change a bit.
    struct Loop {
      Trainer& trainer;
      int64_t steps = 0;
      double step() {
        return trainer.step(++steps % 2 == 0 ? Trainer::Sums::kAfterBackward
                                             : Trainer::Sums::kDuringBackward);
      }
    };
    const bench::Losses losses = bench::losses_of(Loop{*trainer_}, count);
    return exactly(losses.first) + " " + exactly(losses.last);
  }

  void run(const std::string& kind) override {
    const std::string how = kind.substr(std::min(kind.size(), kind.find(':')));
    trainer_->step(how == ":after"   ? Trainer::Sums::kAfterBackward
                   : how == ":never" ? Trainer::Sums::kNever
                                     : Trainer::Sums::kDuringBackward);
  }

 private:
  static tutti::Strategy join(int rank, const Addresses& addresses) {
    const auto resolver = std::make_shared<tutti::SimpleClusterResolver>(
        tutti::ClusterSpec({{"worker", {addresses.begin(), addresses.end()}}}),
        tutti::SimpleClusterResolverOptions{.task_type = "worker", .task_id = rank});
    return tutti::MultiWorkerMirroredStrategy(
        resolver, {.security = {.job_secret = kSecret}, .runner = {.threads_per_replica = 1}});
  }

  const int rank_;
  const bool smoke_;
  tutti::Strategy strategy_;
  std::optional<Trainer> trainer_;
};

int run_worker(int rank, const Addresses& addresses, bool smoke, const std::string& path) {
  const tutti::TorchThreadsScope torch_threads(1);
  const tutti::BlasThreadsScope blas_threads(1);
  bench::RankSocket socket(path, rank);
  TrainingTask task(rank, addresses, smoke);
  bench::serve(socket, task);
  return 0;
}

// ---- the peers

// "/proc/self/exe" would be the program that changes the namespace.
std::string own_program() { return std::filesystem::read_symlink("/proc/self/exe").string(); }

std::unique_ptr<ProcessGroup> start_sums(const TwoHosts& hosts) {
  std::vector<ProcessGroup::Command> commands;
  for (int r = 0; r < kWorkers; ++r) {
    commands.push_back(hosts.on(r, {own_program(), "--sums", std::to_string(r)}));
  }
  return ProcessGroup::start("ours", kWorkers, commands);
}

// Unpinned threads of two ranks often end up on the same core, so Gloo is measured both "free", as
// ours is, and "pinned" to a core for each rank.
std::unique_ptr<ProcessGroup> start_gloo(const TwoHosts& hosts, const std::string& where) {
  const std::string program = bench::program_beside("bench_rank_gloo");
  if (program.empty()) return nullptr;
  const std::string store = bench::scratch_folder() + "/gloo_" + where;
  std::vector<ProcessGroup::Command> commands;
  for (int r = 0; r < kWorkers; ++r) {
    commands.push_back(hosts.on(r, {program, std::to_string(r), std::to_string(kWorkers), where,
                                    TwoHosts::address(r), store}));
  }
  return ProcessGroup::start("gloo_" + where, kWorkers, commands);
}

// Starts workers on two hosts or, without hosts, on this machine.
std::unique_ptr<ProcessGroup> start_workers(const Addresses& addresses, bool smoke,
                                            const TwoHosts* hosts) {
  std::vector<ProcessGroup::Command> commands;
  for (int r = 0; r < kWorkers; ++r) {
    ProcessGroup::Command command = {own_program(), "--worker",   std::to_string(r),
                                     addresses[0],  addresses[1], smoke ? "smoke" : "full"};
    if (hosts != nullptr) command = hosts->on(r, std::move(command));
    commands.push_back(std::move(command));
  }
  auto workers = ProcessGroup::start("workers", kWorkers, commands);
  Harness::check(workers != nullptr, "our workers did not start");
  return workers;
}

Variant of_group(std::string name, ProcessGroup& group, std::string kind, double target = 0) {
  Variant variant;
  variant.name = std::move(name);
  variant.run = [&group, kind = std::move(kind)](int64_t iterations) {
    return group.run(kind, iterations);
  };
  variant.target = target;
  return variant;
}

// ---- the same in one process

tutti::Strategy mirrored() {
  return tutti::MirroredStrategy({"CPU:0", "CPU:1"}, {.runner = {.threads_per_replica = 1}});
}

Variant in_one_process(Trainer& trainer, double target) {
  Variant variant;
  variant.name = "in_process";
  variant.run = [&trainer](int64_t iterations) {
    const tutti::TorchThreadsScope torch_threads(1);
    const tutti::BlasThreadsScope blas_threads(1);
    for (int64_t i = 0; i < bench::warm_up_steps(iterations); ++i) trainer.step();
    const double begin = bench::now_seconds();
    for (int64_t i = 0; i < iterations; ++i) trainer.step();
    return bench::now_seconds() - begin;
  };
  variant.target = target;
  return variant;
}

// Opens the model in the workers, whose losses must equal those of one process, bit by bit.
void open_checked(ProcessGroup& workers, const Model& model, Trainer& trainer, int64_t steps) {
  const tutti::TorchThreadsScope torch_threads(1);
  const tutti::BlasThreadsScope blas_threads(1);
  bench::Losses found;
  for (const std::string& answer : workers.answers_to_open(model.name, steps)) {
    std::istringstream words(answer);
    bench::Losses mine;
    words >> mine.first >> mine.last;
    found.first += mine.first;
    found.last += mine.last;
  }
  const bench::Losses expected = bench::losses_of(trainer, steps);
  Harness::check(found.first == expected.first && found.last == expected.last,
                 model.name + ": the workers' losses are " + exactly(found.first) + " and " +
                     exactly(found.last) + " instead of " + exactly(expected.first) + " and " +
                     exactly(expected.last));
  std::printf("info  multi_worker/%s loss of steps 1 and %ld: %f and %f, as in one process\n",
              model.name.c_str(), static_cast<long>(steps), found.first, found.last);
}

// ---- cases

struct Sums {
  std::string name;
  int64_t bytes;
  bool shaped;
  double target;
};

std::vector<Sums> sums_over_hosts(bool smoke) {
  std::vector<int64_t> sizes = {64 << 10, 1 << 20, 25 << 20, 100 << 20};
  if (smoke) sizes.resize(2);
  std::vector<Sums> cases;
  for (const bool shaped : {true, false}) {
    for (const int64_t bytes : sizes) {
      const std::string name = shaped ? "namespaces_shaped_" : "namespaces_unshaped_";
      const double target = shaped ? 0.9 : 0.8;
      cases.push_back(
          {name + bench::size_name(bytes), bytes, shaped, bytes < (1 << 20) ? 0 : target});
    }
  }
  return cases;
}

void compare_sums(Harness& harness, TwoHosts& hosts) {
  std::unique_ptr<ProcessGroup> ours;
  std::map<std::string, std::unique_ptr<ProcessGroup>> peers;
  for (const Sums& each : sums_over_hosts(harness.smoke())) {
    if (!harness.wants(each.name)) continue;
    if (ours == nullptr) {
      ours = start_sums(hosts);
      Harness::check(ours != nullptr, "our ranks did not start");
      peers["gloo"] = start_gloo(hosts, "free");
      peers["gloo_pinned"] = start_gloo(hosts, "pinned");
      std::erase_if(peers, [](const auto& peer) { return peer.second == nullptr; });
      if (peers.empty()) {
        std::printf("no peer gloo; `make install-bench-deps` installs it\n");
        return;
      }
    }
    hosts.set_shaped(each.shaped);
    ours->open("sum", each.bytes / 4);
    std::vector<Variant> variants = {of_group("ours", *ours, "sum")};
    for (const auto& [name, peer] : peers) {
      peer->open("sum", each.bytes / 4);
      variants.push_back(of_group(name, *peer, "sum", each.target));
    }
    harness.compare(each.name, variants);
  }
}

std::string overlap_name(const Model& model) { return "overlap_" + model.name; }

void choose_rows() {
  constexpr int64_t kTried = 96;
  constexpr double kNetworkSeconds = 0.85;  // for the gradients of 25 million parameters
  Model model = overlap_models(/*smoke=*/false)[0];
  model.shape[0] = kTried;
  Trainer trainer(mirrored(), model);
  trainer.step();
  const double begin = bench::now_seconds();
  trainer.step();
  const double seconds = bench::now_seconds() - begin;
  const auto rows = static_cast<int64_t>(kNetworkSeconds / seconds * kTried / 32) * 32;
  setenv(kRowsVariable, std::to_string(std::clamp(rows, int64_t{32}, kMostRows)).c_str(), 1);
  std::printf("overlap: batches of %s rows\n", std::getenv(kRowsVariable));
}

void overlap(Harness& harness, TwoHosts& hosts) {
  bool wanted = false;
  for (const Model& model : overlap_models(harness.smoke())) {
    wanted = wanted || harness.wants(overlap_name(model));
  }
  if (wanted && !harness.smoke()) choose_rows();
  std::unique_ptr<ProcessGroup> workers;
  for (const Model& model : overlap_models(harness.smoke())) {
    const std::string name = overlap_name(model);
    if (!harness.wants(name)) continue;
    hosts.set_shaped(true);
    if (workers == nullptr) {
      workers = start_workers(addresses_of_hosts(kWorkerPort), harness.smoke(), &hosts);
    }
    {
      Trainer trainer(mirrored(), model);
      open_checked(*workers, model, trainer, 3);
    }
    Variant alone = of_group("computation_alone", *workers, model.name + ":never");
    alone.is_limit = true;
    harness.compare(name, {of_group("ours", *workers, model.name),
                           of_group("after_backward", *workers, model.name + ":after",
                                    model.name == "deep" ? 1.25 : 0),
                           alone});
  }
}

void training(Harness& harness) {
  std::unique_ptr<ProcessGroup> workers;
  for (const Model& model : bench::models(harness.smoke())) {
    const std::string name = "training_" + model.name;
    if (!harness.wants(name)) continue;
    if (workers == nullptr)
      workers = start_workers(tutti::cli::free_addresses(kWorkers), harness.smoke(), nullptr);
    Trainer trainer(mirrored(), model);
    open_checked(*workers, model, trainer, bench::kCheckedSteps);
    harness.compare(name, {of_group("ours", *workers, model.name),
                           in_one_process(trainer, /*target=*/1 / 1.1)});
  }
}

// Cases that need hosts are skipped if there are none.
void cases_on_hosts(Harness& harness) {
  bool wanted = false;
  for (const Sums& each : sums_over_hosts(harness.smoke())) {
    wanted = wanted || harness.wants(each.name);
  }
  for (const Model& model : overlap_models(harness.smoke())) {
    wanted = wanted || harness.wants(overlap_name(model));
  }
  if (!wanted) return;
  const std::unique_ptr<TwoHosts> hosts = TwoHosts::make();
  if (hosts == nullptr) {
    std::printf("the cases `namespaces` and `overlap` are skipped\n");
    return;
  }
  compare_sums(harness, *hosts);
  overlap(harness, *hosts);
}

}  // namespace

int main(int argc, char** argv) {
  tutti::set_log_level(tutti::LogLevel::kWarning);
  if (argc == 4 && std::strcmp(argv[1], "--sums") == 0) {
    return run_sums(std::atoi(argv[2]), argv[3]);
  }
  if (argc == 7 && std::strcmp(argv[1], "--worker") == 0) {
    return run_worker(std::atoi(argv[2]), {argv[3], argv[4]}, std::strcmp(argv[5], "smoke") == 0,
                      argv[6]);
  }
  tutti::set_logical_cpu_devices(kWorkers);
  Harness harness("multi_worker", argc, argv);
  cases_on_hosts(harness);
  training(harness);
}
