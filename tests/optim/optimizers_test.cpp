// The update rules against plain loops in double precision, their state, and how they are chosen.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/random.h"
#include "kernels/device.h"
#include "kernels/stochastic_rounding.h"
#include "optim/bf16_optimizer.h"
#include "optim/needs.h"
#include "optim/orthogonalize.h"
#include "optim/series.h"

namespace cairn::optim {
namespace {

TEST(OptimizerNeeds, AreStatedByEveryRule) {
  EXPECT_TRUE(optimizer_needs("adamw").elementwise() && optimizer_needs("sgd").elementwise());
  EXPECT_EQ(optimizer_needs("muon").granularity, Granularity::matrices);
  EXPECT_EQ(optimizer_needs("adafactor").granularity, Granularity::matrices);
  EXPECT_TRUE(optimizer_needs("muon").updates_bf16 && !optimizer_needs("sgd").updates_bf16);
  EXPECT_THAT(elementwise_optimizers(), testing::StartsWith("adamw or sgd"));  // and whatever is added
}

using Matrix = std::vector<std::vector<double>>;

OptimOptions plain(const std::string& kind) {
  OptimOptions options;
  options.kind = kind;
  options.weight_decay = 0;
  return options;
}

Matrix product(const Matrix& a, const Matrix& b) {
  Matrix c(a.size(), std::vector<double>(b[0].size(), 0));
  for (size_t i = 0; i < a.size(); ++i)
    for (size_t k = 0; k < b.size(); ++k)
      for (size_t j = 0; j < b[0].size(); ++j) c[i][j] += a[i][k] * b[k][j];
  return c;
}

// Newton-Schulz as it is written, on a matrix that is not tall.
Matrix by_loops(Matrix x, int iterations) {
  double squares = 0;
  for (const auto& row : x)
    for (double v : row) squares += v * v;
  for (auto& row : x)
    for (double& v : row) v /= std::sqrt(squares);
  for (int n = 0; n < iterations; ++n) {
    Matrix turned(x[0].size(), std::vector<double>(x.size()));
    for (size_t i = 0; i < x.size(); ++i)
      for (size_t j = 0; j < x[0].size(); ++j) turned[j][i] = x[i][j];
    const Matrix gram = product(x, turned), gram2 = product(gram, gram);
    Matrix polynomial = gram;
    for (size_t i = 0; i < gram.size(); ++i)
      for (size_t j = 0; j < gram.size(); ++j) polynomial[i][j] = -4.7750 * gram[i][j] + 2.0315 * gram2[i][j];
    const Matrix rest = product(polynomial, x);
    for (size_t i = 0; i < x.size(); ++i)
      for (size_t j = 0; j < x[0].size(); ++j) x[i][j] = 3.4445 * x[i][j] + rest[i][j];
  }
  return x;
}

TEST(Orthogonalize, IsTheIterationWrittenOutAndLeavesSingularValuesNearOne) {
  const Walk walk({7, 11});
  walk.gradient_at(2);
  Matrix by_hand(7, std::vector<double>(11));
  for (int64_t i = 0; i < 77; ++i) by_hand[static_cast<size_t>(i / 11)][static_cast<size_t>(i % 11)] = series_gradient(i, 2);
  by_hand = by_loops(by_hand, 5);
  const at::Tensor wide = orthogonalize(walk.piece.gradient, 5), tall = orthogonalize(walk.piece.gradient.t(), 5);
  for (int64_t i = 0; i < 77; ++i)
    EXPECT_NEAR(wide[i / 11][i % 11].item<double>(), by_hand[static_cast<size_t>(i / 11)][static_cast<size_t>(i % 11)], 2e-4);
  EXPECT_TRUE(at::allclose(tall.t(), wide, 1e-4, 1e-4));
  // A matrix of full rank whose singular values are 1, 2 and 3.
  const at::Tensor diagonal = at::tensor({1.f, 0.f, 0.f, 0.f, 2.f, 0.f, 0.f, 0.f, 3.f}).view({3, 3});
  for (int i = 0; i < 3; ++i) EXPECT_NEAR(orthogonalize(diagonal, 5)[i][i].item<double>(), 0.95, 0.27);
  EXPECT_EQ(orthogonalize(at::zeros({2, 3}), 5).abs().sum().item<float>(), 0);
}

TEST(Orthogonalize, ForgivesTheRoundingsOfBf16) {
  const at::Tensor noise = at::empty({24, 40});
  base::Random(5).fill_normal({noise.mutable_data_ptr<float>(), 960});
  const at::Tensor exact = orthogonalize(noise, 5), low = orthogonalize(noise, 5, at::kBFloat16);
  EXPECT_EQ(low.scalar_type(), at::kFloat);
  EXPECT_FALSE(at::equal(low, exact));
  EXPECT_LT((low - exact).norm().item<double>(), 0.03 * exact.norm().item<double>());
  // Singular values of the result: its Gram matrix is near the unit matrix.
  const at::Tensor gram = low.mm(low.t());
  for (int64_t i = 0; i < 24; ++i) EXPECT_NEAR(gram[i][i].item<double>(), 0.9, 0.45);
}

TEST(Orthogonalize, TakesSeveralMatricesEachByItself) {
  for (const std::vector<int64_t>& size : {std::vector<int64_t>{3, 6, 10}, {3, 10, 6}, {1, 6, 10}}) {
    const at::Tensor noise = at::empty(size);
    base::Random(6).fill_normal({noise.mutable_data_ptr<float>(), static_cast<size_t>(noise.numel())});
    noise[0].mul_(100);  // a norm of its own
    const at::Tensor together = orthogonalize(noise, 5);
    for (int64_t i = 0; i < size[0]; ++i) EXPECT_TRUE(at::allclose(together[i], orthogonalize(noise[i], 5), 1e-4, 1e-5)) << i;
  }
}

TEST(Muon, LeavesWhatIsNoHiddenMatrixToAdamw) {
  OptimOptions options = plain("muon");
  options.muon_adamw_lr_ratio = 0.5;
  const Walk table({4, 3}, "table"), same({4, 3}, "table"), hidden({3, 3}, "hidden");
  ParameterPiece as_table = table.piece;
  as_table.hidden = false;
  const auto muon = make_optimizer(options, {hidden.piece, as_table});
  const auto adamw = make_optimizer(plain("adamw"), {same.piece});
  for (int64_t step = 1; step <= 3; ++step) {
    for (const Walk* walk : {&table, &same, &hidden}) walk->gradient_at(step);
    for (int64_t piece : {0, 1}) muon->update(piece, {.step = step, .learning_rate = 0.1});
    adamw->update(0, {.step = step, .learning_rate = 0.05});
  }
  EXPECT_EQ(table.values(), same.values());
  std::vector<std::string> names;
  for (const mesh::NamedTensor& state : muon->state()) names.push_back(state.name);
  EXPECT_THAT(names, testing::UnorderedElementsAre("momentum.hidden", "exp_avg.table", "exp_avg_sq.table"));
}

// A layer from `in` inputs to `out` outputs, stored [out, in] and [in, out]: after three steps the second is the first, transposed.
TEST(Muon, TakesTheSameStepsForALayerInEitherOrderOfStorage) {
  for (const auto& [out, in] : {std::pair<int64_t, int64_t>{8, 3}, {3, 8}, {5, 5}}) {
    std::vector<double> sizes;  // of the first step, by scale
    for (const MuonScale scale : {MuonScale::rms, MuonScale::spectral}) {
      OptimOptions options = plain("muon");
      options.muon_scale = scale;
      options.weight_decay = 0.1;
      const Walk walk({out, in}, "layer");
      ParameterPiece turned = walk.piece;
      turned.parameter = walk.piece.parameter.t().contiguous();
      turned.gradient = at::empty({in, out}, at::kFloat);
      turned.fan_in_fan_out = true;
      const auto straight_rule = make_optimizer(options, {walk.piece}), turned_rule = make_optimizer(options, {turned});
      const at::Tensor start = walk.piece.parameter.clone();
      for (int64_t step = 1; step <= 3; ++step) {
        walk.gradient_at(step);
        turned.gradient.copy_(walk.piece.gradient.t());
        straight_rule->update(0, {.step = step, .learning_rate = 0.1});
        turned_rule->update(0, {.step = step, .learning_rate = 0.1});
        if (step == 1) sizes.push_back((walk.piece.parameter - start * (1 - 0.1 * 0.1)).norm().item<double>());
        const double farthest = (turned.parameter.t() - walk.piece.parameter).abs().max().item<double>();
        EXPECT_LT(farthest, 1e-5) << out << " outputs, " << in << " inputs, step " << step;
      }
    }
    const double widest = static_cast<double>(std::max(out, in)), ratio = static_cast<double>(out) / static_cast<double>(in);
    EXPECT_NEAR(sizes[1] / sizes[0], std::sqrt(std::max(1.0, ratio)) / (0.2 * std::sqrt(widest)), 1e-4);
  }
}

// Matrices and the rest, kept in bf16: an update in fp32, rounded once by the numbers of the name and the step.
TEST(Muon, RoundsWhatIsKeptInBf16OnceAStep) {
  for (const Rounding rounding : {Rounding::stochastic, Rounding::nearest}) {
    OptimOptions options = plain("muon");
    options.weight_decay = 0.1;
    options.rounding = rounding;
    const Walk wide_matrix({6, 8}, "matrix"), wide_vector({5}, "vector");
    std::vector<ParameterPiece> low;
    for (const Walk* walk : {&wide_matrix, &wide_vector}) {
      ParameterPiece piece = walk->piece;
      piece.parameter = piece.parameter.to(at::kBFloat16);
      low.push_back(piece);
    }
    const base::Random seed(7), random = seed.for_purpose("rounding");
    const auto rounded = make_bf16_optimizer(options, low, seed);
    const auto exact = make_optimizer(options, {wide_matrix.piece, wide_vector.piece});
    for (int64_t step = 1; step <= 3; ++step) {
      std::vector<at::Tensor> expected;
      for (size_t i = 0; i < 2; ++i) {
        const Walk& walk = i == 0 ? wide_matrix : wide_vector;
        walk.gradient_at(step);  // both share it
        walk.piece.parameter.copy_(low[i].parameter);
        exact->update(static_cast<int64_t>(i), {.step = step, .learning_rate = 0.01});
        expected.push_back(at::empty_like(low[i].parameter));
        if (rounding == Rounding::nearest)
          expected.back().copy_(walk.piece.parameter);
        else
          kernels::round_stochastically(expected.back(), walk.piece.parameter,
                                        random.for_name(low[i].name).for_index(static_cast<uint64_t>(step)), 0);
      }
      rounded->update_several(0, 2, {.step = step, .learning_rate = 0.01});
      for (size_t i = 0; i < 2; ++i)
        EXPECT_TRUE(at::equal(low[i].parameter, expected[i]))
            << base::enum_name(kRoundingNames, rounding) << ", step " << step << ", piece " << i;
    }
  }
}

TEST(Sgd, DecaysBesideTheGradientWhereDecoupled) {
  OptimOptions options = plain("sgd");
  options.weight_decay = 0.3;
  options.momentum = 0.8;
  options.nesterov = false;
  const Walk walk({2, 2});
  const auto rule = make_optimizer(options, {walk.piece});
  walk.steps(*rule, 1, 4, 0.1);
  for (int64_t i = 0; i < 4; ++i) {
    double p = series_start(i), b = 0;
    for (int64_t step = 1; step <= 4; ++step) {
      b = 0.8 * b + series_gradient(i, step);
      p = p * (1 - 0.1 * 0.3) - 0.1 * b;
    }
    EXPECT_NEAR(walk.values()[static_cast<size_t>(i)], p, 1e-6);
  }
}

// One step after another of Adafactor on a matrix, with fixed steps and a first moment; written out in double.
TEST(Adafactor, FollowsThePaperWithFixedStepsAndAFirstMoment) {
  OptimOptions options = plain("adafactor");
  options.adafactor_beta1 = 0.5;
  options.adafactor_clip_threshold = 0.7;  // so that it bites
  options.weight_decay = 0.2;
  constexpr size_t kRows = 3, kColumns = 2;
  const Walk walk({kRows, kColumns});
  const auto rule = make_optimizer(options, {walk.piece});
  walk.steps(*rule, 1, 3, 0.05);
  double p[6], m[6] = {}, rows[kRows] = {}, columns[kColumns] = {};
  for (int64_t i = 0; i < 6; ++i) p[i] = series_start(i);
  for (int64_t step = 1; step <= 3; ++step) {
    double g[6], u[6], row_mean = 0, square = 0;
    const double fresh = std::pow(static_cast<double>(step), -0.8);
    for (int64_t i = 0; i < 6; ++i) g[i] = series_gradient(i, step);
    for (size_t r = 0; r < kRows; ++r) rows[r] += fresh * ((g[2 * r] * g[2 * r] + g[2 * r + 1] * g[2 * r + 1]) / 2 - rows[r]);
    for (size_t c = 0; c < kColumns; ++c)
      columns[c] += fresh * ((g[c] * g[c] + g[2 + c] * g[2 + c] + g[4 + c] * g[4 + c]) / 3 - columns[c]);
    for (double row : rows) row_mean += row / kRows;
    for (size_t i = 0; i < 6; ++i) u[i] = g[i] / std::sqrt(rows[i / 2] * columns[i % 2] / row_mean);
    for (double one : u) square += one * one / 6;
    for (size_t i = 0; i < 6; ++i) {
      m[i] = 0.5 * m[i] + 0.5 * 0.05 * u[i] / std::max(1.0, std::sqrt(square) / 0.7);
      p[i] = p[i] * (1 - 0.05 * 0.2) - m[i];
    }
  }
  for (size_t i = 0; i < 6; ++i) EXPECT_NEAR(walk.values()[i], p[i], 1e-6);
}

TEST(Adafactor, KeepsAVectorForEachSideOfAMatrix) {
  const auto rule = make_optimizer(plain("adafactor"), {Walk({30, 20}, "w").piece, Walk({7}, "g").piece});
  int64_t elements = 0;
  std::vector<std::string> names;
  for (const mesh::NamedTensor& state : rule->state()) elements += state.tensor.numel(), names.push_back(state.name);
  EXPECT_EQ(elements, 30 + 20 + 7);
  EXPECT_THAT(names, testing::ElementsAre("row_mean.w", "column_mean.w", "exp_avg_sq.g"));
}

// Pieces of several sizes, some alike, one that does not decay and one that is no matrix; updated one by one, and all at once.
std::vector<at::Tensor> after_three_steps(const OptimOptions& options, at::Device device, bool at_once) {
  std::vector<ParameterPiece> pieces;
  for (const std::vector<int64_t>& size : {std::vector<int64_t>{24, 40}, {7}, {24, 40}, {40, 24}, {24, 40}}) {
    ParameterPiece piece = Walk(size, std::to_string(pieces.size())).piece;
    piece.parameter = piece.parameter.to(device), piece.gradient = piece.gradient.to(device);
    piece.decays = pieces.size() != 2;
    pieces.push_back(piece);
  }
  const auto rule = make_optimizer(options, pieces);
  const at::Tensor factor = at::full({1}, 0.5, pieces[0].parameter.options());
  for (int64_t step = 1; step <= 3; ++step) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      const at::Tensor noise = at::empty(pieces[i].gradient.sizes());
      base::Random(8)
          .for_index(static_cast<uint64_t>(step))
          .for_index(i)
          .fill_normal({noise.mutable_data_ptr<float>(), static_cast<size_t>(noise.numel())});
      pieces[i].gradient.copy_(noise);
    }
    const UpdateFacts facts{.step = step, .learning_rate = 0.1, .gradient_factor = &factor};
    const auto count = static_cast<int64_t>(pieces.size());
    if (at_once) rule->update_several(0, count, facts);
    for (int64_t i = 0; !at_once && i < count; ++i) rule->update(i, facts);
  }
  std::vector<at::Tensor> result;
  for (const ParameterPiece& piece : pieces) result.push_back(piece.parameter.cpu());
  for (const mesh::NamedTensor& state : rule->state()) result.push_back(state.tensor.cpu());
  return result;
}

