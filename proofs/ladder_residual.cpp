// Ladder residual: the sums of tensor parallelism on their way while the next block computes, for a wiring of the residual stream that is
// one block late. The baseline is the standard wiring with tensor parallelism as the trainer runs it.
#include <algorithm>
#include <cmath>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/files.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/random.h"
#include "comm/local/local.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/generate/cached_blocks.h"
#include "model/model.h"
#include "proofs/costed_model.h"
#include "proofs/gpu_runs.h"
#include "proofs/hand_built.h"
#include "proofs/lanes_svg.h"
#include "proofs/layout_run.h"
#include "proofs/timed_model.h"
#include "study/claims.h"
#include "study/generation_rates.h"
#include "train/layout_trace.h"

namespace cairn::study {
namespace {

constexpr int64_t kLayers = 8, kEmbed = 256, kHeads = 8, kMlp = 1024;

model::DecoderShape shape_of(const std::string& residual, int64_t ladder_layers) {
  model::DecoderShape shape;
  shape.vocab = 256, shape.embed = kEmbed, shape.layers = kLayers, shape.heads = kHeads, shape.kv_heads = kHeads;
  shape.head_dim = kEmbed / kHeads, shape.mlp = kMlp, shape.length = 64, shape.residual = residual;
  for (int64_t layer = kLayers - ladder_layers; layer < kLayers; ++layer) shape.ladder_layers.push_back(layer);
  return shape;
}

train::LayoutTrace recorded(base::Recipe recipe, int ranks, const ProofOptions& options) {
  train::LayoutTrace recording;
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks).run([&](comm::World& world) {
         train::LayoutTrace own = train::trace_layout(world, recipe, {.steps = 2, .tensors = true, .plant = {}, .cache = options.scratch});
         if (world.rank() == 0) recording = std::move(own);
       }))
    if (error) std::rethrow_exception(error);
  return recording;
}

// Of the largest element of each gradient of the first step, and of the losses.
double furthest(const train::LayoutTrace& a, const train::LayoutTrace& b) {
  double most = std::abs(a.steps[0].loss / b.steps[0].loss - 1);
  for (size_t i = 0; i < a.steps[0].gradients.size(); ++i) {
    const at::Tensor &x = a.steps[0].gradients[i].tensor, &y = b.steps[0].gradients[i].tensor;
    most = std::max(most, (x - y).abs().max().item<double>() / std::max(1e-3, y.abs().max().item<double>()));
  }
  return most;
}

// 1. The same gradients on four ranks as on one; waiting at once changes no bit.
void exactness(const ProofOptions& options, Findings& findings, base::Log& log) {
  const Assignments sizes{fmt::format("model.layers={}", kLayers),
                          fmt::format("model.embed={}", kEmbed),
                          fmt::format("model.heads={}", kHeads),
                          fmt::format("model.kv_heads={}", kHeads),
                          fmt::format("model.mlp={}", kMlp),
                          "train.global_batch=2",
                          "data.length=16",
                          "model.residual=ladder"};
  for (const std::string layers : {"all", "last 4"}) {
    log.info("ladder layers {}", layers);
    const base::Recipe recipe = with(small_decoder(options, sizes), {"model.ladder_layers=" + layers});
    const train::LayoutTrace one = recorded(recipe, 1, options), four = recorded(with(recipe, {"mesh.tp=4"}), 4, options);
    findings.at_most(fmt::format("1. ladder layers {}, tp=4 against tp=1: largest relative difference of loss and gradients", layers), 0,
                     furthest(four, one), 1e-5);
    const train::LayoutTrace waits = recorded(with(recipe, {"mesh.tp=4", "tensor.overlap_residual_sums=false"}), 4, options);
    int64_t differ = 0;
    for (size_t step = 0; step < four.steps.size(); ++step)
      for (size_t i = 0; i < four.steps[step].gradients.size(); ++i)
        differ += !at::equal(four.steps[step].gradients[i].tensor, waits.steps[step].gradients[i].tensor);
    findings.at_most("1. gradients in which overlapped and blocking execution differ in any bit", 0, static_cast<double>(differ), 0);
  }
}

