// ParScale: P streams through one model, each with learned prefixes, mixed per token. The baseline is the same model with one stream.
#include <algorithm>
#include <cmath>
#include <filesystem>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/log.h"
#include "base/metrics.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/decoder/stream_options.h"
#include "model/generate/generate.h"
#include "model/model.h"
#include "proofs/layout_run.h"
#include "study/claims.h"
#include "study/parallel_law.h"

namespace cairn::study {
namespace {

// The published losses: lines of six sizes for 1, 2, 4 and 8 streams.
constexpr double kSizes[4][6] = {{535813376, 693753856, 1088376320, 1571472384, 2774773760, 4353203200},
                                 {538195842, 696738818, 1092762882, 1577522690, 2784937986, 4368529922},
                                 {540577412, 699722756, 1097148164, 1583571460, 2795100164, 4383854084},
                                 {545340552, 705690632, 1105918728, 1595669000, 2815424520, 4414502408}};
constexpr double kCode[4][6] = {{1.1722, 1.1496, 1.1131, 1.0817, 1.0451, 1.0213},
                                {1.1507, 1.1262, 1.0940, 1.0623, 1.0244, 1.0025},
                                {1.1354, 1.1124, 1.0808, 1.0490, 1.0126, 0.9906},
                                {1.1231, 1.0997, 1.0688, 1.0383, 1.0016, 0.9794}};
constexpr double kPile[4][6] = {{2.1113, 2.0671, 2.0027, 1.9539, 1.8876, 1.8451},
                                {2.0772, 2.0363, 1.9730, 1.9266, 1.8610, 1.8137},
                                {2.0544, 2.0128, 1.9509, 1.9040, 1.8394, 1.7938},
                                {2.0364, 1.9933, 1.9318, 1.8856, 1.8218, 1.7772}};

// 1. The law of the published losses.
void law(Findings& findings, base::Log& log) {
  const auto check = [&](const char* name, const double(&losses)[4][6], const ParallelLaw& published, double r_squared) {
    std::vector<LawPoint> points;
    for (size_t p = 0; p < 4; ++p)
      for (size_t n = 0; n < 6; ++n) points.push_back({kSizes[p][n], std::pow(2.0, static_cast<double>(p)), losses[p][n]});
    const LawFit fit = fit_parallel_law(points);
    log.info("{}: E {:.4f}, A {:.4g}, k {:.4f}, alpha {:.4f}, R^2 {:.4f}", name, fit.law.e, fit.law.a, fit.law.k, fit.law.alpha,
             fit.r_squared);
    const auto off = [](double found, double expected) { return std::abs(found / expected - 1); };
    findings.at_most(fmt::format("1. {}: E, A, k and alpha against the published ones, largest relative difference", name), 0,
                     std::max({off(fit.law.e, published.e), off(fit.law.a, published.a), off(fit.law.k, published.k),
                               off(fit.law.alpha, published.alpha)}),
                     0.005);
    findings.at_most(fmt::format("1. {}: R squared against the published one, difference", name), 0, std::abs(fit.r_squared - r_squared),
                     5.1e-5);
  };
  check("code", kCode, {.e = 0.6912, .a = 1.131e7, .k = 0.3935, .alpha = 0.1894}, 0.9978);
  check("Pile", kPile, {.e = 1.2888, .a = 1.974e8, .k = 0.3345, .alpha = 0.1963}, 0.9987);
}

// A small model with random weights.
struct Small {
  model::DecoderShape shape;
  std::unique_ptr<model::Model> model;
  at::Tensor flat;
  model::Buffers buffers;

