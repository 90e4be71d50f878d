// SPDX-License-Identifier: Apache-2.0
//
// Input pipelines against LibTorch's DataLoader, Python's (if it is installed) and limit
// programs written by hand: shuffled records in memory, per-record functions, TFRecord files,
// a slow function on threads, a slow loader behind a slow step, and memory over many epochs.

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <torch/data.h>

#include "tutti/base/crc32c.h"
#include "tutti/data/dataset.h"
#include "tutti/data/files.h"
#include "tutti/device/cpu_threads.h"
#include "tutti/files/tf_record_file.h"
#include "tutti/tutti.h"

#include "benchmarks/support/harness.h"
#include "benchmarks/support/python_peer.h"

namespace {

namespace data = tutti::data;
using bench::Harness;
using bench::Variant;

constexpr int64_t kColumns = 100;
constexpr int64_t kBatch = 256;

// Makes a variant of one epoch; epoch() returns a checksum, so that nothing is optimised away.
template <class Epoch>
Variant variant(std::string name, Epoch epoch, bool is_limit = false) {
  return {std::move(name),
          [epoch](int64_t iterations) {
            const double begin = bench::now_seconds();
            for (int64_t i = 0; i < iterations; ++i) epoch();
            return bench::now_seconds() - begin;
          },
          is_limit};
}

// This variant is not run: it takes exactly this long.
Variant ideal(double seconds) {
  return {"ideal",
          [seconds](int64_t iterations) { return seconds * static_cast<double>(iterations); },
          /*is_limit=*/true};
}

void check_equal(double found, double expected, const std::string& name) {
  Harness::check(
      std::abs(found - expected) <= 1e-6 * std::abs(expected),
      name + ": wrong sum: " + std::to_string(found) + " instead of " + std::to_string(expected));
}

// Sums the first column: cheap, but wrong when a record is missing or duplicated.
double first_column(const at::Tensor& batch) {
  const float* const values = batch.data_ptr<float>();
  double sum = 0;
  for (int64_t row = 0; row < batch.size(0); ++row) sum += values[row * kColumns];
  return sum;
}

at::Tensor make_records(int64_t rows) {
  at::Tensor records = at::empty({rows, kColumns});
  float* const values = records.data_ptr<float>();
  for (int64_t i = 0; i < rows * kColumns; ++i) values[i] = static_cast<float>(i / kColumns % 1009);
  return records;
}

// ---- shuffled records in memory

struct GatheredRows : torch::data::datasets::BatchDataset<GatheredRows, at::Tensor> {
  explicit GatheredRows(at::Tensor from) : rows(std::move(from)) {}
  at::Tensor get_batch(c10::ArrayRef<size_t> indices) override {
    return at::index_select(rows, 0,
                            at::from_blob(const_cast<size_t*>(indices.data()),
                                          {static_cast<int64_t>(indices.size())}, at::kLong));
  }
  c10::optional<size_t> size() const override { return static_cast<size_t>(rows.size(0)); }