// 1. The form of two tensors that other programs use, over the blocks of the standard model.
void two_tensors(const ProofOptions& options, Findings& findings) {
  at::NoGradGuard no_grad;
  const auto standard = model::make_decoder(shape_of("standard", 0)), ladder = model::make_decoder(shape_of("ladder", 4));
  const at::Tensor flat = at::empty({standard->elements()}, at::kDouble);
  model::initialize_parameters(*standard, flat, base::Random(options.seed));
  const model::FlatWeights weights(standard->layout(), flat);
  model::Buffers buffers = standard->make_buffers(at::kDouble);
  const mesh::Axes alone;
  const model::Call call{.weights = weights, .buffers = buffers, .axes = alone};
  const mesh::Batch batch = random_tokens({.seed = options.seed, .samples = 2, .length = 32, .vocab = 256});
  const auto run = [&](size_t i, const at::Tensor& x) {
    const model::Block& block = *standard->blocks()[i];
    model::Values values;
    values.put(block.card().reads.front(), x);
    block.plain(values, call);
    return values.get(block.card().writes.front());
  };
  at::Tensor after_attention = run(0, batch.field("tokens")), after_mlp = after_attention;
  for (size_t layer = 0; layer < kLayers; ++layer) {
    const bool late = layer >= kLayers - 4;
    const at::Tensor before = after_mlp, attention_in = late ? after_attention : before;
    after_attention = before + run(2 * layer + 1, attention_in) - attention_in;
    const at::Tensor mlp_in = late ? before : after_attention;
    after_mlp = after_attention + run(2 * layer + 2, mlp_in) - mlp_in;
  }
  const at::Tensor expected = run(standard->blocks().size() - 1, after_mlp);
  model::Values values;
  values.put("tokens", batch.field("tokens"));
  for (const auto& block : ladder->blocks()) block->forward(values, nullptr, call);
  findings.at_most("1. the form of two tensors (last 4 layers): largest difference of logits", 0,
                   (values.get("logits") - expected).abs().max().item<double>(), 1e-6);
}

struct Wirings {
  double standard = 0;     // as the trainer runs it: tokens sharded, gathered, summed
  double blocking = 0;     // the standard wiring by all-reduces that are waited for
  double hidden_back = 0;  // likewise, but the gradient's behind the weight gradients of the same block
  double ladder = 0;
  double free_of_charge = 0;  // the standard one on links that cost nothing
};
Wirings time_wirings(const TpStepRun& run) {
  const auto seconds = [&](const std::string& residual, int64_t layers, const comm::LinkModel& link, bool late = true) {
    TpStepRun one = run;
    one.shape = shape_of(residual, layers);
    one.link = link;
    one.overlap_residual_sums = late;
    return time_tp_step(one).step_s;
  };
  return {.standard = seconds("standard", 0, run.link),
          .blocking = seconds("ladder", 0, run.link, false),
          .hidden_back = seconds("ladder", 0, run.link),
          .ladder = seconds("ladder", kLayers, run.link),
          .free_of_charge = seconds("standard", 0, quick_links())};
}

// What the first rank does in the first layers of a token: computing, and sums on their way.
void picture(TpStepRun run, const std::string& folder) {
  if (folder.empty()) return;
  LanesPicture drawn{
      .title = "tp=4, a sum takes 0.8 of a block: the first layers of a token", .until_s = 7 * (1 + 0.8) * run.block_s, .lanes = {}};
  for (const std::string wiring : {"standard", "ladder"}) {
    run.shape = shape_of(wiring, wiring == "ladder" ? kLayers : 0);
    TpStepTimes times = time_tp_step(run);
    for (TimeSpan& one : times.summed) one.what = "";
    for (TimeSpan& one : times.computed) one.what = one.what.substr(7);  // without "layers."
    drawn.lanes.push_back({wiring + ": computes", "#5e96de", times.computed});
    drawn.lanes.push_back({wiring + ": sums on their way", "#ecae54", times.summed});
  }
  base::write_atomically(std::filesystem::path(folder) / "ladder.svg", draw_lanes(drawn));
}

// Blocks take a declared time in virtual time; links are such that a sum takes `sum_share` of a block.
TpStepRun slow_links(bool training, double sum_share) {
  TpStepRun run;
  run.shape = shape_of("standard", 0);
  run.link = quick_links();
  run.link.latency = std::chrono::milliseconds(1);
  run.training = training;
  run.batch = training ? 2 : 1;
  run.length = training ? 16 : 1;
  run.block_s = time_one_sum(run) / sum_share;
  return run;
}