TEST(Rules, UpdateSeveralPiecesAsOneByOne) {
  for (const std::string& kind : optimizer_names()) {
    OptimOptions options = plain(kind);
    options.weight_decay = 0.1;
    const auto one_by_one = after_three_steps(options, at::kCPU, false), at_once = after_three_steps(options, at::kCPU, true);
    for (size_t i = 0; i < one_by_one.size(); ++i) EXPECT_TRUE(at::equal(at_once[i], one_by_one[i])) << kind << ", tensor " << i;
  }
}

// There matrices of one size are multiplied together, in bf16.
TEST(RulesOnCuda, UpdateSeveralPiecesAsOneByOne) {
  if (!kernels::can_use_cuda()) GTEST_SKIP() << "no GPU here";
  for (const std::string& kind : optimizer_names()) {
    OptimOptions options = plain(kind);
    options.weight_decay = 0.1;
    const auto on_cpu = after_three_steps(options, at::kCPU, false);
    for (const bool at_once : {false, true}) {
      const auto found = after_three_steps(options, at::kCUDA, at_once);
      const double allowed = kind == "muon" ? 0.02 : 1e-5;
      for (size_t i = 0; i < on_cpu.size(); ++i)
        EXPECT_LT((found[i] - on_cpu[i]).norm().item<double>(), allowed * on_cpu[i].norm().item<double>())
            << kind << ", tensor " << i << (at_once ? " at once" : " one by one");
    }
  }
}

