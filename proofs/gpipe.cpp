// GPipe: micro-batches in waves through the stages of a pipeline, recomputed inside, one update. The baseline is one process.
#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/log.h"
#include "model/decoder/decoder.h"
#include "parallel/schedule.h"
#include "parallel/schedule/timeline.h"
#include "proofs/hand_built.h"
#include "proofs/layout_run.h"
#include "proofs/timed_model.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

constexpr int kStages = 4;
constexpr double kForward = 0.020, kGradient = 0.020;  // of a stage; two gradients

// 1. Recompute of all micro-batches but the last: no recipe asks for it, but passes can.
void except_last(const ProofOptions& options, Findings& findings, base::Log& log) {
  constexpr int64_t kSamples = 12, kLength = 9, kVocab = 37;
  const auto train = [&](int stages, const std::string& schedule, const std::string& recompute) {
    log.info("{} stages, recompute {}", stages, recompute.empty() ? "never" : recompute);
    HandRun run;
    run.model = [] {
      model::DecoderShape shape;
      shape.vocab = kVocab, shape.embed = 20, shape.layers = 8, shape.heads = 2, shape.kv_heads = 1, shape.head_dim = 10, shape.mlp = 23;
      shape.length = kLength, shape.tied = false, shape.dropout = 0.1;
      return model::make_decoder(shape);
    };
    run.objective = model::make_next_token;
    run.batch = [seed = options.seed](int64_t step) { return random_tokens({seed, step, kSamples, kLength, kVocab}); };
    run.loss_denominator = kSamples * kLength;
    run.plan.mesh.axes = {{"pp", stages}};
    run.seed = options.seed;
    run.micro_batches = 5;
    run.clip = 0;
    run.schedule = schedule;
    run.recompute = recompute;
    return train_by_hand(run);
  };
  const auto furthest = [](const Trained& a, const Trained& b) {
    return std::max(largest_relative_difference(a.losses, b.losses), largest_difference(a.parameters, b.parameters));
  };
  const Trained never = train(kStages, "gpipe", "");
  findings.at_most("1. recompute never, except_last and always: largest difference between them", 0,
                   std::max(furthest(never, train(kStages, "gpipe", "except_last")), furthest(never, train(kStages, "gpipe", "always"))),
                   0);
  findings.at_most("1. recompute except_last, the backwards in order (1f1b): largest difference to one process", 0,
                   furthest(train(1, "", ""), train(kStages, "1f1b", "except_last")), 0);
}

// 1. The same losses and parameters; recomputing changes no bit.
void exactness(const ProofOptions& options, Findings& findings, base::Log& log) {
  // Without clipping, whose norm the stages sum in another order.
  const base::Recipe recipe =
      small_decoder(options, {"model.layers=8", "model.embed=32", "model.heads=4", "model.kv_heads=2", "model.mlp=72", "model.tied=false",
                              "model.dropout=0.1", "optim.max_grad_norm=0", "train.steps=12", "train.global_batch=12"});
  const RunStats one = collect_stats({recipe, 1, 9, {}, 5});  // micro-batches of 3, 3, 2, 2 and 2 samples
  findings.at_least("1. dropout 0.1: relative loss difference that it makes to none", 0,
                    largest_relative_difference(one.losses, collect_stats({with(recipe, {"model.dropout=0"}), 1, 9, {}, 5}).losses), 1e-4);
  const Assignments pipeline{"mesh.pp=4", "pipeline.micro_batches=5"};
  const auto run = [&](const std::string& schedule, const std::string& mode) {
    log.info("exactness: {}, recompute {}", schedule, mode);
    base::Recipe laid_out = with(recipe, pipeline);
    laid_out.set("pipeline.schedule=" + schedule);
    laid_out.set("recompute.mode=" + mode);
    return collect_stats({laid_out, kStages, 9});
  };
  const RunStats gpipe = run("gpipe", "none"), in_order = run("1f1b", "none");
  const auto furthest = [](const RunStats& a, const RunStats& b) {
    double losses = 0;
    for (size_t i = 0; i < a.losses.size(); ++i) losses = std::max(losses, std::abs(a.losses[i] - b.losses[i]));
    return std::max(losses, largest_difference(a.parameters, b.parameters));
  };
  findings.at_most(
      "1. K=4, N=12, M=5, dropout 0.1, 10 steps: largest difference of losses and parameters to one process with the same micro-batches", 0,
      furthest(one, gpipe), 1e-5);
  findings.at_most("1. the same with the backwards in the order of the micro-batches (1f1b), bitwise identical", 0, furthest(one, in_order),
                   0);
  double modes = 0;
  for (const char* mode : {"stage", "full", "selective"}) modes = std::max(modes, furthest(gpipe, run("gpipe", mode)));
  findings.at_most("1. recompute none, stage (always), full, selective: largest difference between them", 0, modes, 0);
}

