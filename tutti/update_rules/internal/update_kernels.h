// SPDX-License-Identifier: Apache-2.0
//
// The loops of the update rules, compiled once for baseline x86-64 (or aarch64) and once for AVX2
// with FMA. A rule turns its hyperparameters and the step into terms; a kernel rounds the terms to
// its element type, as LibTorch's operators do with C++ numbers, and makes one pass over memory.
//
// Products and sums are fused exactly where LibTorch fuses them on the same CPU: everywhere if it
// has FMA, nowhere otherwise. The bits thus depend on the CPU, but not on how slices are cut. (Only
// LibTorch honours ATEN_CPU_CAPABILITY.)

#pragma once

#include "tutti/update_rules/update_slice.h"

namespace tutti::internal {

struct SgdTerms {
  double minus_lr;
  double momentum;
  double undamped;  ///< 1 - dampening
  double weight_decay;
  bool nesterov;
};

/// Adam, and AdamW, whose decay is a factor of the parameter.
struct AdamTerms {
  double minus_step_size;
  double beta1;
  double one_minus_beta1;
  double beta2;
  double one_minus_beta2;
  double root_of_correction2;
  double eps;
  double weight_decay;      ///< Added to the gradient.
  double parameter_factor;  ///< The parameter is multiplied by it first.
  bool amsgrad;
};

struct AdagradTerms {
  double minus_lr;
  double weight_decay;
  double eps;
};

struct RmspropTerms {
  double minus_lr;
  double alpha;
  double one_minus_alpha;
  double eps;
  double weight_decay;
  double momentum;
  bool centered;
};

/// One compilation of the kernels. Immutable; kernels may run concurrently on slices that do not
/// overlap.
template <class T>
struct UpdateKernels {
  void (*sgd)(const SgdTerms& terms, const UpdateSlice<T>& slice);
  void (*adam)(const AdamTerms& terms, const UpdateSlice<T>& slice);
  void (*adagrad)(const AdagradTerms& terms, const UpdateSlice<T>& slice);
  void (*rmsprop)(const RmspropTerms& terms, const UpdateSlice<T>& slice);
};

/// T is float or double.
template <class T>
const UpdateKernels<T>& update_kernels_baseline();
#if defined(__x86_64__)
template <class T>
const UpdateKernels<T>& update_kernels_avx2();
#endif

/// The kernels for this CPU.
template <class T>
const UpdateKernels<T>& update_kernels();

/// Throws if the slice has a negative size, lacks memory, or if its step is below 1.
template <class T>
void check_slice(const char* rule, const UpdateSlice<T>& slice, int num_states);

}  // namespace tutti::internal