// Gradients of which most models have some: none at all, and very small ones.
TEST(Rules, StayFiniteOnZeroAndTinyGradients) {
  for (const std::string& kind : optimizer_names())
    for (float size : {0.f, 1e-12f}) {
      const Walk walk({3, 4});
      const auto rule = make_optimizer(plain(kind), {walk.piece});
      walk.gradient_at(1);
      walk.piece.gradient.mul_(size);
      rule->update(0, {.step = 1, .learning_rate = 0.1});
      for (double value : walk.values()) EXPECT_TRUE(std::isfinite(value)) << kind << ", gradients of " << size;
    }
}

TEST(Rules, CountTheGradientTimesScaleAndFactor) {
  const at::Tensor factor = at::tensor(0.5f);
  for (const std::string& kind : optimizer_names()) {
    const Walk whole({3, 4}), scaled({3, 4});
    const auto one = make_optimizer(plain(kind), {whole.piece}), other = make_optimizer(plain(kind), {scaled.piece});
    whole.gradient_at(1);
    scaled.gradient_at(1);
    scaled.piece.gradient.mul_(8);
    one->update(0, {.step = 1, .learning_rate = 0.1});
    other->update(0, {.step = 1, .learning_rate = 0.1, .gradient_scale = 0.25, .gradient_factor = &factor});
    EXPECT_EQ(whole.values(), scaled.values()) << kind;
  }
}