PipelineRun timed(int micro_batches) {
  PipelineRun run{.schedule = "gpipe", .ranks = kStages, .stages_per_rank = 1, .micro_batches = micro_batches};
  run.blocks = {.blocks = kStages, .forward_s = kForward, .input_s = kGradient, .weight_s = kGradient, .boundary_elements = 8};
  return run;
}

double ideal(int micro_batches) { return micro_batches * (kForward + 2 * kGradient); }

// 2. The bubble, executed in virtual time.
void bubble(Findings& findings, base::Log& log) {
  log.info("bubbles in virtual time");
  for (const int m : {4, 8, 16}) {
    const double theory = 1 + (kStages - 1.0) / m, ratio = time_pipeline(timed(m)).step_s / ideal(m);
    findings.at_most(fmt::format("2. K=4, M={}: step over M x 60 ms is {:.4f}, theory {:g}: off by", m, ratio, theory),
                     kStages / theory - 1, std::abs(ratio / theory - 1), 0.08);
    const parallel::Schedule schedule =
        parallel::make_schedule({.name = "gpipe", .ranks = kStages, .stages_per_rank = 1, .micro_batches = m});
    const double planned = parallel::timeline_stats(parallel::timeline(schedule, parallel::even_costs(schedule, {}))).step_to_ideal;
    findings.at_most(fmt::format("2. K=4, M={}: simulated, off by", m), 0, std::abs(planned - theory), 1e-9);
  }
  findings.at_least("2. stages one after another (one micro-batch): step over ideal, which the measurement must tell apart", kStages,
                    time_pipeline(timed(1)).step_s / ideal(1), 0.92 * kStages);
}

// 3. Slow links hide behind compute.
void bandwidth(Findings& findings, base::Log& log) {
  log.info("links of 20 MB/s");
  PipelineRun run = timed(16);
  run.blocks.boundary_elements = 75000;  // 300 KB: 15 ms, less than a forward
  const double quick = time_pipeline(run).step_s;
  run.link.bytes_per_s = 20e6;
  const double slow = time_pipeline(run).step_s;
  // With one micro-batch there is nothing to hide behind.
  run.micro_batches = 1;
  const double exposed = time_pipeline(run).step_s;
  run.link = quick_links();
  findings.at_most("3. M=16, boundaries of 15 ms on links of 20 MB/s: step longer by (baseline: M=1, where all of them are waited for)",
                   exposed / time_pipeline(run).step_s - 1, slow / quick - 1, 0.10);
}

// 3. A stage recomputes while it waits for the gradient. The baseline recomputes after its arrival (recompute.overlap = none).
void recompute_overlap(Findings& findings, base::Log& log) {
  log.info("recomputation on links of 20 ms");
  for (const int m : {4, 8}) {
    PipelineRun run = timed(m);
    run.link.latency = std::chrono::milliseconds(20);
    run.recompute = true;
    run.recompute_ahead = false;
    const double late = time_pipeline(run).step_s;
    run.recompute_ahead = true;
    const double ahead = time_pipeline(run).step_s;
    // Of m + K - 1 forwards, recomputations and backwards and 2(K - 1) links, K - 1 recomputations are hidden. The barrier that closes the
    // measured step takes one link more.
    const double theory = (kStages - 1) * kForward / ((m + kStages - 1) * (2 * kForward + 2 * kGradient) + (2 * kStages - 1) * 0.020);
    findings.at_least(fmt::format("3. K=4, M={}, links of 20 ms, recompute stage: step shorter than with recomputation after the "
                                  "gradient's arrival ({:.0f} ms)",
                                  m, 1e3 * late),
                      0, 1 - ahead / late, m == 4 ? 0.08 : 0.05);
    findings.at_most(fmt::format("3. the same against (K-1) recomputations ({:.4f} of the step), off by", theory), 0,
                     std::abs(1 - ahead / late - theory), 1e-4);
  }
}

