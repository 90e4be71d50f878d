// SPDX-License-Identifier: Apache-2.0

#include "tutti/strategy/local_extended.h"

#include <utility>

#include "tutti/base/error.h"
#include "tutti/collectives/select_cross_device_ops.h"
#include "tutti/strategy/internal/tally.h"

namespace tutti {

LocalExtended::LocalExtended(std::string name, std::vector<DeviceSpec> devices,
                             std::shared_ptr<CrossDeviceOps> cross_device_ops,
                             const ReplicaRunnerOptions& options, StrategyTraits traits)
    : StrategyExtended(std::move(name), std::move(devices), std::move(traits)),
      has_given_ops_(cross_device_ops != nullptr),
      cross_device_ops_(cross_device_ops != nullptr ? std::move(cross_device_ops)
                                                    : select_cross_device_ops(worker_devices())),
      runner_(this->name(), *this, contexts(), options) {}

// What ends this run must end it everywhere: the others would wait for this worker.
void LocalExtended::do_call_for_each_replica(FunctionRef<void(ReplicaContext&)> fn) {
  WorkerGroup& group = workers();
  group.check();
  group.begin_step(runs_.fetch_add(1, std::memory_order_relaxed) + 1);
  const auto watched = [&](ReplicaContext& context) {
    try {
      fn(context);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCancelled) end_group(context, error.what());
      throw;
    } catch (const std::exception& error) {
      end_group(context, error.what());
      throw;
    } catch (...) {
      end_group(context, "an exception that is not a std::exception");
      throw;
    }
  };
  try {
    runner_.run(watched);
  } catch (...) {
    group.abort(ErrorCode::kCancelled,
                message(group.name(group.rank()), " failed in step ", group.step(), ": ",
                        internal::text_of(std::current_exception())));
    throw;
  }
  group.check();
}

// Immediately: other replicas of this worker may go on for long.
void LocalExtended::end_group(const ReplicaContext& context, const char* text) {
  WorkerGroup& group = workers();
  group.abort(ErrorCode::kCancelled,
              message(group.name(group.rank()), " failed in step ", group.step(), ", replica ",
                      context.replica_id_in_sync_group(), ": ", text));
}

}  // namespace tutti
