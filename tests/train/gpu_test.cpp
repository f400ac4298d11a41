// Training on a GPU gives the results of a CPU, with sizes for which matrix products use fused epilogues.
#include <cmath>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "base/files.h"
#include "base/json.h"
#include "base/metrics.h"
#include "harness/scratch_folder.h"
#include "kernels/aten.h"
#include "kernels/device.h"
#include "kernels/gemm/fp8_cuda.h"
#include "train/report/meter.h"
#include "train/train_on.h"

namespace cairn::train {
namespace {

base::Recipe for_gpu(const std::vector<std::string>& sets) {
  base::Recipe recipe = base::Recipe::parse(R"(
    model = {layers = 2, embed = 512, heads = 8, kv_heads = 8, mlp = 1024}
    data = {vocab = 1024, length = 128, stories_bytes = 400000}
    train = {global_batch = 36, steps = 6, precision = "bf16"}
    optim = {learning_rate = 0.003, warmup_steps = 2}
    log = {tensorboard = false, trace = false, samples = 0}
    eval = {fraction = 0}
  )",
                                            "gpu.toml");
  for (const std::string& set : sets) recipe.set(set);
  return recipe;
}

std::vector<double> losses_by(const std::string& device, const std::vector<std::string>& sets) {
  const harness::ScratchFolder scratch;
  return losses_on(1, for_gpu(sets), scratch / "run", /*resume=*/false, device);
}

void expect_near(const std::vector<double>& found, const std::vector<double>& expected, double relative, const std::string& what) {
  ASSERT_EQ(found.size(), expected.size()) << what;
  for (size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], expected[i], relative * expected[i]) << what << ", step " << i + 1;
}

TEST(OnGpu, TrainsAsOnACpu) {
  if (!kernels::can_use_cuda()) GTEST_SKIP() << "no GPU here";
  const std::vector<double> expected = losses_by("cpu", {});
  EXPECT_LT(expected.back(), 0.95 * expected.front());
  expect_near(losses_by("cuda", {}), expected, 0.01, "plain");
  expect_near(losses_by("cuda", {"train.micro_batch=12"}), expected, 0.01, "three passes a step");
  expect_near(losses_by("cuda", {"recompute.mode=\"full\""}), expected, 0.01, "recomputed");
  expect_near(losses_by("cuda", {"train.loss_chunks=5"}), expected, 0.01, "chunked cross entropy");
  expect_near(losses_by("cuda", {"train.loss_chunks=5", "train.gradients=\"bf16\""}), expected, 0.01, "whose gradients add up in fp32");
  expect_near(losses_by("cuda", {"recompute.mode=\"full\"", "recompute.inputs=\"host\"", "train.micro_batch=18"}), expected, 0.01,
              "kept on the host");
  const std::vector<double> gpt2 = losses_by("cpu", {"model.kind=\"gpt2\""});
  expect_near(losses_by("cuda", {"model.kind=\"gpt2\""}), gpt2, 0.01, "norms with a mean, biases, positions that are learned");
  for (const std::string residual : {"model.residual=\"ladder\"", "model.residual=\"parallel\""})
    expect_near(losses_by("cuda", {residual}), losses_by("cpu", {residual}), 0.01, residual);
  const std::vector<double> apart = losses_by("cpu", {"data.packing=\"documents\""});
  expect_near(losses_by("cuda", {"data.packing=\"documents\""}), apart, 0.01, "packed documents");
}