// 4. Activations by the books.
void memory(const ProofOptions& options, Findings& findings, base::Log& log) {
  const base::Recipe recipe = small_decoder(
      options, {"model.layers=32", "model.embed=32", "model.heads=4", "model.kv_heads=2", "model.mlp=72", "model.tied=false", "mesh.pp=4",
                "pipeline.schedule=gpipe", "pipeline.split=[\"8\",\"8\",\"8\",\"8\"]", "train.steps=4", "train.global_batch=16"});
  const auto peak = [&](int m, const std::string& mode) {
    log.info("memory: M={}, recompute {}", m, mode);
    const RunStats books =
        collect_stats({with(recipe, {fmt::format("pipeline.micro_batches={}", m), "recompute.mode=" + mode}), kStages, 1});
    double most = 0;
    for (const RankStats& rank : books.ranks) most = std::max(most, static_cast<double>(rank.activations_most));
    return most;
  };
  const double never = peak(8, "none"), two = peak(2, "stage"), four = peak(4, "stage"), eight = peak(8, "stage"),
               sixteen = peak(16, "stage");
  findings.at_least("4. K=4, L=32, N=16, M=8: most activation bytes of a rank, keeping everything over recompute stage", 1, never / eight,
                    3);
  findings.at_most("4. recompute stage: the most of M=4 over M=2", 1, four / two, 1);
  findings.at_most("4. recompute stage: the most of M=8 over M=4", 1, eight / four, 1);
  // Inputs of all micro-batches, and one micro-batch's insides: (peak - N x boundary) falls as 1/M.
  const double boundary = 16.0 * 16 * 32 * 4;
  findings.at_most("4. recompute stage: insides of one micro-batch at M=16 over those at M=2, against 2/16, off by", 0,
                   std::abs((sixteen - boundary) / (two - boundary) / (2.0 / 16) - 1), 0.1);
}

// One step of a network with batch normalisation over 24 samples, whole and as five micro-batches along a pipeline of two ranks. The
// inputs of the first norm are the same in both; later ones are normalised by micro-batch and cannot be.
void batch_norm(const ProofOptions& options, Findings& findings, base::Log& log) {
  log.info("5. batch norm");
  const auto running = [&](const std::string& name, const Assignments& sets, int ranks) {
    const std::filesystem::path out = std::filesystem::path(options.scratch) / name;
    base::Recipe recipe = with(small_decoder(options, {}), {"model.kind=classifier", "model.batch_norm=true", "data.kind=spirals",
                                                            "train.steps=1", "train.global_batch=24", "optim.learning_rate=0"});
    train_layout({with(recipe, sets), ranks, out});
    Tensors first;
    for (const auto& [tensor, value] : snapshot_tensors(out, "buffers"))
      if (tensor.starts_with("layers.0.")) first[tensor] = value;
    return first;
  };
  const Tensors whole = running("norm-whole", {}, 1);
  const Tensors cut = running("norm-cut", {"mesh.pp=2", "pipeline.micro_batches=5", "recompute.mode=stage"}, 2);
  double moved = 0;
  for (const auto& [tensor, value] : whole)
    if (tensor.ends_with("running_mean")) moved = value.abs().max().item<double>();
  findings.at_least("5. a step moves the running mean by", 0, moved, 1e-4);
  findings.at_most("5. running mean and variance after 5 micro-batches in a pipeline with recompute, against the whole batch", 0,
                   largest_difference(cut, whole), 1e-6);
}

}  // namespace

void prove_gpipe(const ProofOptions& options, Findings& findings, base::Log& log) {
  exactness(options, findings, log);
  except_last(options, findings, log);
  bubble(findings, log);
  bandwidth(findings, log);
  recompute_overlap(findings, log);
  memory(options, findings, log);
  batch_norm(options, findings, log);
}

}  // namespace cairn::study
