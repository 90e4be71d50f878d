// SPDX-License-Identifier: Apache-2.0
//
// Losses whose gradients, summed over all replicas, are exactly those of one device that
// sees the whole batch, however unevenly the rows are split over the replicas. Start with
// average_loss(); call these functions inside Strategy::run.

#pragma once

#include <cstdint>
#include <optional>

#include <ATen/core/Tensor.h>

#include "tutti/base/call_site.h"

namespace tutti {

// All functions here may be called by all replicas at the same time. Outside of any strategy
// there is one replica, and they are plain averages. In cross-replica context they throw
// kFailedPrecondition.

/// This replica's part of the average over the global batch: the sum of
/// per_example * weights, divided by the sum of the weights of all replicas (without weights:
/// by the number of elements of all replicas). The parts of all replicas add up to the
/// average. It is a meeting point: every replica must call it, even one without rows.
///
/// `per_example` is a floating-point tensor of any shape, not yet reduced: a tensor without
/// dimensions is taken for a mean that the caller has already computed, and refused if there are
/// several replicas, unless its weight has no dimensions either. float16 and bfloat16 are
/// summed in float32, which is then the type of the result.
///
/// `weights` are numbers or booleans that broadcast to the shape of per_example; they are
/// constants, without a gradient. Negative and non-finite weights are kInvalidArgument. If all
/// weights of all replicas are 0, the loss and its gradient are 0.
///
/// Losses that nothing else refers to, as in average_loss(cross_entropy(...)), are consumed, which
/// saves backward a node; losses that you keep work as well.
at::Tensor average_loss(at::Tensor per_example,
                        const std::optional<at::Tensor>& weights = std::nullopt,
                        CallSite site = CallSite::current());

/// The same for a known total weight: nothing is communicated. For steps that accumulate the
/// gradients of several batches, the total is that of all of them. 0 gives a loss of
/// 0; a negative or non-finite total is kInvalidArgument.
at::Tensor average_loss_over(at::Tensor per_example, double total_weight,
                             const std::optional<at::Tensor>& weights = std::nullopt);

/// The sum over all replicas of their weights, or of one number per replica, in float64: what
/// average_loss_over() takes. It is a meeting point.
double global_weight(const at::Tensor& weights, CallSite site = CallSite::current());
double global_weight(double weight, CallSite site = CallSite::current());

/// The sum of `loss`, which every replica computes from the same parameters, divided by the
/// number of replicas: summed over the replicas it counts once.
at::Tensor scale_regularization_loss(const at::Tensor& loss);

/// tf.nn.compute_average_loss: the sum of per_example * sample_weight, divided by the global
/// batch size or, if that is not given, by the rows of this replica times the number of
/// replicas. That is exact only if all replicas have equally many rows; average_loss()
/// always is. A sample weight with one dimension less than per_example gains a trailing one.
/// A size of 0 gives a loss of 0; a negative one is kInvalidArgument.
at::Tensor compute_average_loss(const at::Tensor& per_example,
                                const std::optional<at::Tensor>& sample_weight = std::nullopt,
                                std::optional<int64_t> global_batch_size = std::nullopt);

}  // namespace tutti
