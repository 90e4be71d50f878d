// SPDX-License-Identifier: Apache-2.0
//
// GPUs without a GPU: a guard for c10's CUDA devices with streams and events that records the
// calls it gets. It must exist before the process counts its devices, so a test that installs it
// needs its own process.

#pragma once

#include <array>
#include <set>
#include <string>
#include <vector>

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include "tutti/base/error.h"
#include "tutti/base/mutex.h"

namespace tutti::test {

/// Work is done immediately, so events are complete when they are recorded, except on a device
/// that is stuck. Thread-safe; the current device and streams are those of the thread.
class FakeGpus final : public c10::impl::DeviceGuardImplInterface {
 public:
  static constexpr c10::DeviceIndex kCount = 4;

  /// Installs the guard on the first call. It lives as long as the process, as LibTorch expects.
  static FakeGpus& install() {
    static auto* const gpus = new FakeGpus;
    static const c10::impl::DeviceGuardImplRegistrar registrar(c10::DeviceType::CUDA, gpus);
    return *gpus;
  }

  c10::DeviceType type() const override { return c10::DeviceType::CUDA; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {c10::DeviceType::CUDA, current_device}; }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const noexcept override {
    const c10::StreamId id = current_streams.at(static_cast<unsigned char>(device.index()));
    return c10::Stream(c10::Stream::UNSAFE, device, id);
  }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override {
    const c10::Stream before = getStream(stream.device());
    current_streams.at(static_cast<unsigned char>(stream.device_index())) = stream.id();
    return before;
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kCount; }

  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    MutexLock lock(mutex_);
    if (*event == nullptr) {
      *event = new FakeEvent{next_event_++, stream.device_index()};
      ++live_events_;
    }
    note_locked("record", *event, stream);
  }
  void block(void* event, const c10::Stream& stream) const override {
    MutexLock lock(mutex_);
    note_locked("block", event, stream);
  }
  bool queryEvent(void* event) const override {
    MutexLock lock(mutex_);
    return stuck_.count(static_cast<FakeEvent*>(event)->device) == 0;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    MutexLock lock(mutex_);
    delete static_cast<FakeEvent*>(event);
    --live_events_;
  }

  /// "record 0 on cuda:1 stream 7", "block ...": events count from 0.
  std::vector<std::string> history() const {
    MutexLock lock(mutex_);
    return history_;
  }
  int live_events() const {
    MutexLock lock(mutex_);
    return live_events_;
  }
  /// Events of a stuck device are never complete.
  void set_stuck(c10::DeviceIndex device, bool stuck) {
    MutexLock lock(mutex_);
    if (stuck) {
      stuck_.insert(device);
    } else {
      stuck_.erase(device);
    }
  }

 private:
  struct FakeEvent {
    int id;
    c10::DeviceIndex device;
  };

  void note_locked(const char* what, void* event, const c10::Stream& stream) const
      TUTTI_REQUIRES(mutex_) {
    history_.push_back(message(what, " ", static_cast<FakeEvent*>(event)->id, " on ",
                               stream.device(), " stream ", stream.id()));
  }

  static inline thread_local c10::DeviceIndex current_device = 0;
  static inline thread_local std::array<c10::StreamId, kCount> current_streams = {};

  mutable Mutex mutex_;
  mutable std::vector<std::string> history_ TUTTI_GUARDED_BY(mutex_);
  mutable int next_event_ TUTTI_GUARDED_BY(mutex_) = 0;
  mutable int live_events_ TUTTI_GUARDED_BY(mutex_) = 0;
  std::set<c10::DeviceIndex> stuck_ TUTTI_GUARDED_BY(mutex_);
};

}  // namespace tutti::test
