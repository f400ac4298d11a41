#include "kernels/gemm/native_bf16.h"

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

namespace cairn::kernels {
namespace {

bool find() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx512bf16") != 0;  // every processor with AMX has it too
#elif defined(__aarch64__)
  constexpr unsigned long kBf16 = 1UL << 14;  // of the second word of capabilities
  return (getauxval(AT_HWCAP2) & kBf16) != 0;
#else
  return false;
#endif
}

}  // namespace

bool has_native_bf16() {
  static const bool found = find();
  return found;
}

}  // namespace cairn::kernels
