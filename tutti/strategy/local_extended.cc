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
      cross_device_ops_(cross_device_ops != nullptr
                            ? std::move(cross_device_ops)
                            : select_cross_device_ops(this->traits().workers, worker_devices())),
      runner_(this->name(), *this, contexts(), options) {}

// A failure that ends this run must end it on all workers: they would wait for this one.
void LocalExtended::do_call_for_each_replica(FunctionRef<void(ReplicaContext&)> fn) {
  WorkerGroup& group = workers();
  group.check();
  group.begin_step();
  const auto watched = [&](ReplicaContext& context) {
    try {
      fn(context);
    } catch (const Error& error) {
      if (error.code() != ErrorCode::kCancelled) end_group(context, std::current_exception());
      throw;
    } catch (...) {
      end_group(context, std::current_exception());
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

// Ends the group immediately: other replicas of this worker may run for a long time.
void LocalExtended::end_group(const ReplicaContext& context, const std::exception_ptr& error) {
  WorkerGroup& group = workers();
  group.abort(ErrorCode::kCancelled,
              message(group.name(group.rank()), " failed in step ", group.step(), ", replica ",
                      context.replica_id_in_sync_group(), ": ", internal::text_of(error)));
}

}  // namespace tutti
