// SPDX-License-Identifier: Apache-2.0
//
// GPUs without a GPU: a guard for two devices that keeps the current one for each thread. It must
// exist before the process counts its devices, so every case needs its own process.

#include <string>
#include <vector>

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>

#include "tutti/base/mutex.h"
#include "tutti/base/thread.h"
#include "tutti/device/device_scope.h"
#include "tutti/device/logical_devices.h"
#include "tutti/strategy/central_storage_strategy.h"
#include "tutti/strategy/mirrored_strategy.h"

#include "tests/support/expect_error.h"

namespace tutti {
namespace {

thread_local c10::DeviceIndex current_gpu = 0;

class RecordingGuard final : public c10::impl::DeviceGuardImplInterface {
 public:
  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {c10::DeviceType::CUDA, current_gpu}; }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_gpu = device.index();
    MutexLock lock(mutex_);
    history_.push_back(device.index());
  }
  c10::Stream getStream(c10::Device device) const noexcept override {
    return c10::Stream(c10::Stream::DEFAULT, device);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  c10::DeviceIndex deviceCount() const noexcept override { return 2; }

  std::vector<int> history() const {
    MutexLock lock(mutex_);
    return history_;
  }

 private:
  mutable Mutex mutex_;
  mutable std::vector<int> history_ TUTTI_GUARDED_BY(mutex_);
};

// Lives as long as the process, as LibTorch expects.
RecordingGuard& install_guard() {
  static auto* const guard = new RecordingGuard;
  static const c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, guard);
  return *guard;
}

TEST(GpuScope, GuardsItsDeviceAndRestoresTheOneBefore) {
  const RecordingGuard& guard = install_guard();
  const DeviceSpec gpu0 = DeviceSpec::parse("GPU:0");
  const DeviceSpec gpu1 = DeviceSpec::parse("GPU:1");
  {
    const DeviceScope outer(gpu1);
    EXPECT_EQ(current_gpu, 1);
    EXPECT_EQ(current_device(), &gpu1);
    {
      const DeviceScope inner(gpu0);
      EXPECT_EQ(current_gpu, 0);
    }
    EXPECT_EQ(current_gpu, 1);
    EXPECT_EQ(current_device(), &gpu1);
  }
  EXPECT_EQ(current_gpu, 0);
  EXPECT_EQ(guard.history(), (std::vector{1, 0, 1, 0}));
}

TEST(GpuScope, ACpuScopeTouchesNoGpu) {
  const RecordingGuard& guard = install_guard();
  const DeviceSpec cpu = DeviceSpec::parse("CPU:1");
  { const DeviceScope scope(cpu); }
  EXPECT_TRUE(guard.history().empty());
}

TEST(GpuScope, GpusAreCountedThroughTheGuard) {
  install_guard();
  EXPECT_EQ(list_logical_devices("GPU"),
            (std::vector<LogicalDevice>{{"/device:GPU:0", "GPU"}, {"/device:GPU:1", "GPU"}}));
  EXPECT_TUTTI_ERROR(MirroredStrategy({"GPU:2"}), ErrorCode::kNotFound,
                     "device \"GPU:2\" does not exist; this process has CPU:0, GPU:0, GPU:1.");
}

TEST(GpuScope, AStrategyWithoutADeviceListTakesAllGpus) {
  install_guard();
  const MirroredStrategy strategy;
  ASSERT_EQ(strategy.num_replicas_in_sync(), 2);
  EXPECT_EQ(strategy.extended().describe(), "MirroredStrategy(GPU:0, GPU:1)");
}

TEST(GpuScope, EveryReplicaComputesOnItsOwnGpu) {
  install_guard();
  const MirroredStrategy strategy({"GPU:1", "GPU:0"});
  const auto devices = strategy.run([] { return int{current_gpu}; });
  EXPECT_EQ(devices[0], 1);
  EXPECT_EQ(devices[1], 0);
  EXPECT_EQ(current_gpu, 0) << "the caller is where it was";
}

TEST(GpuScope, ParametersThatAllReplicasShareLieInOneMemory) {
  install_guard();
  EXPECT_TUTTI_ERROR(CentralStorageStrategy({"GPU:0", "GPU:1"}), ErrorCode::kUnimplemented,
                     "CentralStorageStrategy", "parameters on CPU:0", "compute device GPU:0",
                     "MirroredStrategy");
  EXPECT_TUTTI_ERROR(CentralStorageStrategy({"GPU:1", "GPU:0"}, "GPU:1"), ErrorCode::kUnimplemented,
                     "parameters on GPU:1", "compute device GPU:0");
  EXPECT_NO_THROW(CentralStorageStrategy({"GPU:1"}));
}

}  // namespace
}  // namespace tutti