  Small(int64_t streams, double smoothing, uint64_t seed)
      : shape{.vocab = 64, .embed = 64, .layers = 3, .heads = 4, .kv_heads = 2, .head_dim = 16, .mlp = 96, .length = 256} {
    if (streams > 1) shape.streams = {.count = streams, .prefix_tokens = 16, .smoothing = smoothing};
    model = model::make_decoder(shape);
    flat = at::empty({model->elements()});
    model::initialize_parameters(*model, flat, base::Random(seed));
    flat.mul_(6);  // so that tokens differ clearly in likelihood
    buffers = model->make_buffers(at::kFloat);
  }
  mesh::NamedTensors named() const { return model->layout().views(flat); }
  at::Tensor logits(const std::vector<int32_t>& ids) {
    const at::NoGradGuard no_grad;
    const model::FlatWeights weights(model->layout(), flat);
    const mesh::Axes alone;
    const model::Call call{.weights = weights, .buffers = buffers, .axes = alone};
    model::Values values;
    values.put("tokens", at::tensor(ids, at::kInt).to(at::kLong).view({1, -1}));
    for (const auto& block : model->blocks()) block->forward(values, nullptr, call);
    return values.get("logits")[0];
  }
};

// 2. Streams against one another.
void equivalence(const ProofOptions& options, Findings& findings, base::Log& log) {
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 40; ++i) ids.push_back(i * i % 61);
  Small two(2, 0, options.seed), same(2, 0, options.seed);
  for (const mesh::NamedTensor& one : two.named()) {
    if (one.name.ends_with("aggregate_layer.2.weight")) one.tensor.zero_();
    if (one.name.ends_with("aggregate_layer.2.bias")) one.tensor[1] = 1e4;
  }
  for (const mesh::NamedTensor& one : same.named())
    if (one.name.find(".prefix_") != std::string::npos) one.tensor[0].copy_(one.tensor[1]);
  const at::Tensor alone = same.logits(ids);
  findings.at_most("2. two streams, all weight on one, against that stream alone: largest relative difference of logits", 0,
                   (two.logits(ids) - alone).abs().max().item<double>() / alone.abs().max().item<double>(), 1e-6);

  log.info("streams as rows and along an axis");
  const base::Recipe recipe = small_decoder(
      options, {"model.parscale.streams=4", "model.parscale.prefix_tokens=8", "train.steps=5", "snapshot.every=5", "train.global_batch=4"});
  const std::filesystem::path scratch = options.scratch;
  const Trained rows = train_layout({recipe, 1, scratch / "rows"});
  for (const int ranks : {2, 4}) {
    const Trained axis = train_layout({with(recipe, {fmt::format("mesh.tp={}", ranks), "model.parscale.placement=axis"}), ranks,
                                       scratch / fmt::format("axis-{}", ranks)});
    findings.at_most(
        fmt::format("2. four streams along an axis of {} ranks against rows of one: largest relative difference of losses", ranks), 0,
        largest_relative_difference(axis.losses, rows.losses), 1e-5);
    findings.at_most(fmt::format("2. and of gradient norms, {} ranks", ranks), 0, largest_relative_difference(axis.norms, rows.norms),
                     1e-5);
  }

  log.info("generation with a cache against full passes");
  Small four(4, 0.01, options.seed);
  const model::FlatWeights weights(four.model->layout(), four.flat);
  const model::GenerateRequest request{ids};
  const model::GeneratedText text = model::generate(*four.model, weights, four.buffers, {&request, 1},
                                                    {.tokens = 100, .length_max = 256, .sampling = {.temperature = 0}})[0];
  double apart = 0;
  int64_t differ = 0;
  for (size_t i = 0; i < text.ids.size(); ids.push_back(text.ids[i++])) {
    const at::Tensor expected = four.logits(ids)[-1].log_softmax(0);
    differ += expected.argmax().item<int64_t>() != text.ids[i];
    apart = std::max(apart, std::abs(expected[text.ids[i]].item<double>() - text.log_probabilities[i]));
  }
  findings.at_most("2. of 100 greedy tokens with a KV cache, those that differ from full passes", 0, static_cast<double>(differ), 0);
  findings.at_most("2. their log-probabilities, largest difference", 0, apart, 1e-4);
}

double eval_of(const std::filesystem::path& run) {
  double loss = 0;
  for (const base::MetricsRow& row : base::read_metrics(run / "metrics.jsonl"))
    if (row.has("eval_loss")) loss = row.number("eval_loss");
  return loss;
}

// Training runs of one size.
class Runs {
 public:
  Runs(const ProofOptions& options, base::Log& log, Assignments shape) : options_(options), log_(log), shape_(std::move(shape)) {}
  std::filesystem::path train(const std::string& name, int64_t steps, uint64_t seed, const Assignments& sets) const {
    ProofOptions seeded = options_;
    seeded.seed = seed;
    Assignments all = shape_;
    for (const std::string& one : {fmt::format("train.steps={}", steps), fmt::format("eval.every={}", steps),
                                   fmt::format("snapshot.every={}", steps), fmt::format("optim.warmup_steps={}", steps / 20)})
      all.push_back(one);
    all.insert(all.end(), sets.begin(), sets.end());
    const std::filesystem::path out = std::filesystem::path(options_.scratch) / fmt::format("{}-{}", name, seed);
    log_.info("{}, seed {}: {} steps", name, seed, steps);
    train_layout({small_decoder(seeded, all), 1, out});
    log_.info("  held-out loss {:.4f}", eval_of(out));
    return out;
  }

