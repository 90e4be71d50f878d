// SPDX-License-Identifier: Apache-2.0
//
// All of Tutti. Start with strategy/strategy.h.

#pragma once

#include "tutti/base/error.h"
#include "tutti/base/log.h"
#include "tutti/collectives/arena.h"
#include "tutti/collectives/cross_device_ops.h"
#include "tutti/collectives/host_all_reduce.h"
#include "tutti/device/cpu_threads.h"
#include "tutti/device/device_scope.h"
#include "tutti/device/device_spec.h"
#include "tutti/device/logical_devices.h"
#include "tutti/nest/indexed_slices.h"
#include "tutti/nest/nest.h"
#include "tutti/nest/print.h"
#include "tutti/strategy/local_extended.h"
#include "tutti/strategy/make_strategy.h"
#include "tutti/strategy/mirrored_strategy.h"
#include "tutti/strategy/one_device_strategy.h"
#include "tutti/strategy/strategy.h"
#include "tutti/strategy/strategy_extended.h"
#include "tutti/values/communication_options.h"
#include "tutti/values/mirrored.h"
#include "tutti/values/per_replica.h"
#include "tutti/values/reduce_op.h"
#include "tutti/values/replica_context.h"
#include "tutti/version.h"