  at::Tensor rows;
};

double limit_shuffled(const at::Tensor& records) {
  const auto rows = static_cast<uint64_t>(records.size(0));
  std::vector<uint64_t> order(rows);
  std::iota(order.begin(), order.end(), uint64_t{0});
  static uint64_t state = 1;
  for (uint64_t i = rows; i > 1; --i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    std::swap(order[i - 1],
              order[static_cast<uint64_t>((static_cast<__uint128_t>(state) * i) >> 64)]);
  }
  const float* const from = records.data_ptr<float>();
  double sum = 0;
  for (uint64_t begin = 0; begin < rows; begin += kBatch) {
    const uint64_t size = std::min<uint64_t>(kBatch, rows - begin);
    const at::Tensor batch = at::empty({static_cast<int64_t>(size), kColumns});
    float* const to = batch.data_ptr<float>();
    for (uint64_t i = 0; i < size; ++i) {
      std::memcpy(to + i * kColumns, from + order[begin + i] * kColumns, kColumns * sizeof(float));
    }
    sum += first_column(batch);
  }
  return sum;
}

void shuffled(Harness& harness, const bench::PythonPeer& python) {
  if (!harness.wants("shuffled")) return;
  const int64_t rows = harness.smoke() ? 2000 : 1'000'000;
  const at::Tensor records = make_records(rows);
  const auto dataset = data::from_tensor_slices(records).shuffle(rows).batch(kBatch);
  const auto ours = [&] {
    double sum = 0;
    for (const at::Tensor& batch : dataset) sum += first_column(batch);
    return sum;
  };
  auto loader = torch::data::make_data_loader<torch::data::samplers::RandomSampler>(
      GatheredRows(records), torch::data::DataLoaderOptions().batch_size(kBatch));
  const auto libtorch = [&] {
    double sum = 0;
    for (const at::Tensor& batch : *loader) sum += first_column(batch);
    return sum;
  };
  const auto by_hand = [&] { return limit_shuffled(records); };
  const double expected = by_hand();
  check_equal(ours(), expected, "shuffled");
  check_equal(libtorch(), expected, "shuffled by LibTorch");
  std::vector<Variant> variants = {variant("ours", ours), variant("by_hand", by_hand, true),
                                   variant("libtorch_get_batch", libtorch)};
  python.add("shuffled", rows, variants);
  harness.compare("shuffled", variants);
}

// ---- per-record functions

// Measures the cost of the pipeline itself.
at::Tensor nothing(const at::Tensor& record) { return record; }

at::Tensor by_operators(const at::Tensor& record) { return record * 2 + 1; }

at::Tensor by_loop(const at::Tensor& record) {
  at::Tensor result = at::empty({kColumns});
  const float* const from = record.data_ptr<float>();
  float* const to = result.data_ptr<float>();
  for (int64_t i = 0; i < kColumns; ++i) to[i] = from[i] * 2 + 1;
  return result;
}

void per_record(Harness& harness, const std::string& name, at::Tensor (*fn)(const at::Tensor&),
                int threads, const bench::PythonPeer* python) {
  if (!harness.wants(name)) return;
  namespace loading = torch::data;
  const int64_t rows = harness.smoke() ? 1000 : 20'000;
  const at::Tensor records = make_records(rows);
  const auto dataset =
      data::from_tensor_slices(records).map(fn, {.num_parallel_calls = threads}).batch(kBatch);
  const auto ours = [&] {
    double sum = 0;
    for (const at::Tensor& batch : dataset) sum += first_column(batch);
    return sum;
  };
  auto loader = loading::make_data_loader<loading::samplers::SequentialSampler>(
      loading::datasets::TensorDataset(records)
          .map(loading::transforms::Lambda<loading::TensorExample>(
              [fn](loading::TensorExample example) {
                return loading::TensorExample(fn(example.data));
              }))
          .map(loading::transforms::Stack<loading::TensorExample>()),
      loading::DataLoaderOptions().batch_size(kBatch).workers(static_cast<size_t>(threads)));
  const auto libtorch = [&] {
    double sum = 0;
    for (const auto& batch : *loader) sum += first_column(batch.data);
    return sum;
  };
  double expected = 0;
  for (int64_t row = 0; row < rows; ++row) expected += fn(records[row])[0].item<double>();
  check_equal(ours(), expected, name);
  check_equal(libtorch(), expected, name + " by LibTorch");
  std::vector<Variant> variants = {variant("ours", ours), variant("libtorch", libtorch)};
  if (python != nullptr) {
    python->add(threads == 0 ? "per_record" : "per_record_" + std::to_string(threads), rows,
                variants);
  }
  harness.compare(name, variants);
}

// A record that is not a tensor: LibTorch's examples must be tensors to be stacked.
struct MadeNumbers : torch::data::Dataset<MadeNumbers, torch::data::TensorExample> {
  explicit MadeNumbers(size_t count) : count_(count) {}
  torch::data::TensorExample get(size_t index) override {
    return at::scalar_tensor(static_cast<double>(index) * 2 + 1, at::kFloat);
  }
  c10::optional<size_t> size() const override { return count_; }

