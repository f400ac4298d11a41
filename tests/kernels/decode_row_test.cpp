#include "kernels/decode_row.h"

#include <cmath>
#include <vector>

#include <gtest/gtest.h>

#include "base/random.h"
#include "kernels/cpu/barrier.h"
#include "kernels/cpu/parallel.h"

namespace cairn::kernels {
namespace {

std::vector<float> normals(int64_t count, uint64_t seed) {
  std::vector<float> values(static_cast<size_t>(count));
  base::Random(seed).fill_normal(values);
  return values;
}

constexpr int64_t kSizes[] = {1, 3, 16, 31, 64, 131};

TEST(DecodeRow, NormsAreThoseOfTheirFormulas) {
  for (int64_t n : kSizes) {
    const std::vector<float> x = normals(n, 1), gain = normals(n, 2), shift = normals(n, 3);
    std::vector<float> rms(x), layer(x);
    rms_norm_row(rms.data(), rms.data(), gain.data(), n, 1e-5);
    layer_norm_row(layer.data(), layer.data(), gain.data(), shift.data(), n, 1e-5);
    double squares = 0, total = 0, spread = 0;
    for (float v : x) squares += static_cast<double>(v) * v, total += v;
    const double mean = total / static_cast<double>(n);
    for (float v : x) spread += (v - mean) * (v - mean);
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(rms[i], x[i] / std::sqrt(squares / static_cast<double>(n) + 1e-5) * gain[i], 2e-6 * (1 + std::abs(rms[i])));
      EXPECT_NEAR(layer[i], (x[i] - mean) / std::sqrt(spread / static_cast<double>(n) + 1e-5) * gain[i] + shift[i], 4e-6);
    }
  }
}

TEST(DecodeRow, ActivationsAreThoseOfTheirFormulasFarOutToo) {
  for (int64_t n : kSizes) {
    std::vector<float> gate = normals(n, 1), x = normals(n, 3);
    const std::vector<float> up = normals(n, 2);
    gate[0] = -120, x[0] = 90;
    const std::vector<float> gate_before = gate, before = x;
    swiglu_row(gate.data(), up.data(), n);
    gelu_row(x.data(), n);
    for (size_t i = 0; i < x.size(); ++i) {
      const double g = gate_before[i], v = before[i];
      EXPECT_NEAR(gate[i], g / (1 + std::exp(-g)) * up[i], 2e-6);
      EXPECT_NEAR(x[i], 0.5 * v * (1 + std::tanh(std::sqrt(2 / M_PI) * (v + 0.044715 * v * v * v))), 4e-6 * (1 + std::abs(v)));
    }
  }
}

TEST(DecodeRow, TurnsPairsByTheirAngles) {
  std::vector<float> head{1, 2, 3, 4};
  const std::vector<float> cos{0, 0.6f}, sin{1, 0.8f};
  rotate_row(head.data(), cos.data(), sin.data(), 2);
  const std::vector<float> expected{-3, 2 * 0.6f - 4 * 0.8f, 1, 4 * 0.6f + 2 * 0.8f};
  for (size_t i = 0; i < 4; ++i) EXPECT_NEAR(head[i], expected[i], 1e-6);
}

TEST(DecodeRow, AttendsToEveryEarlierPositionAndItsOwn) {
  for (int64_t count : {0, 1, 15, 16, 17, 100})
    for (int64_t dim : {1, 4, 8, 33, 64, 80}) {
      const int64_t stride = dim + 5;
      const std::vector<float> q = normals(dim, 1), k = normals(count * stride + 1, 2), v = normals(count * stride + 1, 3);
      const std::vector<float> own_k = normals(dim, 4), own_v = normals(dim, 5);
      std::vector<float> out(static_cast<size_t>(dim)), scores(static_cast<size_t>(count) + 16);
      attend_row(out.data(), q.data(), {k.data(), v.data(), stride, count, own_k.data(), own_v.data(), dim, 0.5f}, scores.data());
      std::vector<double> mixed(static_cast<size_t>(dim));
      double total = 0;
      for (int64_t j = 0; j <= count; ++j) {
        const float *key = j < count ? k.data() + j * stride : own_k.data(), *value = j < count ? v.data() + j * stride : own_v.data();
        double score = 0;
        for (int64_t d = 0; d < dim; ++d) score += static_cast<double>(q[static_cast<size_t>(d)]) * key[d];
        total += std::exp(0.5 * score);
        for (int64_t d = 0; d < dim; ++d) mixed[static_cast<size_t>(d)] += std::exp(0.5 * score) * value[d];
      }
      for (size_t d = 0; d < mixed.size(); ++d) EXPECT_NEAR(out[d], mixed[d] / total, 4e-6) << count << " keys of " << dim;
    }
}

TEST(DecodeRow, SummarizesLogits) {
  for (int64_t n : {1, 16, 29, 5000}) {
    std::vector<float> x = normals(n, 6);
    x[static_cast<size_t>(n / 2)] = 40;
    double total = 0;
    for (float v : x) total += std::exp(static_cast<double>(v) - 40);
    const RowSummary found = summarize_row(x.data(), n);
    EXPECT_EQ(found.largest, n / 2);
    EXPECT_NEAR(found.log_sum_exp, 40 + std::log(total), 1e-6);
  }
}

TEST(Barrier, LetsNobodyPassBeforeAllHaveCome) {
  Barrier barrier;
  std::atomic<int> passed{0};
  std::atomic<bool> early{false};
#pragma omp parallel num_threads(3)
  for (int round = 1; round <= 50; ++round) {
    passed.fetch_add(1);
    barrier.wait(omp_get_num_threads());
    if (passed.load() < round * omp_get_num_threads()) early = true;
    barrier.wait(omp_get_num_threads());
  }
  EXPECT_FALSE(early);
}

}  // namespace
}  // namespace cairn::kernels
