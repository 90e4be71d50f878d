// SPDX-License-Identifier: Apache-2.0

#include "tutti/update_rules/internal/update_kernels.h"

#include "tutti/base/error.h"

namespace tutti::internal {

template <class T>
const UpdateKernels<T>& update_kernels() {
#if defined(__x86_64__)
  // LibTorch, too, uses its AVX2 kernels only if the CPU has FMA.
  static const bool fast =
      __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0;
  if (fast) return update_kernels_avx2<T>();
#endif
  return update_kernels_baseline<T>();
}

template <class T>
void check_slice(const char* rule, const UpdateSlice<T>& slice, int num_states) {
  if (slice.count < 0 || slice.step < 1) {
    throw Error(ErrorCode::kInvalidArgument,
                message("apply: rule ", rule, " got a slice of ", slice.count, " elements at step ",
                        slice.step, "; the count must be at least 0 and the step at least 1."));
  }
  bool complete = slice.parameter != nullptr && slice.gradient != nullptr;
  for (int i = 0; i < num_states; ++i) {
    complete = complete && slice.state[static_cast<size_t>(i)] != nullptr;
  }
  if (slice.count > 0 && !complete) {
    throw Error(ErrorCode::kInvalidArgument,
                message("apply: rule ", rule, " needs a parameter, a gradient and ", num_states,
                        " states, but some of them are null. Set state[0] ... state[num_states() - "
                        "1] of the slice."));
  }
}

template const UpdateKernels<float>& update_kernels();
template const UpdateKernels<double>& update_kernels();
template void check_slice(const char*, const UpdateSlice<float>&, int);
template void check_slice(const char*, const UpdateSlice<double>&, int);

}  // namespace tutti::internal