// Seconds of a token, decoded by the product's generation with a KV cache. The standard wiring waits for each all-reduce.
struct TokenTimes {
  double standard = 0, ladder = 0;
};
TokenTimes time_tokens(TpStepRun run, const comm::LinkModel& link) {
  run.link = link;
  TokenTimes times;
  for (const bool ladder : {false, true}) {
    run.shape.residual = ladder ? "ladder" : "standard";
    run.shape.ladder_layers.clear();
    for (int64_t layer = 0; ladder && layer < run.shape.layers; ++layer) run.shape.ladder_layers.push_back(layer);
    (ladder ? times.ladder : times.standard) = time_tp_token(run);
  }
  return times;
}

// 2. Decoding.
void decoding(const std::string& pictures, Findings& findings, base::Log& log) {
  const TpStepRun run = slow_links(/*training=*/false, 0.8);
  const TokenTimes slow = time_tokens(run, run.link), quick = time_tokens(run, quick_links());
  log.info("a token: standard {:.1f} ms, ladder {:.1f} ms, links that cost nothing {:.1f} ms", slow.standard * 1e3, slow.ladder * 1e3,
           quick.standard * 1e3);
  picture(run, pictures);
  findings.at_least("2. decoding with a KV cache, batch 1, tp=4, a sum takes 0.8 of a block: standard / ladder", 1,
                    slow.standard / slow.ladder, 1.35);
  findings.at_most("2. ladder / links that cost nothing", slow.standard / quick.standard, slow.ladder / quick.standard, 1.25);
  findings.at_most("2. decoding, links that cost nothing: ladder and standard apart by", 0, std::abs(quick.ladder / quick.standard - 1),
                   0.05);
}

// 2. Real processes: `cairn generate` on links of 3 ms.
void generation(const ProofOptions& options, Findings& findings, base::Log& log) {
  const WiringRates rates = measure_generation(options.program, options.scratch, {.tp = 2, .links = "3ms"}, log);
  findings.at_least("2. cairn generate --mesh tp=2 --links 3ms, processes, tokens/s: ladder / standard", 1, rates.ratio(), 1.3);
}

// 3. Training steps.
void speed(Findings& findings, base::Log& log) {
  TpStepRun run = slow_links(/*training=*/true, 0.8);
  const Wirings of = time_wirings(run);
  log.info(
      "a training step: standard {:.1f} ms, by blocking all-reduces {:.1f} ms, the gradient's behind weight gradients {:.1f} ms, ladder "
      "{:.1f} ms, links that cost nothing {:.1f} ms",
      of.standard * 1e3, of.blocking * 1e3, of.hidden_back * 1e3, of.ladder * 1e3, of.free_of_charge * 1e3);
  findings.at_least("3. a training step, tp=4, a sum takes 0.8 of a block: standard / ladder", 1, of.standard / of.ladder, 1.25);
  findings.at_least("3. a training step: standard by blocking all-reduces / ladder", 1, of.blocking / of.ladder, 1.25);
  TpStepRun quick = run;
  quick.link = quick_links();
  const Wirings none = time_wirings(quick);
  findings.at_most("3. a training step, links that cost nothing: ladder and standard apart by", 0,
                   std::abs(none.ladder / none.standard - 1), 0.05);
  for (const int tp : {2, 4, 8}) {
    run.tp = tp;
    run.block_s = time_one_sum(run) / 1.5;  // three parts of compute and two sums for each block: half of a step is sums
    const Wirings half = time_wirings(run);
    findings.at_least(fmt::format("a training step of which sums are {:.0f} %, tp={}: standard / ladder",
                                  100 * (1 - half.free_of_charge / half.standard), tp),
                      1, half.standard / half.ladder, 1.2);
  }
}