 private:
  size_t count_;
};

void per_number(Harness& harness) {
  if (!harness.wants("per_record_numbers")) return;
  const int64_t rows = harness.smoke() ? 1000 : 100'000;
  const auto dataset =
      data::range(rows).map([](int64_t i) { return static_cast<float>(i) * 2 + 1; }).batch(kBatch);
  const auto ours = [&] {
    double sum = 0;
    for (const at::Tensor& batch : dataset) sum += batch.data_ptr<float>()[batch.size(0) - 1];
    return sum;
  };
  auto loader = torch::data::make_data_loader<torch::data::samplers::SequentialSampler>(
      MadeNumbers(static_cast<size_t>(rows))
          .map(torch::data::transforms::Stack<torch::data::TensorExample>()),
      torch::data::DataLoaderOptions().batch_size(kBatch));
  const auto libtorch = [&] {
    double sum = 0;
    for (const auto& batch : *loader) sum += batch.data.data_ptr<float>()[batch.data.size(0) - 1];
    return sum;
  };
  check_equal(ours(), libtorch(), "per_record_numbers");
  harness.compare("per_record_numbers", {variant("ours", ours), variant("libtorch", libtorch)});
}

// ---- TFRecord files in the page cache

class TemporaryFile {
 public:
  TemporaryFile()
      : path_((std::filesystem::temp_directory_path() /
               ("tutti_bench_data_" + std::to_string(getpid()) + ".tfrecord"))
                  .string()) {}
  ~TemporaryFile() { std::filesystem::remove(path_); }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

void write_records(const std::string& path, int64_t records, size_t size) {
  data::TfRecordWriter writer(path);
  std::string record(size, '\0');
  for (size_t i = 0; i < size; ++i) record[i] = static_cast<char>(i * 7);
  for (int64_t r = 0; r < records; ++r) {
    record[0] = static_cast<char>(r);
    writer.write(record);
  }
  writer.close();
}

// Reads into one buffer, checks both checksums of each record, copies it into a string.
double limit_tf_record(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  static std::vector<char> buffer(1 << 18);
  double sum = 0;
  size_t begin = 0, end = 0;
  while (true) {
    const ssize_t count = read(file, buffer.data() + end, buffer.size() - end);
    if (count <= 0) break;
    end += static_cast<size_t>(count);
    while (end - begin >= 16) {
      const char* const at = buffer.data() + begin;
      uint64_t length = 0;
      uint32_t length_crc = 0, data_crc = 0;
      std::memcpy(&length, at, 8);
      if (end - begin < 16 + length) break;
      std::memcpy(&length_crc, at + 8, 4);
      std::memcpy(&data_crc, at + 12 + length, 4);
      Harness::check(tutti::mask_crc32c(tutti::crc32c(at, 8)) == length_crc &&
                         tutti::mask_crc32c(tutti::crc32c(at + 12, length)) == data_crc,
                     "a record is damaged");
      const std::string record(at + 12, length);
      sum += record[0] + record.back();
      begin += 16 + length;
    }
    std::memmove(buffer.data(), buffer.data() + begin, end - begin);
    end -= begin;
    begin = 0;
  }
  close(file);
  return sum;
}

void tf_record(Harness& harness, int64_t records, size_t size) {
  const std::string name = "tf_record_" + bench::size_name(static_cast<int64_t>(size));
  if (!harness.wants(name)) return;
  const TemporaryFile file;
  write_records(file.path(), harness.smoke() ? 20 : records, size);
  const auto dataset = data::tf_record(file.path());
  const auto ours = [&] {
    double sum = 0;
    for (const std::string& record : dataset) sum += record[0] + record.back();
    return sum;
  };
  const auto by_hand = [&] { return limit_tf_record(file.path()); };
  check_equal(ours(), by_hand(), name);
  harness.compare(name, {variant("ours", ours), variant("by_hand", by_hand, true)});
}

// ---- a function of 100 microseconds on threads

constexpr std::chrono::microseconds kCall{100};

// Counts CPU time, so that an interrupted thread does as much work.
int64_t spin(int64_t value) {
  const auto spent = [] {
    timespec time{};
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
    return time.tv_sec * 1'000'000'000 + time.tv_nsec;
  };
  const int64_t end = spent() + std::chrono::nanoseconds(kCall).count();
  while (spent() < end) {
  }
  return value;
}

int64_t wait(int64_t value) {
  std::this_thread::sleep_for(kCall);
  return value;
}

void parallel_map(Harness& harness, const std::string& name, int64_t (*fn)(int64_t), int threads,
                  bool ordered) {
  if (!harness.wants(name)) return;
  const int64_t calls = harness.smoke() ? 16 : 400 * threads;
  const auto dataset =
      data::range(calls).map(fn, {.num_parallel_calls = threads, .ordered = ordered});
  const auto ours = [&] {
    double sum = 0;
    for (const int64_t value : dataset) sum += static_cast<double>(value);
    return sum;
  };
  // Threads that share a counter and pass nothing on show what this machine's clock and
  // scheduler leave of the ideal.
  const auto by_hand = [&] {
    std::atomic<int64_t> next{0};
    std::vector<std::thread> workers;
    for (int t = 0; t < threads; ++t) {
      workers.emplace_back([&] {
        while (next.fetch_add(1) < calls) fn(0);
      });
    }
    for (std::thread& worker : workers) worker.join();
  };
  check_equal(ours(), static_cast<double>(calls * (calls - 1) / 2), name);
  const double seconds = std::chrono::duration<double>(kCall).count();
  harness.compare(name, {variant("ours", ours), variant("by_hand", by_hand, true),
                         ideal(seconds * static_cast<double>(calls) / threads)});
}

// ---- a loader of 5 ms behind a step of 10 ms

void prefetch(Harness& harness) {
  if (!harness.wants("prefetch")) return;
  const int64_t steps = harness.smoke() ? 2 : 25;
  const auto loads = [](int64_t step) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    return step;
  };
  const auto train = [] { std::this_thread::sleep_for(std::chrono::milliseconds(10)); };
  const auto source = data::range(steps).map(loads);
  const auto epoch = [&](const data::Dataset<int64_t>& dataset) {
    for ([[maybe_unused]] const int64_t step : dataset) train();
  };
  const auto dataset = source.prefetch(2);
  // The first load cannot be hidden.
  harness.compare("prefetch", {variant("ours", [&] { epoch(dataset); }),
                               variant("no_prefetch", [&] { epoch(source); }),
                               ideal(5e-3 + 10e-3 * static_cast<double>(steps))});
}

// ---- resident memory from epoch 10 to epoch 100

double resident_bytes() {
  std::ifstream file("/proc/self/statm");
  double total = 0, resident = 0;
  file >> total >> resident;
  return resident * static_cast<double>(sysconf(_SC_PAGESIZE));
}

template <class Epoch>
void memory(const Harness& harness, const std::string& name, const Epoch& epoch) {
  if (!harness.wants(name)) return;
  const int epochs = harness.smoke() ? 2 : 100;
  double early = resident_bytes();
  for (int i = 1; i <= epochs; ++i) {
    epoch();
    if (i == 10) early = resident_bytes();
  }
  const double late = resident_bytes();
  std::printf("ratio data/%s/epoch_10 %.4f  (resident %.2f MB after epoch %d, epoch_10 %.2f MB)\n",
              name.c_str(), early / late, late / 1e6, epochs, early / 1e6);
}

void memories(const Harness& harness) {
  const at::Tensor records = make_records(20'000);
  const auto in_memory = data::from_tensor_slices(records)
                             .shuffle(20'000)
                             .map(by_loop, {.num_parallel_calls = 2})
                             .batch(kBatch)
                             .prefetch(2);
  memory(harness, "memory_slices", [&] {
    for (const at::Tensor& batch : in_memory) first_column(batch);
  });
  const TemporaryFile file;
  write_records(file.path(), 20'000, 400);
  const auto from_file = data::tf_record(file.path()).shuffle(1000).batch(kBatch).prefetch(2);
  memory(harness, "memory_tf_record", [&] {
    size_t bytes = 0;
    for (const std::vector<std::string>& batch : from_file) bytes += batch[0].size();
    Harness::check(bytes > 0, "no records");
  });
}

}  // namespace

int main(int argc, char** argv) {
  Harness harness("data", argc, argv);
  tutti::set_log_level(tutti::LogLevel::kWarning);
  const bench::PythonPeer python("data_bench.py", harness.smoke());
  memories(harness);  // first: the other cases leave memory behind
  shuffled(harness, python);
  for (const int threads : {0, 2}) {
    const std::string suffix = threads == 0 ? "" : "_on_2_threads";
    per_record(harness, "per_record_nothing" + suffix, nothing, threads, nullptr);
    per_record(harness, "per_record_loop" + suffix, by_loop, threads, nullptr);
    per_record(harness, "per_record_operators" + suffix, by_operators, threads, &python);
  }
  per_number(harness);
  tf_record(harness, 200'000, 400);
  tf_record(harness, 1000, 100 << 10);
  const int cores = tutti::usable_cores();
  parallel_map(harness, "parallel_map_spin", spin, cores, true);
  parallel_map(harness, "parallel_map_spin_unordered", spin, cores, false);
  parallel_map(harness, "parallel_map_sleep", wait, 8, true);
  prefetch(harness);
}
