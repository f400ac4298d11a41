// AdamW on a GPU: the update of fp32, whatever its tensors are kept in.
#include "base/random.h"
#include "kernels/on_gpu.h"

namespace cairn::kernels {
namespace {

struct GpuAdamwTensors {
  at::Tensor p, m, v, g;
  GpuAdamwTensors(int64_t count, int64_t beyond, at::ScalarType parameters, at::ScalarType gradients, at::ScalarType moments) {
    const auto make = [&](const at::Tensor& x, at::ScalarType type) { return askew(on_gpu(x.to(type)), beyond); };
    p = make(normal({count}, 1), parameters), g = make(normal({count}, 2), gradients);
    m = make(0.1 * normal({count}, 3), moments), v = make(normal({count}, 4).square(), moments);
  }
};

TEST(AdamwOnCuda, FollowsTheRuleInEveryMixtureOfTypes) {
  CAIRN_NEEDS_GPU();
  const at::Tensor factor = on_gpu(at::full({1}, 0.5));
  for (const int64_t count : {0, 1, 127, 4096, 100003})
    for (const int64_t beyond : {0, 3})
      for (const at::ScalarType parameters : kKernelTypes)
        for (const at::ScalarType gradients : kKernelTypes)
          for (const at::ScalarType moments : kKernelTypes) {
            const std::string what = fmt::format("{} + {} in {}, {}, {}", count, beyond, c10::toString(parameters),
                                                 c10::toString(gradients), c10::toString(moments));
            const GpuAdamwTensors t(count, beyond, parameters, gradients, moments);
            const at::Tensor p = wide(t.p).clone(), m = wide(t.m).clone(), v = wide(t.v).clone(), before = t.g.clone();
            const AdamwStep step{.learning_rate = 0.01, .weight_decay = 0.1, .step = 3, .gradient_scale = 1.5, .gradient_factor = &factor};
            reference::adamw(p, m, v, wide(t.g), step);
            adamw(t.p, t.m, t.v, t.g, step);
            expect_as_exact(t.p, p.to(parameters), p, "p of " + what);
            expect_as_exact(t.m, m.to(moments), m, "m of " + what);
            expect_as_exact(t.v, v.to(moments), v, "v of " + what);
            EXPECT_TRUE(bitwise_equal(t.g, before)) << what;
          }
}

// More pieces than one launch takes, of all types and lengths in a row, and one of them begins at an odd address.
TEST(AdamwOnCuda, UpdatesManyPiecesAsOneByOne) {
  CAIRN_NEEDS_GPU();
  const at::Tensor factor = on_gpu(at::full({1}, 0.5));
  const AdamwStep common{.learning_rate = 0.01, .step = 3, .gradient_scale = 1.5, .gradient_factor = &factor};
  std::vector<base::Random> numbers;
  std::vector<AdamwPiece> many, singles;
  numbers.reserve(200);
  for (int64_t i = 0; i < 200; ++i) {
    const int64_t counts[] = {1, 8, 4096, 4097, 0, 12288, 100003};
    const auto type_at = [&](int64_t bit) { return i < 120 ? at::kBFloat16 : kKernelTypes[i >> bit & 1]; };  // a long run, then mixtures
    const GpuAdamwTensors t(counts[i % 7], i % 11 == 3 ? 1 : 0, type_at(0), type_at(1), type_at(2));
    numbers.push_back(base::Random(7).for_index(static_cast<uint64_t>(i)));
    many.push_back(
        {t.p, t.m, t.v, t.g, i % 3 == 0 ? 0.0 : 0.1, i % 2 == 0 && t.p.scalar_type() == at::kBFloat16 ? &numbers.back() : nullptr});
    singles.push_back({t.p.clone(), t.m.clone(), t.v.clone(), t.g, many.back().weight_decay, many.back().rounding});
  }
  adamw(many, common);
  for (size_t i = 0; i < many.size(); ++i) {
    AdamwStep step = common;
    step.weight_decay = singles[i].weight_decay, step.rounding = singles[i].rounding;
    adamw(singles[i].p, singles[i].m, singles[i].v, singles[i].g, step);
    EXPECT_TRUE(bitwise_equal(many[i].p, singles[i].p) && bitwise_equal(many[i].m, singles[i].m) && bitwise_equal(many[i].v, singles[i].v))
        << i;
  }
}

// An update that reads its scalars from device memory, as in a CUDA graph.
TEST(AdamwOnCuda, ReadsScalarsFromTheDevice) {
  CAIRN_NEEDS_GPU();
  std::vector<base::Random> random;
  std::vector<AdamwPiece> given, plain;
  random.reserve(100);
  for (int64_t i = 0; i < 100; ++i) {  // more than one launch takes
    const GpuAdamwTensors t(1000 + i, 0, i < 70 ? at::kBFloat16 : at::kFloat, at::kFloat, at::kFloat);
    random.push_back(base::Random(7).for_index(static_cast<uint64_t>(i)));
    given.push_back({t.p, t.m, t.v, t.g, i % 3 == 0 ? 0.0 : 0.1, i % 2 == 0 && i < 70 ? &random.back() : nullptr});
    plain.push_back({t.p.clone(), t.m.clone(), t.v.clone(), t.g, given.back().weight_decay, given.back().rounding});
  }
  const AdamwStep step{.learning_rate = 0.01, .step = 3};
  const at::Tensor scalars = on_gpu(adamw_scalars_of(plain, step));
  adamw(plain, step);
  const base::Random other = base::Random(8);
  for (AdamwPiece& one : given) {  // none of which may count
    one.weight_decay = 0.5;
    if (one.rounding != nullptr) one.rounding = &other;
  }
  adamw(given, {.learning_rate = 1, .step = 1, .scalars = &scalars});
  for (size_t i = 0; i < given.size(); ++i)
    EXPECT_TRUE(bitwise_equal(given[i].p, plain[i].p) && bitwise_equal(given[i].m, plain[i].m) && bitwise_equal(given[i].v, plain[i].v))
        << i;
}

TEST(SumOfSquaresOnCuda, OfSeveralIsThatOfAll) {
  CAIRN_NEEDS_GPU();
  for (const at::ScalarType type : kKernelTypes) {
    std::vector<at::Tensor> all;
    for (const int64_t count : {100003, 0, 1, 777, 3000000}) all.push_back(on_gpu(normal({count}, static_cast<uint64_t>(count), type)));
    all.push_back(askew(all[0], 3));
    const at::Tensor joined = at::cat(all).cpu().to(at::kDouble), sum = sum_of_squares(all);
    EXPECT_EQ(sum.scalar_type(), at::kDouble);
    EXPECT_TRUE(sum.is_cuda());
    EXPECT_NEAR(sum.item<double>() / at::sum(joined * joined).item<double>(), 1, 1e-5);
  }
}

// Where fp32 itself comes out a rounding apart on the two devices, an element may go the other way.
TEST(AdamwOnCuda, RoundsStochasticallyByTheNumbersOfTheHost) {
  CAIRN_NEEDS_GPU();
  const base::Random random = base::Random(7).for_name("w").for_index(3);
  for (const int64_t count : {1, 4096, 100003}) {
    GpuAdamwTensors t(count, 0, at::kBFloat16, at::kFloat, at::kFloat);
    const AdamwStep step{.learning_rate = 1e-3, .step = 3, .rounding = &random};
    const at::Tensor p = t.p.cpu().clone(), m = t.m.cpu().clone(), v = t.v.cpu().clone(), wide_p = p.to(at::kFloat), m2 = m.clone(),
                     v2 = v.clone();
    adamw(t.p, t.m, t.v, t.g, step);
    AdamwStep plain = step;
    plain.rounding = nullptr;
    adamw(wide_p, m2, v2, t.g.cpu(), plain);
    int64_t unlike = 0, moved = 0;
    const at::Tensor now = t.p.cpu();
    for (int64_t i = 0; i < count; ++i) {
      uint32_t bits = 0;
      std::memcpy(&bits, wide_p.const_data_ptr<float>() + i, sizeof(bits));
      const auto expected = static_cast<uint16_t>((bits + (random.bits32(static_cast<uint64_t>(i)) & 0xffff)) >> 16);
      unlike += static_cast<const uint16_t*>(now.const_data_ptr())[i] != expected;
      moved += static_cast<const uint16_t*>(now.const_data_ptr())[i] != static_cast<const uint16_t*>(p.const_data_ptr())[i];
    }
    EXPECT_LE(unlike, count / 1000) << count;
    if (count > 1000) {
      EXPECT_GT(moved, count / 100) << "updates below the spacing of bf16 must move some";
    }
  }
}

}  // namespace
}  // namespace cairn::kernels