// A 70B model that decodes at tp=8, batch 1, from two published rates of the standard wiring: one with messages, one without. What the
// product's generation makes of blocks and sums that take so long, where the two do not slow each other down: a real card's do a little.
// `block_s`: as measured; 0: as published.
void prediction(Findings& findings, base::Log& log, double block_s = 0) {
  constexpr double kBlocks = 160, kWithoutMessages = 110.6;  // tokens/s
  struct Links {
    const char* name;
    double standard, published_ladder, least, most;
  };
  for (const Links& of : {Links{"fast links", 77.4, 101.2, 1.2, 1.4}, Links{"slow links", 51.7, 82.6, 1.45, 1.75}}) {
    TpStepRun run;
    run.shape = shape_of("standard", 0);
    run.shape.layers = static_cast<int64_t>(kBlocks) / 2;  // as many as the 70B model has; their width takes no virtual time
    run.shape.embed = 64, run.shape.head_dim = 8, run.shape.mlp = 64;
    run.tp = 8;
    run.link = quick_links();
    run.link.latency = std::chrono::milliseconds(1);
    const double published_s = 1 / kWithoutMessages / kBlocks, sum_s = 1 / of.standard / kBlocks - published_s;
    run.block_s = block_s > 0 ? block_s : published_s;
    const double per_ms = time_one_sum(run);
    run.link.latency = std::chrono::nanoseconds(static_cast<int64_t>(1e6 * sum_s / per_ms));
    const TokenTimes times = time_tokens(run, run.link);
    const double gain = times.standard / times.ladder;
    log.info("70B, tp=8, {}: block {:.1f} us, sum {:.1f} us: standard {:.1f} tokens/s, ladder {:.1f} predicted, {:.1f} published", of.name,
             run.block_s * 1e6, sum_s * 1e6, 1 / times.standard, 1 / times.ladder, of.published_ladder);
    const std::string claim = fmt::format("70B at tp=8, {}, predicted from {} block and published sum times: standard / ladder", of.name,
                                          block_s > 0 ? "measured" : "published");
    findings.at_least(claim + " (baseline: published)", of.published_ladder / of.standard, gain, of.least);
    findings.at_most(claim + ", upper end of the range", of.published_ladder / of.standard, gain, of.most);
  }
}

// One block of a 70B model at tp=8 that decodes one token after 1,024 others, on this card: the product's blocks with a KV cache, in the
// widths that one of 8 ranks has.
double block_seconds_on_gpu(base::Log& log) {
  const at::NoGradGuard no_grad;
  constexpr int64_t kPositions = 1024, kGpuLayers = 8;  // more weights than the caches hold
  const model::DecoderShape shape{.vocab = 256,
                                  .embed = 8192,
                                  .layers = kGpuLayers,
                                  .heads = 8,
                                  .kv_heads = 1,
                                  .head_dim = 128,
                                  .mlp = 28672 / 8,
                                  .length = kPositions + 64};
  const auto model = model::make_decoder(shape);
  const auto on_gpu = at::TensorOptions().dtype(at::kBFloat16).device(at::kCUDA);
  const model::FlatWeights weights(model->layout(), at::empty({model->elements()}, on_gpu).normal_(0, 0.02));
  model::Buffers buffers = model->make_buffers(on_gpu.dtype(at::kFloat));
  const mesh::Axes alone;
  // Without the first and the last block, the embedding and the head.
  model::CachedBlocks blocks({.model = *model,
                              .weights = weights,
                              .buffers = buffers,
                              .axes = alone,
                              .first = 1,
                              .last = model->blocks().size() - 1,
                              .rows = 1,
                              .length_max = shape.length});
  blocks.grow(kPositions + 1);
  const auto run = [&](int64_t begin, int64_t tokens) {
    model::Values values;
    values.put("hidden.0", at::ones({1, tokens, shape.embed}, on_gpu));
    blocks.run(values, begin, 0, 1);
  };
  run(0, kPositions);
  const double block = gpu_seconds([&] { run(kPositions, 1); }) / static_cast<double>(2 * kGpuLayers);
  log.info("a block of a 70B model at tp=8, one token: {:.1f} us", block * 1e6);
  return block;
}

double eval_of(const std::filesystem::path& run) { return base::read_metrics(run / "metrics.jsonl").back().number("eval_loss"); }

