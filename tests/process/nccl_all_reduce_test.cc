// SPDX-License-Identifier: Apache-2.0

#include "tutti/collectives/nccl/nccl_all_reduce.h"

#include <cstdlib>
#include <latch>
#include <set>
#include <thread>

#include <gtest/gtest.h>

#include "tutti/strategy/mirrored_strategy.h"

#include "tests/support/eventually.h"
#include "tests/support/expect_error.h"
#include "tests/support/log_capture.h"
#include "tests/support/nccl_fixture.h"
#include "tests/support/tree_reference.h"

namespace tutti {
namespace {

using namespace test;
using nccl_standin::Call;

constexpr at::ScalarType kNcclDtypes[] = {at::kFloat, at::kDouble, at::kHalf, at::kBFloat16,
                                          at::kLong};

bool is_integer_mean(ReduceOp op, at::ScalarType dtype) {
  return op == ReduceOp::kMean && dtype == at::kLong;
}

// Element by element, from the definition of the tree.
at::Tensor expected_tensor(ReduceOp op, const TensorGrid& inputs, size_t t) {
  const at::Tensor& first = inputs[0][t];
  if (is_integer_mean(op, first.scalar_type())) {
    at::Tensor result = at::empty(first.sizes(), at::kDouble);
    for (int64_t i = 0; i < first.numel(); ++i) {
      uint64_t sum = 0;  // wraps, as int64 does
      for (const auto& row : inputs) sum += static_cast<uint64_t>(row[t].data_ptr<int64_t>()[i]);
      result.data_ptr<double>()[i] =
          static_cast<double>(static_cast<int64_t>(sum)) / static_cast<double>(inputs.size());
    }
    return result;
  }
  at::Tensor result = at::empty_like(first);
  with_type(first.scalar_type(), [&]<class T>() {
    for (int64_t i = 0; i < first.numel(); ++i) {
      result.data_ptr<T>()[i] = expected_reduction<T>(
          op, inputs.size(), [&](size_t r) { return inputs[r][t].data_ptr<T>()[i]; });
    }
  });
  return result;
}

TensorGrid outputs_for(ReduceOp op, const TensorGrid& inputs) {
  TensorGrid outputs = empty_like(inputs);
  for (auto& row : outputs) {
    for (at::Tensor& each : row) {
      if (is_integer_mean(op, each.scalar_type())) each = each.to(at::kDouble);
    }
  }
  return outputs;
}

void expect_reduced(ReduceOp op, const TensorGrid& inputs, const TensorGrid& outputs) {
  for (size_t t = 0; t < inputs[0].size(); ++t) {
    const at::Tensor expected = expected_tensor(op, inputs, t);
    for (size_t r = 0; r < inputs.size(); ++r) {
      EXPECT_TRUE(bit_equal(outputs[r][t], expected)) << "tensor " << t << " of replica " << r;
    }
  }
}

void expect_all_right(size_t replicas, bool threads) {
  for (const at::ScalarType dtype : kNcclDtypes) {
    const TensorGrid inputs = random_grid(replicas, {7, 1, 0, 64, 13, 2}, dtype, replicas);
    for (const ReduceOp op : kAllOps) {
      for (const int num_packs : {0, 1, 3}) {
        SCOPED_TRACE(message(replicas, " replicas, ", dtype, ", ", op, ", ", num_packs, " packs",
                             threads ? ", threads" : ""));
        NcclAllReduce ops(num_packs, standin_seams());
        TensorGrid given = inputs;
        TensorGrid outputs = outputs_for(op, inputs);
        all_reduce_as(threads, ops, op, given, outputs);
        expect_reduced(op, inputs, outputs);
      }
    }
  }
  expect_no_violations();
}

TEST(NcclAllReduce, HasTheBitsOfTheTreeWithAThreadForEachReplica) {
  for (const size_t replicas : {2, 3, 4}) expect_all_right(replicas, /*threads=*/true);
}

TEST(NcclAllReduce, HasTheBitsOfTheTreeWithOneThreadForAll) {
  for (const size_t replicas : {2, 3, 4}) expect_all_right(replicas, /*threads=*/false);
}

TEST(NcclAllReduce, ReducesInPlaceAndTensorsOfSeveralDtypes) {
  for (const bool threads : {false, true}) {
    for (const int num_packs : {0, 1, 2, 5}) {
      TensorGrid tensors = random_grid(3, {5, 11}, at::kFloat);
      const TensorGrid halves = random_grid(3, {9}, at::kHalf, 2);
      const TensorGrid more = random_grid(3, {2}, at::kFloat, 3);
      TensorGrid before(3);
      for (size_t r = 0; r < 3; ++r) {
        tensors[r].push_back(halves[r][0]);
        tensors[r].push_back(at::empty({0}, at::kDouble));
        tensors[r].push_back(more[r][0]);
        tensors[r].push_back(more[r][0].clone().reshape({2, 1}));
        for (const at::Tensor& each : tensors[r]) before[r].push_back(each.clone());
      }
      NcclAllReduce ops(num_packs, standin_seams());
      all_reduce_as(threads, ops, ReduceOp::kSum, tensors, tensors);
      expect_reduced(ReduceOp::kSum, before, tensors);
    }
  }
  expect_no_violations();
}

// The calls a rank must make for one pack of `chunk` bytes for each replica.
void expect_pack_calls(const std::vector<Call>& calls, size_t& at, int rank, int replicas,
                       size_t chunk) {
  for (int peer = 0; peer < replicas; ++peer) {
    for (const char* function : {"ncclSend", "ncclRecv"}) {
      ASSERT_LT(at, calls.size());
      EXPECT_EQ(calls[at].function, function);
      EXPECT_EQ(calls[at].rank, rank);
      EXPECT_EQ(calls[at].device, rank);
      EXPECT_EQ(calls[at].peer, peer);
      EXPECT_EQ(calls[at].bytes, chunk);
      EXPECT_EQ(calls[at].stream, nullptr);
      ++at;
    }
  }
}

TEST(NcclAllReduce, OneThreadIssuesTheCallsOfAllDevicesInOneGroup) {
  NcclAllReduce ops(1, standin_seams());
  TensorGrid tensors = random_grid(2, {5}, at::kFloat);
  all_reduce(ops, ReduceOp::kSum, tensors, tensors);
  const std::vector<Call> calls = nccl_standin::calls();
  ASSERT_EQ(calls.size(), 15u);
  EXPECT_EQ(calls[0].function, "ncclCommInitAll");
  EXPECT_EQ(calls[1].function, "ncclGroupStart");
  size_t at = 2;
  for (const int rank : {0, 1}) expect_pack_calls(calls, at, rank, 2, 3 * sizeof(float));
  EXPECT_EQ(calls[10].function, "ncclGroupEnd");
  EXPECT_EQ(calls[11].function, "ncclGroupStart");
  for (const int rank : {0, 1}) {
    const Call& gather = calls[12 + static_cast<size_t>(rank)];
    EXPECT_EQ(gather.function, "ncclAllGather");
    EXPECT_EQ(gather.rank, rank);
    EXPECT_EQ(gather.bytes, 3 * sizeof(float));
  }
  EXPECT_EQ(calls[14].function, "ncclGroupEnd");
  for (const Call& call : calls) EXPECT_EQ(call.thread, std::this_thread::get_id());
  expect_no_violations();
}

TEST(NcclAllReduce, EveryThreadIssuesTheCallsOfItsOwnDevice) {
  NcclAllReduce ops(2, standin_seams());
  TensorGrid tensors = random_grid(3, {4, 7}, at::kDouble);  // packs of 5 and 6: chunks of 2
  for (const auto& error : all_reduce_by_threads(ops, ReduceOp::kSum, tensors, tensors)) {
    EXPECT_EQ(error, nullptr);
  }
  std::set<std::thread::id> threads;
  for (int rank = 0; rank < 3; ++rank) {
    std::vector<Call> mine;
    for (const Call& call : nccl_standin::calls()) {
      if (call.rank == rank) mine.push_back(call);
    }
    size_t at = 0;
    for (int pack = 0; pack < 2; ++pack) {
      expect_pack_calls(mine, at, rank, 3, 2 * sizeof(double));
      ASSERT_LT(at, mine.size());
      EXPECT_EQ(mine[at].function, "ncclAllGather");
      EXPECT_EQ(mine[at++].bytes, 2 * sizeof(double));
    }
    EXPECT_EQ(at, mine.size());
    for (const Call& call : mine) EXPECT_EQ(call.thread, mine[0].thread);
    threads.insert(mine[0].thread);
  }
  EXPECT_EQ(threads.size(), 3u);
  EXPECT_EQ(count_calls("ncclGroupStart"), 3 * 2 * 2);
  EXPECT_EQ(count_calls("ncclGroupEnd"), 3 * 2 * 2);
  expect_no_violations();
}

TEST(NcclAllReduce, NumPacksDecidesHowManyExchangesThereAre) {
  const auto exchanges = [](int num_packs, std::vector<int64_t> sizes) {
    NcclAllReduce ops(num_packs, standin_seams());
    TensorGrid tensors = random_grid(2, sizes, at::kFloat);
    nccl_standin::forget_calls();
    all_reduce(ops, ReduceOp::kSum, tensors, tensors, {.bytes_per_pack = 4});
    return count_calls("ncclAllGather") / 2;
  };
  EXPECT_EQ(exchanges(0, {3, 0, 5}), 2);
  EXPECT_EQ(exchanges(1, {3, 0, 5}), 1);
  EXPECT_EQ(exchanges(3, {3, 0, 5}), 3);
  EXPECT_EQ(exchanges(3, {2}), 1) << "fewer elements than packs";
  EXPECT_EQ(exchanges(1, {0, 0}), 0) << "nothing to move";
  EXPECT_EQ(exchanges(1, {}), 0);
}

TEST(NcclAllReduce, CommunicatorsAreKeptForEachDeviceListAndDestroyed) {
  internal::NcclSeams seams = standin_seams();
  bool swapped = false;
  seams.device_of = [&](size_t replica, const at::Tensor&) {
    const auto index = static_cast<c10::DeviceIndex>(swapped ? 1 - replica : replica);
    return c10::Device(c10::DeviceType::CUDA, index);
  };
  {
    NcclAllReduce ops(1, seams);
    EXPECT_EQ(nccl_standin::live_communicators(), 0) << "made when they are needed";
    TensorGrid tensors = random_grid(2, {6}, at::kFloat);
    for (int i = 0; i < 3; ++i) {
      all_reduce(ops, ReduceOp::kSum, tensors, tensors);
      all_reduce_as(/*threads=*/true, ops, ReduceOp::kSum, tensors, tensors);
    }
    EXPECT_EQ(count_calls("ncclCommInitAll"), 1);
    swapped = true;
    all_reduce(ops, ReduceOp::kSum, tensors, tensors);
    EXPECT_EQ(count_calls("ncclCommInitAll"), 2);
    EXPECT_EQ(nccl_standin::live_communicators(), 4);
  }
  EXPECT_EQ(nccl_standin::live_communicators(), 0);
  EXPECT_EQ(count_calls("ncclCommDestroy"), 4);
  EXPECT_EQ(count_calls("ncclCommAbort"), 0);
  expect_no_violations();
}

TEST(NcclAllReduce, WorksOnDefaultStreamsInOrderWithTheCurrentOnes) {
  FakeGpus& gpus = FakeGpus::install();
  const c10::Stream other(c10::Stream::UNSAFE, c10::Device(c10::DeviceType::CUDA, 1), 7);
  gpus.exchangeStream(other);
  gpus.setDevice(c10::Device(c10::DeviceType::CUDA, 3));
  NcclAllReduce ops(1, standin_seams());
  TensorGrid tensors = random_grid(2, {6}, at::kFloat);
  all_reduce(ops, ReduceOp::kSum, tensors, tensors);
  EXPECT_EQ(
      gpus.history(),
      (std::vector<std::string>{
          "record 0 on cuda:1 stream 7", "block 0 on cuda:1 stream 0",   // after the caller's
          "record 1 on cuda:0 stream 0", "record 2 on cuda:1 stream 0",  // the end of the pack
          "record 3 on cuda:1 stream 0", "block 3 on cuda:1 stream 7"}));
  EXPECT_EQ(gpus.getStream(other.device()), other) << "put back";
  EXPECT_EQ(gpus.getDevice().index(), 3) << "put back";
  EXPECT_EQ(gpus.live_events(), 0);
}

TEST(NcclAllReduce, TeamsThatShareTheObjectTakeTurns) {
  constexpr int kRounds = 20;
  NcclAllReduce ops(1, standin_seams());
  const auto strategy = [&](size_t s) {
    for (int i = 0; i < kRounds; ++i) {
      TensorGrid inputs = random_grid(2, {9}, at::kFloat, s * 100 + static_cast<size_t>(i));
      const TensorGrid before = inputs;
      TensorGrid outputs = empty_like(inputs);
      all_reduce_as(/*threads=*/s == 0, ops, ReduceOp::kSum, inputs, outputs);
      expect_reduced(ReduceOp::kSum, before, outputs);
    }
  };
  std::thread::id second;
  std::latch both(2);  // the id of a thread that has ended may be reused
  {
    const Thread a("first", [&] {
      strategy(0);
      both.count_down();
    });
    const Thread b("second", [&] {
      second = std::this_thread::get_id();
      strategy(1);
      both.arrive_and_wait();
    });
  }
  // Calls with a rank are 2 * 4 sends and receives and 2 all-gathers of each all-reduce. Those of
  // one are never among those of another.
  constexpr size_t kPerReduction = 10;
  std::vector<bool> is_second;
  for (const Call& call : nccl_standin::calls()) {
    if (call.rank >= 0) is_second.push_back(call.thread == second);
  }
  ASSERT_EQ(is_second.size(), 2 * kRounds * kPerReduction);
  for (size_t i = 0; i < is_second.size(); ++i) {
    EXPECT_EQ(is_second[i], is_second[i / kPerReduction * kPerReduction]) << "call " << i;
  }
  EXPECT_EQ(count_calls("ncclCommInitAll"), 1);
  expect_no_violations();
}

TEST(NcclAllReduce, ATeamHasTheTurnUntilItsDevicesAreDone) {
  FakeGpus& gpus = FakeGpus::install();
  NcclAllReduce ops(1, standin_seams());
  TensorGrid first = {{at::ones({8})}, {at::ones({8})}};
  TensorGrid second = {{at::ones({8})}, {at::ones({8})}};
  gpus.set_stuck(1, true);
  {
    const Thread team("team", [&] { all_reduce(ops, ReduceOp::kSum, first, first); });
    EXPECT_TRUE(eventually([] { return count_calls("ncclGroupEnd") == 2; }));
    const size_t calls = nccl_standin::calls().size();
    const CommunicationOptions options = {.timeout = std::chrono::milliseconds(20)};
    EXPECT_TUTTI_ERROR(all_reduce(ops, ReduceOp::kSum, second, second, options),
                       ErrorCode::kDeadlineExceeded,
                       "has waited for 20 ms for another all-reduce of the same object");
    EXPECT_TUTTI_ERROR(
        all_reduce_as(/*threads=*/true, ops, ReduceOp::kSum, second, second, options),
        ErrorCode::kDeadlineExceeded, "has waited for 20 ms for");
    EXPECT_EQ(nccl_standin::calls().size(), calls) << "the others have not begun";
    gpus.set_stuck(1, false);
  }
  EXPECT_TRUE(bit_equal(first[1][0], at::full({8}, 2.f)));
  all_reduce(ops, ReduceOp::kSum, second, second);
  EXPECT_TRUE(bit_equal(second[0][0], at::full({8}, 2.f)));
  EXPECT_EQ(count_calls("ncclCommInitAll"), 1);
  expect_no_violations();
}

TEST(NcclAllReduce, HostTensorsAreReducedWithoutNcclAndOneWarning) {
  const LogCapture log;
  NcclAllReduce ops;  // works without the library
  TensorGrid inputs = random_grid(3, {5, 2}, at::kFloat);
  const TensorGrid before = inputs;
  TensorGrid outputs = empty_like(inputs);
  for (const bool threads : {false, true}) {
    all_reduce_as(threads, ops, ReduceOp::kMean, inputs, outputs);
    expect_reduced(ReduceOp::kMean, before, outputs);
  }
  EXPECT_EQ(log.count("reduced without NCCL; use HostAllReduce"), 1) << log.text();

  // Next to tensors on GPUs, nothing is logged.
  internal::NcclSeams seams = standin_seams();
  seams.device_of = [](size_t replica, const at::Tensor& tensor) {
    return tensor.scalar_type() == at::kLong
               ? c10::Device(c10::DeviceType::CPU)
               : c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(replica));
  };
  NcclAllReduce mixed(1, seams);
  for (size_t r = 0; r < 3; ++r) {
    inputs[r].push_back(random_tensor({4}, at::kLong, r));
    outputs[r].push_back(at::empty({4}, at::kLong));
  }
  for (const bool threads : {false, true}) {
    all_reduce_as(threads, mixed, ReduceOp::kSum, inputs, outputs);
    expect_reduced(ReduceOp::kSum, inputs, outputs);
  }
  EXPECT_EQ(log.count("reduced without NCCL"), 1) << log.text();
  expect_no_violations();
}

TEST(NcclAllReduce, OtherReductionsDoNotNeedNccl) {
  NcclAllReduce ops;
  const PerReplica<at::Tensor> value({tensor({1.f, 2.f}), tensor({3.f, 5.f})});
  EXPECT_TRUE(bit_equal(ops.reduce(ReduceOp::kMean, value, "CPU:0")[0], tensor({2.f, 3.5f})));
  const auto sums = ops.batch_reduce(ReduceOp::kSum, {{value, "CPU:0"}, {value, "CPU:1"}});
  for (const auto& sum : sums) EXPECT_TRUE(bit_equal(sum[0], tensor({4.f, 7.f})));
  EXPECT_TUTTI_ERROR(NcclAllReduce(-3), ErrorCode::kInvalidArgument,
                     "NcclAllReduce: num_packs is -3; it must be 0 or more");
}

TEST(NcclAllReduce, IsReachedThroughReduceAndThroughAStrategy) {
  const auto ops = std::make_shared<NcclAllReduce>(1, standin_seams());
  const PerReplica<at::Tensor> value({tensor({1.f, 2.f}), tensor({3.f, 5.f})});
  const auto sum = ops->reduce(ReduceOp::kSum, value, value);
  EXPECT_TRUE(bit_equal(sum[1], tensor({4.f, 7.f})));
  EXPECT_EQ(count_calls("ncclAllGather"), 2);
  const MirroredStrategy strategy({"GPU:0", "GPU:1"}, {.cross_device_ops = ops});
  const auto reduce = [](int64_t size) {
    return get_replica_context()->all_reduce(
        ReduceOp::kSum, at::full({size}, get_replica_context()->replica_id_in_sync_group() + 1));
  };
  for (const int64_t size : {1, 5000}) {  // by one thread, by all
    const auto reduced = strategy.run(reduce, size);
    for (const at::Tensor& each : reduced) {
      EXPECT_TRUE(bit_equal(each, at::full({size}, 3, each.options())));
    }
  }
  EXPECT_EQ(count_calls("ncclAllGather"), 6);
  // Replicas that take turns still move their parts at the same time.
  const MirroredStrategy turns({"GPU:0", "GPU:1"},
                               {.cross_device_ops = ops, .runner = {.concurrent_replicas = 1}});
  EXPECT_TRUE(bit_equal(turns.run(reduce, int64_t{5000})[0], at::full({5000}, 3, at::kLong)));
  EXPECT_EQ(count_calls("ncclAllGather"), 8);

  nccl_standin::fail_call("ncclAllGather", 1, 1, 2);
  EXPECT_TUTTI_ERROR(strategy.run(reduce, int64_t{5000}), ErrorCode::kUnavailable,
                     "ncclAllGather failed on replica 1 (cuda:1)");
  EXPECT_TRUE(bit_equal(strategy.run(reduce, int64_t{2})[1], at::full({2}, 3, at::kLong)));
  expect_no_violations();
}

TEST(NcclStandin, SeesWrongUsage) {
  using internal::NcclCommunicator;
  using internal::NcclDataType;
  using internal::NcclResult;
  const internal::NcclFunctions& nccl = standin_functions();
  std::vector<NcclCommunicator> ranks(2);
  const int devices[] = {0, 1};
  const auto make = [&] {
    ASSERT_EQ(nccl.comm_init_all(ranks.data(), 2, devices), NcclResult::kSuccess);
  };
  char data[16] = {};
  const auto send = [&](size_t rank, size_t bytes, int peer) {
    return nccl.send(data, bytes, NcclDataType::kInt8, peer, ranks[rank], nullptr);
  };
  const auto receive = [&](size_t rank, size_t bytes, int peer) {
    return nccl.recv(data, bytes, NcclDataType::kInt8, peer, ranks[rank], nullptr);
  };
  size_t seen = 0;
  const auto expect_violation = [&](const std::string& part) {
    const auto all = nccl_standin::violations();
    ASSERT_EQ(all.size(), seen + 1) << part;
    EXPECT_NE(all[seen++].find(part), std::string::npos) << all.back();
  };
  make();
  EXPECT_EQ(nccl.group_end(), NcclResult::kInvalidUsage);
  expect_violation("ncclGroupEnd without ncclGroupStart");
  EXPECT_EQ(send(0, 4, 1), NcclResult::kInvalidUsage);
  expect_violation("outside of a group");
  nccl.group_start();
  EXPECT_EQ(send(0, 4, 2), NcclResult::kInvalidArgument);
  expect_violation("the peer 2 is out of range");
  EXPECT_EQ(nccl.group_end(), NcclResult::kInvalidArgument) << "a failed call fails its group";

  nccl.group_start();
  EXPECT_EQ(send(0, 4, 1), NcclResult::kSuccess);
  EXPECT_EQ(receive(1, 8, 0), NcclResult::kSuccess);
  EXPECT_EQ(nccl.group_end(), NcclResult::kInvalidUsage);
  expect_violation("rank 1 receives 8 bytes, but 4 were sent");

  make();
  nccl.group_start();
  EXPECT_EQ(send(0, 4, 0), NcclResult::kSuccess);
  EXPECT_EQ(receive(0, 4, 0), NcclResult::kSuccess);
  EXPECT_EQ(nccl.all_gather(data, data, 4, NcclDataType::kInt8, ranks[1], nullptr),
            NcclResult::kSuccess);
  EXPECT_EQ(nccl.group_end(), NcclResult::kInvalidUsage);
  expect_violation("where another does");

  EXPECT_EQ(nccl.comm_abort(ranks[0]), NcclResult::kSuccess);
  nccl.group_start();
  EXPECT_EQ(send(0, 4, 1), NcclResult::kInvalidUsage);
  expect_violation("ncclSend after the end of the communicator");
  EXPECT_EQ(nccl.group_end(), NcclResult::kInvalidUsage);
  EXPECT_EQ(nccl.comm_destroy(ranks[0]), NcclResult::kInvalidUsage);
  expect_violation("ncclCommDestroy of an ended communicator");
}

TEST(NcclLibrary, ThePathComesFromTheEnvironment) {
  setenv("TUTTI_NCCL_LIBRARY", TUTTI_NCCL_STANDIN, 1);
  EXPECT_TRUE(nccl_is_available());
  internal::NcclSeams seams = standin_seams();
  seams.functions = nullptr;
  NcclAllReduce ops(1, seams);
  TensorGrid tensors = random_grid(2, {6}, at::kFloat);
  all_reduce(ops, ReduceOp::kSum, tensors, tensors);
  EXPECT_EQ(count_calls("ncclAllGather"), 2);
}

TEST(NcclLibrary, AMissingLibraryIsAnErrorWhenItIsNeeded) {
  setenv("TUTTI_NCCL_LIBRARY", "/no/such/libnccl.so", 1);
  EXPECT_FALSE(nccl_is_available());
  internal::NcclSeams seams = standin_seams();
  seams.functions = nullptr;
  NcclAllReduce ops(1, seams);
  TensorGrid tensors = random_grid(2, {6}, at::kFloat);
  for (const bool threads : {false, true, true}) {
    EXPECT_TUTTI_ERROR(all_reduce_as(threads, ops, ReduceOp::kSum, tensors, tensors),
                       ErrorCode::kNotFound, "\"/no/such/libnccl.so\"", "TUTTI_NCCL_LIBRARY");
  }
}

}  // namespace
}  // namespace tutti