TEST(Rules, ContinueBitForBitFromSavedState) {
  for (const std::string& kind : optimizer_names()) {
    OptimOptions options = plain(kind);
    options.adafactor_beta1 = 0.9;
    const Walk whole({5, 3}), resumed({5, 3});
    const auto one = make_optimizer(options, {whole.piece}), other = make_optimizer(options, {resumed.piece});
    whole.steps(*one, 1, 3, 0.1);
    resumed.piece.parameter.copy_(whole.piece.parameter);
    const mesh::NamedTensors from = one->state(), into = other->state();
    ASSERT_EQ(from.size(), into.size()) << kind;
    for (size_t i = 0; i < from.size(); ++i) {
      EXPECT_EQ(from[i].name, into[i].name);
      into[i].tensor.copy_(from[i].tensor);
    }
    whole.steps(*one, 4, 6, 0.1);
    resumed.steps(*other, 4, 6, 0.1);
    EXPECT_EQ(whole.values(), resumed.values()) << kind;
  }
}

TEST(Rules, TellTheirStateOverPiecesWithoutValues) {
  for (const std::string& kind : optimizer_names()) {
    const at::Tensor nowhere = at::empty({6, 5}, at::TensorOptions().dtype(at::kFloat).device(at::kMeta));
    const auto rule = make_optimizer(plain(kind), {{"w", nowhere, nowhere, true, true}});
    int64_t bytes = 0;
    for (const mesh::NamedTensor& state : rule->state()) bytes += static_cast<int64_t>(state.tensor.nbytes());
    EXPECT_EQ(bytes, kind == "adamw" || kind == "riemannian_adam" ? 240 : kind == "adafactor" ? 44 : 120) << kind;
  }
}

TEST(Rules, AnUnknownOneIsRefusedAndTheNearestNamed) {
  try {
    make_optimizer(plain("mion"), {});
    ADD_FAILURE() << "accepted";
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), Error::Kind::bad_input);
    EXPECT_STREQ(error.what(), "unknown optimizer \"mion\": did you mean \"muon\"?");
  }
}

}  // namespace
}  // namespace cairn::optim
