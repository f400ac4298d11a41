// Directions on a GPU are those of the CPU, bit by bit.
#include "kernels/on_gpu.h"
#include "kernels/perturb.h"

namespace cairn::kernels {
namespace {

constexpr Noise kNoises[] = {Noise::normal, Noise::rademacher};

TEST(PerturbOnCuda, MovesWeightsAsTheCpuDoes) {
  CAIRN_NEEDS_GPU();
  const Direction direction{base::Random(5).for_name("w"), 0.0123f};
  for (const Noise noise : kNoises)
    for (const at::ScalarType type : kKernelTypes)
      for (const int64_t count : {0, 1, 3, 4, 33, 1013, 300007})
        for (const int64_t first : {int64_t{0}, int64_t{1}, int64_t{3}, int64_t{31}, int64_t{777}, (int64_t{1} << 36) + 5}) {
          const at::Tensor weights = normal({count}, 1, type), expected = at::empty_like(weights), found = poisoned({count}, type);
          perturb(expected, weights, direction, first, noise);
          perturb(found, on_gpu(weights), direction, first, noise);
          EXPECT_TRUE(at::equal(found.cpu(), expected)) << count << " from " << first;
        }
}

TEST(PerturbOnCuda, ReplaysAsTheCpuDoes) {
  CAIRN_NEEDS_GPU();
  std::vector<Direction> directions;
  for (uint64_t i = 0; i < 70; ++i) directions.push_back({base::Random(i).for_name("w"), 0.3f - 0.01f * static_cast<float>(i)});
  for (const Noise noise : kNoises)
    for (const at::ScalarType type : kKernelTypes)
      for (const size_t of : {size_t{0}, size_t{1}, size_t{70}}) {
        const at::Tensor here = normal({10007}, 1, type), there = on_gpu(here);
        const std::span<const Direction> some = std::span(directions).first(of);
        replay(here, some, 5, 0.25f, 0.999f, noise);
        replay(there, some, 5, 0.25f, 0.999f, noise);
        EXPECT_TRUE(at::equal(there.cpu(), here)) << of << " directions";
      }
}

}  // namespace
}  // namespace cairn::kernels
