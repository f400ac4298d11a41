// Normal values on a GPU, bitwise identical to base::Random::normal.
#include "kernels/cuda/normal.h"
#include "kernels/optimizer/fill_normal_kernel.h"

namespace cairn::kernels {
namespace {

using namespace device;

template <class T>
__global__ void __launch_bounds__(kCounterThreads) fill_normal_kernel(FillNormalLaunch a) {
  const Fours<T> to(static_cast<T*>(a.to), a.first_index, a.count);
  over_counters(a.first_index, a.count, [&](uint64_t counter, int64_t begin) {
    const base::Words4 words = base::random_words(a.key, a.stream, counter);
    const auto scaled = [&](const Four& z) {
      return Pack<T, 4>::of({z.at[0] * a.deviation, z.at[1] * a.deviation, z.at[2] * a.deviation, z.at[3] * a.deviation});
    };
    to.store(begin, rounded_exactly<T>([&] { return bounds_of_normals(words); }, [&] { return normals(words); }, scaled));
  });
}

}  // namespace

cudaError_t launch_fill_normal(const FillNormalLaunch& launch, cudaStream_t stream) {
  if (launch.count == 0) return cudaSuccess;
  const unsigned blocks = blocks_for_counters(launch.count);
  launch.elements == Elements::bf16 ? fill_normal_kernel<bf16><<<blocks, kCounterThreads, 0, stream>>>(launch)
                                    : fill_normal_kernel<float><<<blocks, kCounterThreads, 0, stream>>>(launch);
  return cudaGetLastError();
}

}  // namespace cairn::kernels