 private:
  const ProofOptions& options_;
  base::Log& log_;
  Assignments shape_;
};

// 5. A finished model, of which only prefixes and mixer are trained on.
void frozen_base(const ProofOptions& options, Findings& findings, base::Log& log) {
  const Runs runs(options, log,
                  {"model.layers=2", "model.embed=64", "model.heads=4", "model.kv_heads=2", "model.mlp=128", "data.length=64",
                   "data.stories_bytes=400000", "train.global_batch=16", "eval.samples=64"});
  const std::filesystem::path base = runs.train("base", 150, options.seed, {"optim.learning_rate=0.003"});
  const std::filesystem::path streams = runs.train("frozen", 400, options.seed,
                                                   {"optim.learning_rate=0.02", "model.from=" + base.string(), "model.parscale.streams=4",
                                                    "model.parscale.prefix_tokens=16", "model.parscale.train=adapter"});
  const Tensors before = snapshot_tensors(base, "model"), after = snapshot_tensors(streams, "model");
  int64_t changed = 0, added = 0, elements = 0;
  for (const auto& [name, tensor] : after) {
    if (!before.contains(name)) {
      added += tensor.numel();
    } else {
      changed += !at::equal(before.at(name), tensor);
      elements += tensor.numel();
    }
  }
  findings.at_most("5. tensors of the frozen base in which training changed any bit", 0, static_cast<double>(changed), 0);
  findings.at_least("5. parameters of prefixes and mixer, of the base's", 0, static_cast<double>(added) / static_cast<double>(elements),
                    1e-6);
  findings.at_least("5. held-out loss of the base above that with four trained streams, nats", 0, eval_of(base) - eval_of(streams), 0.005);
}

// 3, 4. From scratch, and in two stages.
void trained(const ProofOptions& options, Findings& findings, base::Log& log) {
  const Runs runs(
      options, log,
      {"model.layers=4", "model.embed=128", "model.heads=4", "model.kv_heads=4", "model.mlp=352", "data.length=256",
       "data.stories_bytes=8000000", "train.global_batch=8", "eval.samples=128", "optim.learning_rate=0.002", "optim.schedule=cosine"});
  constexpr int64_t kSteps = 1500, kSeeds = 3;  // 3M tokens
  const auto with_streams = [](int64_t streams) {
    return streams == 1 ? Assignments{} : Assignments{fmt::format("model.parscale.streams={}", streams)};
  };
  double mean[3] = {}, lowest = 1e9, highest = 0, late = 0;
  for (uint64_t seed = options.seed; seed < options.seed + kSeeds; ++seed) {
    for (const int64_t i : {0, 1, 2}) {
      const double loss = eval_of(runs.train(fmt::format("streams-{}", 1 << i), kSteps, seed, with_streams(1 << i)));
      mean[i] += loss / kSeeds;
      if (i == 0) lowest = std::min(lowest, loss), highest = std::max(highest, loss);
    }
    Assignments sets = with_streams(4);
    sets.push_back(fmt::format("model.parscale.start_step={}", kSteps * 9 / 10));
    late += eval_of(runs.train("late", kSteps, seed, sets)) / kSeeds;
  }
  findings.at_least("3. held-out loss of one stream above that of two, mean of 3 seeds, nats", 0, mean[0] - mean[1], 1e-9);
  findings.at_least("3. held-out loss of two streams above that of four", 0, mean[1] - mean[2], 1e-9);
  findings.at_least("3. held-out loss of one stream above that of four", 0, mean[0] - mean[2], std::max(0.01, highest - lowest));
  findings.at_least("4. streams for the last tenth: share of the gain of four streams from the start", 1,
                    (mean[0] - late) / (mean[0] - mean[2]), 0.5);
}

}  // namespace

void prove_parscale(const ProofOptions& options, Findings& findings, base::Log& log) {
  law(findings, log);
  equivalence(options, findings, log);
  frozen_base(options, findings, log);
  if (options.full) return trained(options, findings, log);
  findings.skip("3. from scratch: losses fall from one stream to two and four, by at least 0.01 nat", "takes hours: --full");
  findings.skip("4. streams for the last tenth of the tokens bring half of the gain", "takes hours: --full");
}

}  // namespace cairn::study