TEST(OnGpu, DeterministicRunsAreBitwiseIdentical) {
  if (!kernels::can_use_cuda()) GTEST_SKIP() << "no GPU here";
  const std::vector<std::string> sets{"train.deterministic=true", "train.steps=20"};
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.end(), sets.begin(), sets.end());
    return losses_by("cuda", more);
  };
  const std::vector<double> once = with({});
  EXPECT_EQ(with({}), once);
  EXPECT_EQ(with({"recompute.mode=\"full\""}), once);
  EXPECT_EQ(with({"recompute.mode=\"full\"", "recompute.inputs=\"host\""}), once);
  EXPECT_EQ(with({"train.check_every=4"}), once) << "gradients of each fourth step are computed twice";
  EXPECT_EQ(with({"train.cuda_graph=true"}), once) << "a CUDA graph repeats the kernels of a step";
  const std::vector<std::string> low{"train.parameters=\"bf16\"", "train.gradients=\"bf16\"", "optim.moments=\"bf16\""};
  std::vector<std::string> recorded_low = low;
  recorded_low.emplace_back("train.cuda_graph=true");
  EXPECT_EQ(with(recorded_low), with(low)) << "with the random numbers of each step's rounding";
  expect_near(once, losses_by("cuda", {"train.steps=20"}), 0.01, "in any order");
  const std::vector<double> apart = with({"data.packing=\"documents\""});
  EXPECT_EQ(with({"data.packing=\"documents\""}), apart);
}

// Gradient buffer reuse: activations use the memory of gradients until these are computed. Beside the logits, only the head's gradients
// exist.
TEST(OnGpu, GradientsHaveMemoryFromBackwardOn) {
  if (!kernels::can_use_cuda()) GTEST_SKIP() << "no GPU here";
  const auto gradients_at_most = [](std::vector<std::string> sets) {
    const harness::ScratchFolder scratch;
    sets.insert(sets.end(), {"log.memory=true", "sync.dp.bucket_mib=1", "data.vocab=4096", "train.steps=3"});
    train_on(1, for_gpu(sets), scratch / "run", /*resume=*/false, "cuda");
    const base::Json report = base::parse_json(base::read_file(scratch / "run" / "memory.json", 1 << 20));
    for (const base::Json& one : report.at("purposes"))
      if (one.at("purpose") == "gradients") return one.at("bytes").get<int64_t>();
    return int64_t{0};
  };
  const int64_t whole = gradients_at_most({"train.cuda_graph=true"}), reused = gradients_at_most({});
  EXPECT_GT(whole, 20'000'000) << "2 layers of 512 and 4,096 rows of it, in fp32";
  EXPECT_LT(reused, whole / 2);
}

TEST(OnGpu, LearnsFromSlopesAsOnACpu) {
  if (!kernels::can_use_cuda()) GTEST_SKIP() << "no GPU here";
  const std::vector<std::string> sets{"train.precision=\"fp32\"", "train.method=\"one_byte\"", "train.one_byte.samples_per_round=3",
                                      "train.one_byte.code=\"fp32\""};
  // The slopes, as floats: in the first round at the same weights, in later rounds at weights that earlier rounds have moved.
  const auto slopes_by = [&](const std::string& device, const std::string& rate) {
    const harness::ScratchFolder scratch;
    std::vector<std::string> all = sets;
    all.push_back("optim.learning_rate=" + rate);
    train_on(1, for_gpu(all), scratch / "run", /*resume=*/false, device);
    std::vector<double> norms;
    for (const base::MetricsRow& row : base::read_metrics(scratch / "run" / "metrics.jsonl")) norms.push_back(row.number("grad_norm"));
    return norms;
  };
  const std::vector<double> expected = slopes_by("cpu", "0.0005"), unmoved = slopes_by("cpu", "0.0");
  EXPECT_GT(std::abs(unmoved.back() / expected.back() - 1), 0.03) << "otherwise the test does not see that weights move";
  expect_near(slopes_by("cuda", "0.0005"), expected, 0.02, "one byte");
}

TEST(OnGpu, Fp8IsTheSameWhenAPassIsRepeated) {
  if (!kernels::can_use_cuda() || !kernels::has_fp8(at::Device(at::kCUDA, 0))) GTEST_SKIP() << "no GPU with fp8 here";
  const std::vector<double> low = losses_by("cuda", {}), coded = losses_by("cuda", {"train.fp8=\"all\""});
  expect_near(coded, low, 0.03, "fp8");
  expect_near(losses_by("cuda", {"train.fp8=\"all\"", "recompute.mode=\"full\""}), coded, 0.005, "recomputed");
  expect_near(losses_by("cuda", {"train.fp8=\"all\"", "train.loss_chunks=5"}), coded, 0.005, "chunked cross entropy");
}

