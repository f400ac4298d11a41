// What a step does beside its passes, and in fp8.
#include <memory>

#include "base/random.h"
#include "bench/kernels.h"
#include "kernels/adamw.h"
#include "kernels/fill_normal.h"
#include "kernels/fp8.h"
#include "kernels/gemm.h"
#include "kernels/gemm/fp8_cuda.h"
#include "kernels/perturb.h"
#include "kernels/stochastic_rounding.h"
#include "optim/optimizer.h"
#include "optim/options.h"

namespace cairn::study {
namespace {

constexpr int64_t kCount = int64_t{1} << 27;
const std::vector<int64_t> kFlat{kCount};

// As many matrices as a small model has, by one rule: together, and one after the other.
void measure_muon(const Measure& products) {
  constexpr int64_t kMatrices = 48, kWidth = 768, kIterations = 5;
  std::vector<optim::ParameterPiece> pieces;
  for (int64_t i = 0; i < kMatrices; ++i)
    pieces.push_back({"matrix." + std::to_string(i), at::randn({kWidth, kWidth}, on_gpu(at::kFloat)),
                      at::randn({kWidth, kWidth}, on_gpu(at::kFloat)), true, true});
  const auto muon = optim::make_optimizer({.kind = "muon", .muon_iterations = kIterations}, pieces);
  const optim::UpdateFacts facts{.learning_rate = 1e-3};
  const double flops = 6.0 * kMatrices * kIterations * kWidth * kWidth * kWidth;  // three products each time
  products({"muon, 48 matrices", flops, [&](int) { muon->update_several(0, kMatrices, facts); },
            [&](int) {
              for (int64_t i = 0; i < kMatrices; ++i) muon->update(i, facts);
            }});
}

// Pieces as a small model of 16 layers has them, some of them very short.
void measure_many_pieces(const Measure& bytes) {
  constexpr int64_t kLayers = 16;
  std::vector<kernels::AdamwPiece> pieces;
  int64_t elements = 0;
  const auto add = [&](int64_t count) {
    const auto tensor = [&] { return at::zeros({count}, on_gpu(at::kBFloat16)); };
    pieces.push_back({tensor(), tensor(), tensor(), tensor(), 0.1});
    elements += count;
  };
  for (int64_t layer = 0; layer < kLayers; ++layer)
    for (const int64_t count : {1024, 1024 * 1024, 256 * 1024, 256 * 1024, 1024 * 1024, 1024, 2048 * 1024, 2048 * 1024, 2048 * 1024})
      add(count);
  const kernels::AdamwStep step{.learning_rate = 1e-3};
  bytes({"adamw, 144 pieces", 14.0 * static_cast<double>(elements), [&](int) { kernels::adamw(pieces, step); },
         [&](int) {
           for (const kernels::AdamwPiece& one : pieces) kernels::adamw({&one, 1}, step);
         }});
}

}  // namespace

void measure_updates(const Measure& bytes, const Measure& products) {
  {
    const Sets p(kFlat), g(kFlat), m(kFlat, at::kBFloat16, 0.0), v(kFlat, at::kBFloat16, 0.0);
    const base::Random random(1);
    kernels::AdamwStep nearest{.learning_rate = 1e-3}, drawn = nearest;
    drawn.rounding = &random;
    const auto plain = [&](int i) { kernels::reference::adamw(p[i], m[i], v[i], g[i], nearest); };
    bytes({"adamw in bf16", 14.0 * kCount, [&](int i) { kernels::adamw(p[i], m[i], v[i], g[i], nearest); }, plain});
    bytes({"adamw in bf16, rounded stochastically", 14.0 * kCount, [&](int i) { kernels::adamw(p[i], m[i], v[i], g[i], drawn); }, plain});
    bytes({"sum_of_squares in bf16", 2.0 * kCount, [&](int i) { kernels::sum_of_squares(g[i]); },
           [&](int i) { kernels::reference::sum_of_squares(g[i]); }});
  }
  measure_many_pieces(bytes);
  measure_muon(products);
}

void measure_codes(const Measure& bytes, const Measure& products) {
  if (!kernels::has_fp8(at::Device(at::kCUDA, 0))) return;
  constexpr int64_t kRows = 24576, kEmbed = 2048, kMlp = 8192;
  const Sets x({kRows, kEmbed}), w({kMlp, kEmbed}, at::kBFloat16, 0.02), y({kRows, kMlp});
  // Read at least once, and written as codes by rows and by columns.
  bytes({"to_fp8", 4.0 * kRows * kEmbed, [&](int i) { kernels::to_fp8(x[i], kernels::Fp8::e4m3); },
         [&](int i) { kernels::reference::to_fp8(x[i], kernels::Fp8::e4m3); }});
  std::vector<kernels::Fp8Matrix> x_codes, w_codes;
  for (int i = 0; i < Sets::kSets; ++i) {
    x_codes.push_back(kernels::to_fp8(x[i], kernels::Fp8::e4m3));
    w_codes.push_back(kernels::to_fp8(w[i], kernels::Fp8::e4m3));
  }
  const double flops = 2.0 * kRows * kEmbed * kMlp;
  const auto of = [](const std::vector<kernels::Fp8Matrix>& all, int i) -> const kernels::Fp8Matrix& {
    return all[static_cast<size_t>(i)];
  };
  products({"linear in fp8, to bf16", flops, [&](int i) { kernels::linear(y[i], of(x_codes, i), of(w_codes, i)); },
            [&](int i) { kernels::linear(y[i], x[i], w[i]); }});
}

void measure_noise(const Measure& bytes) {
  const Sets wide(kFlat, at::kFloat), low(kFlat), other(kFlat);
  const base::Random random(1);
  bytes({"round_stochastically", 6.0 * kCount, [&](int i) { kernels::round_stochastically(low[i], wide[i], random, 0); },
         [&](int i) {
           const at::Tensor bits = wide[i].view(at::kInt) + at::randint(0, 1 << 16, kFlat, on_gpu(at::kInt));
           low[i].copy_(bits.bitwise_and_(-(1 << 16)).view(at::kFloat));
         }});
  bytes({"fill_normal in bf16", 2.0 * kCount, [&](int i) { kernels::fill_normal(low[i], random, 0, 0.02); },
         [&](int i) { low[i].normal_(0, 0.02); }});
  const kernels::Direction direction{.random = random, .coefficient = 0.01f};
  bytes({"perturb in bf16", 4.0 * kCount, [&](int i) { kernels::perturb(other[i], low[i], direction, 0, kernels::Noise::normal); },
         [&](int i) { other[i].copy_(low[i] + 0.01 * at::randn(kFlat, low[i].options())); }});
}

}  // namespace cairn::study
