// The rules against torch.optim of PyTorch 2.11: the literals are what tests/optim/torch_reference.py prints (in double precision).
#include <gtest/gtest.h>

#include "optim/series.h"

namespace cairn::optim {
namespace {

struct Case {
  const char* name;
  OptimOptions options;
  std::vector<int64_t> shape;
  std::vector<double> after_three_steps;
};

OptimOptions with(const char* kind, double learning_rate, double weight_decay) {
  OptimOptions options;
  options.kind = kind;
  options.learning_rate = learning_rate;
  options.weight_decay = weight_decay;
  return options;
}

void follows(Case wanted) {
  const Walk walk(wanted.shape);
  const auto rule = make_optimizer(wanted.options, {walk.piece});
  walk.steps(*rule, 1, 3, wanted.options.learning_rate);
  const std::vector<double> values = walk.values();
  ASSERT_EQ(values.size(), wanted.after_three_steps.size());
  // Single precision; the iteration of Muon raises a rounding error up to 3.4^5 times.
  const double tolerance = wanted.options.kind == "muon" ? 2e-5 : 1e-6;
  for (size_t i = 0; i < values.size(); ++i)
    EXPECT_NEAR(values[i], wanted.after_three_steps[i], tolerance) << wanted.name << ", element " << i;
}

TEST(TorchReference, SgdWithNesterovMomentumAndL2) {
  OptimOptions options = with("sgd", 0.1, 0.01);
  options.momentum = 0.9;
  options.decay_decoupled = false;
  follows({"nesterov, l2",
           options,
           {3, 5},
           {0.892444786, 0.970568, 0.266333509, -0.699140963, -0.814135884, -0.618697568, 0.555993147, 1.09564551, 0.503406553,
            -0.465678597, -0.856138418, -0.722171119, 0.148350534, 1.12746407, 0.704521329}});
}

TEST(TorchReference, SgdWithAndWithoutMomentum) {
  OptimOptions options = with("sgd", 0.1, 0);
  options.momentum = 0.9;
  options.nesterov = false;
  follows({"momentum",
           options,
           {3, 5},
           {0.857293597, 0.979772953, 0.229604327, -0.696603979, -0.87966431, -0.522700534, 0.569229271, 1.0788422, 0.487453489,
            -0.476807287, -0.904929773, -0.684813951, 0.222418516, 1.08352629, 0.712305565}});
  options.momentum = 0;
  follows({"plain",
           options,
           {3, 5},
           {0.884762836, 0.914778435, 0.188167632, -0.759038011, -0.893169412, -0.402632546, 0.639841088, 1.02330727, 0.439266103,
            -0.53018421, -0.949549613, -0.593576382, 0.329116585, 1.05190005, 0.654293564}});
}

TEST(TorchReference, MuonOnWideAndTallMatricesWithBothScales) {
  OptimOptions options = with("muon", 0.1, 0.01);
  options.muon_scale = MuonScale::spectral;
  follows({"wide",
           options,
           {3, 5},
           {0.842089971, 0.959349994, 0.219474889, -0.69549339, -0.85194432, -0.481450236, 0.569079217, 1.04570538, 0.506981299,
            -0.471098248, -0.943739021, -0.674674328, 0.279027166, 1.07602439, 0.700000326}});
  follows({"tall",
           options,
           {5, 3},
           {0.965680759, 1.06196686, 0.231669081, -0.707906177, -0.910325059, -0.502454518, 0.621871182, 1.1063672, 0.480828435, -0.4609355,
            -0.870558915, -0.629286106, 0.197266995, 1.05204539, 0.710818386}});
  options.muon_scale = MuonScale::rms;
  options.nesterov = false;
  follows({"rms",
           options,
           {5, 3},
           {0.875406675, 0.965652272, 0.19055757, -0.748424986, -0.940225034, -0.367551147, 0.631969658, 1.02695535, 0.4378915,
            -0.514140413, -0.951086708, -0.577278678, 0.333518431, 1.00146067, 0.652042594}});
}

TEST(TorchReference, AdafactorWithRelativeSteps) {
  OptimOptions options = with("adafactor", 0.1, 0.01);
  options.relative_step = true;
  follows({"matrix",
           options,
           {3, 5},
           {0.903035757, 0.940909989, 0.230930015, -0.743207941, -0.799677711, -0.527239495, 0.639925668, 1.03406433, 0.467581639,
            -0.530541167, -0.896512119, -0.663266549, 0.242988813, 1.1307541, 0.638279094}});
  options.learning_rate = 0.9;  // above 1 / sqrt(t) from the second step on
  options.weight_decay = 0;
  follows({"vector", options, {4}, {1.49696483, 1.57197733, 0.722265547, -0.637831194}});
}

}  // namespace
}  // namespace cairn::optim