TEST(OnGpu, CudaGraphStepsAreTheSame) {
  if (!kernels::can_use_cuda()) GTEST_SKIP() << "no GPU here";
  std::vector<std::vector<std::string>> cases{{},
                                              {"train.micro_batch=12"},
                                              {"recompute.mode=\"full\""},
                                              {"eval.fraction=0.1", "eval.every=2"},
                                              {"data.packing=\"documents\""},
                                              {"train.on_bad_step=\"skip\""},
                                              {"optim.kind=\"muon\""}};
  if (kernels::has_fp8(at::Device(at::kCUDA, 0))) cases.push_back({"train.fp8=\"all\""});
  for (std::vector<std::string> sets : cases) {
    const std::string what = sets.empty() ? "plain" : sets[0];
    sets.emplace_back("train.steps=10");
    const std::vector<double> expected = losses_by("cuda", sets);
    sets.emplace_back("train.cuda_graph=true");
    const harness::ScratchFolder scratch;
    expect_near(losses_on(1, for_gpu(sets), scratch / "run", /*resume=*/false, "cuda"), expected, 0.005, what);
    double repeated = 0;
    for (const base::MetricsRow& row : base::read_metrics(scratch / "run" / "metrics.jsonl"))
      if (row.has("recorded_passes")) repeated += row.number("recorded_passes");
    if (what != "data.packing=\"documents\"") {
      EXPECT_EQ(repeated, 7) << what;
    }
  }
}

TEST(OnGpu, KernelsAreWatched) {
  if (!kernels::can_use_cuda()) GTEST_SKIP() << "no GPU here";
  const harness::ScratchFolder scratch;
  train_on(1, for_gpu({"train.steps=24", "log.kernels=true"}), scratch / "run", /*resume=*/false, "cuda");
  const std::string table = base::read_file(scratch / "run" / "kernels.txt", 1 << 20);
  EXPECT_THAT(table, testing::HasSubstr("(nothing ran)"));
  EXPECT_THAT(table, testing::HasSubstr("adamw"));
}

// If the host waits for the GPU within a step (to evaluate, to compare gradients), it reads the previous step late, and the next one is
// done too: both are read within microseconds.
TEST(OnGpu, EveryStepHasItsOwnTimeThoughTwoAreReadAtOnce) {
  if (!kernels::can_use_cuda()) GTEST_SKIP() << "no GPU here";
  const at::Device device(at::kCUDA, 0);
  const at::Tensor a = at::ones({4096, 4096}, at::TensorOptions().device(device));
  const auto work = [&](int64_t products) {
    at::Tensor result;
    for (int64_t i = 0; i < products; ++i) result = at::mm(a, a);
    const at::Tensor one = result.select(0, 0).select(0, 0);
    return StepOutput{.loss_sum = one, .gradient_norm = one};
  };
  Meter meter(device);
  meter.add(1, work(1));
  const std::optional<Reading> first = meter.take(/*all=*/false);
  ASSERT_TRUE(first) << "the host waits for the first step";
  EXPECT_EQ(first->seconds, std::nullopt) << "the host times the first step";
  meter.add(2, work(16));
  EXPECT_EQ(meter.take(/*all=*/false), std::nullopt) << "the host does not wait for later steps";
  const StepOutput output = work(32);
  EXPECT_EQ(output.loss_sum.item<float>(), 4096) << "the host waits here";
  meter.add(3, output);
  const std::optional<Reading> second = meter.take(/*all=*/false), third = meter.take(/*all=*/true);
  ASSERT_TRUE(second && third);
  ASSERT_TRUE(second->seconds && third->seconds);
  EXPECT_GT(*second->seconds, 0.002) << "16 products of 137 GFLOP each";
  EXPECT_GT(*third->seconds, 1.2 * *second->seconds);
  EXPECT_LT(*third->seconds, 4 * *second->seconds);
}

}  // namespace
}  // namespace cairn::train