// 4. and 5. Bytes of text, equal tokens and seeds; then conversion.
void quality(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::filesystem::path scratch = options.scratch;
  const int64_t steps = options.full ? 2000 : 300, retrain = steps / 10;
  const Assignments shape{"model.layers=6",
                          options.full ? "model.embed=192" : "model.embed=64",
                          options.full ? "model.heads=6" : "model.heads=4",
                          options.full ? "model.kv_heads=6" : "model.kv_heads=4",
                          options.full ? "model.mlp=512" : "model.mlp=172",
                          "data.tokenizer=bytes",
                          options.full ? "data.length=128" : "data.length=64",
                          "data.stories_bytes=2000000",
                          "train.global_batch=16",
                          "optim.learning_rate=0.002",
                          "optim.schedule=cosine",
                          "eval.samples=64"};
  const auto train = [&](const std::string& name, int64_t of_steps, uint64_t seed, Assignments sets) {
    log.info("{}, seed {}: {} steps", name, seed, of_steps);
    ProofOptions seeded = options;
    seeded.seed = seed;
    Assignments all = shape;
    all.push_back(fmt::format("train.steps={}", of_steps));
    all.push_back(fmt::format("eval.every={}", of_steps));
    all.push_back(fmt::format("optim.warmup_steps={}", of_steps / 20));
    all.insert(all.end(), sets.begin(), sets.end());
    const std::filesystem::path out = scratch / fmt::format("{}-{}", name, seed);
    train_layout({.recipe = small_decoder(seeded, all), .ranks = 1, .out = out});
    return out;
  };
  // The claim is about a mean: after so few steps the ratio of one seed has a standard deviation of 1.8 %, as much as seeds make of either
  // wiring, so that the worst of a few seeds says nothing about the wiring (docs/measurements/ladder-2026-11-18.md).
  const uint64_t seeds = options.full ? 3 : 10;
  double ladder_sum = 0, standard_sum = 0;
  std::filesystem::path first;
  for (uint64_t seed = options.seed; seed < options.seed + seeds; ++seed) {
    const std::filesystem::path standard = train("standard", steps, seed, {});
    if (first.empty()) first = standard;
    const double of_ladder = eval_of(train("ladder", steps, seed, {"model.residual=ladder"})), of_standard = eval_of(standard);
    log.info("  validation loss: standard {:.4f}, ladder {:.4f}, ratio {:.4f}", of_standard, of_ladder, of_ladder / of_standard);
    ladder_sum += of_ladder, standard_sum += of_standard;
  }
  findings.at_most(fmt::format("4. validation loss of ladder / standard after {} steps, mean of {} seeds", steps, seeds), 1,
                   ladder_sum / standard_sum, 1.02);

  const double before = eval_of(first);
  const auto convert = [&](const std::string& name, const std::string& layers, int64_t of_steps, double rate) {
    return train(name, of_steps, options.seed,
                 {"model.from=" + first.string(), "model.residual=ladder", "model.ladder_layers=" + layers, "model.convert=true",
                  fmt::format("eval.every={}", of_steps), fmt::format("optim.learning_rate={}", rate)});
  };
  const double half = eval_of(convert("half-at-once", "last 3", 1, 0)), all = eval_of(convert("all-at-once", "all", 1, 0));
  log.info("converted at once: half {:.3f}, all {:.3f}, before {:.3f}", half, all, before);
  findings.at_least("5. loss on converting all layers / half of them, before retraining", 1, all / half, 1.0001);
  findings.at_least("5. loss on converting half of the layers / before", 1, half / before, 1);
  findings.at_most(fmt::format("5. half converted, {} steps of retraining: loss / before", retrain), half / before,
                   eval_of(convert("half-retrained", "last 3", retrain, 0.0005)) / before, 1.02);
}

}  // namespace

void prove_ladder_residual(const ProofOptions& options, Findings& findings, base::Log& log) {
  exactness(options, findings, log);
  two_tensors(options, findings);
  decoding(options.pictures, findings, log);
  generation(options, findings, log);
  speed(findings, log);
  prediction(findings, log);
  quality(options, findings, log);
}

void prove_ladder_residual_on_gpu(const ProofOptions& options, Findings& findings, base::Log& log) {
  double standard = 0, ladder = 0;
  for (int round = 0; round < 2; ++round)
    for (const std::string wiring : {"standard", "ladder"}) {
      Assignments sets = gpu_decoder(options, {});
      sets.push_back("model.residual=" + wiring);
      const double step_s =
          must_train_on_gpu(options, log, fmt::format("{}-{}", wiring, round), {.sets = std::move(sets), .steps = 40}).step_s();
      double& least = wiring == "standard" ? standard : ladder;
      least = round == 0 ? step_s : std::min(least, step_s);
    }
  findings.at_most("one GPU, 1.1 B parameters, tp=1: time of a step, ladder / standard", 1, ladder / standard, 1.02);
  prediction(findings, log, block_seconds_on_gpu(log));
}

}  // namespace cairn::study
