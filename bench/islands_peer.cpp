#include "bench/islands_peer.h"

#include <cmath>
#include <filesystem>
#include <numeric>
#include <span>

#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "base/recipe.h"
#include "bench/peer_python.h"
#include "data/corpus.h"
#include "data/sampler.h"
#include "data/subset.h"
#include "kernels/aten.h"
#include "optim/options.h"
#include "study/process.h"
#include "train/options.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

// Losses before the first step differ by rounding alone.
constexpr double kStartsAlike = 1e-3;

// For each sample its tokens, then its targets.
void append(const data::Dataset& samples, std::span<const int64_t> ids, std::vector<int32_t>& into) {
  mesh::Batch batch;
  samples.fill(ids, batch);
  const at::Tensor both = at::stack({batch.field("tokens"), batch.field("targets")}, 1).to(at::kInt).contiguous();
  into.insert(into.end(), both.const_data_ptr<int32_t>(), both.const_data_ptr<int32_t>() + both.numel());
}

void write_samples(const fs::path& file, const std::vector<int32_t>& samples) {
  base::write_atomically(file, std::as_bytes(std::span(samples)));
}

// The folder that the script reads. The weights are those of a run that takes one step of no length, which stays there as `start`.
void write_folder(const PeerIslands& peer, const BenchOptions& options, const fs::path& folder, base::Log& log) {
  const fs::path start = folder / "start";
  const ProcessResult ended = run_program({options.program, "train", peer.recipe, "--out", start.string(), "--set", "mesh.island=1",
                                           "--set", "train.steps=1", "--set", "optim.learning_rate=1e-30", "--set", "snapshot.every=1"},
                                          options.scratch + "/start.log");
  if (ended.exit_code != 0) base::fail_input("the run that gives the peer its weights failed: {}", ended.output);
  for (const char* file : {"config.json", "model.safetensors"})
    fs::copy_file(start / "snapshots" / "step-00000001" / file, folder / file, fs::copy_options::overwrite_existing);

  base::Recipe recipe = base::Recipe::parse_file(peer.recipe);
  const auto train = recipe.read(train::train_schema());
  const auto eval = recipe.read(train::eval_schema());
  const auto optim = recipe.read(optim::optim_schema(), {.warmup_steps = optim::default_warmup_steps(train.steps)});
  const auto data = recipe.read(data::data_schema());
  CAIRN_CHECK(optim.kind == "adamw" && optim.schedule == "constant" && train.global_batch % peer.islands == 0,
              "the peer is written for adamw at a constant rate and even shares");
  const data::Corpus corpus = data::open_corpus(
      data, {.held_out_fraction = eval.fraction, .cache_folder = options.cache + "/data", .threads = 2, .progress = {}, .renderer = {}},
      log);
  const auto sampler = data::make_sampler(data.sampler, {.from = data::Subset().within(corpus.samples->training()),
                                                         .global_batch = train.global_batch,
                                                         .steps = train.steps,
                                                         .seed = static_cast<uint64_t>(train.seed),
                                                         .streams = corpus.streams});
  std::vector<int32_t> trained, held;
  for (int64_t step = 0; step < train.steps; ++step) append(*corpus.samples, sampler->ids(step), trained);
  std::vector<int64_t> ids(static_cast<size_t>(std::min(corpus.samples->held_out().count, eval.samples)));
  std::iota(ids.begin(), ids.end(), corpus.samples->held_out().first);
  append(*corpus.samples, ids, held);
  write_samples(folder / "train.bin", trained);
  write_samples(folder / "held_out.bin", held);
  base::Json settings{{"steps", train.steps},
                      {"global_batch", train.global_batch},
                      {"length", data.length},
                      {"learning_rate", optim.learning_rate},
                      {"beta1", optim.beta1},
                      {"beta2", optim.beta2},
                      {"eps", optim.eps},
                      {"weight_decay", optim.weight_decay},
                      {"clip", optim.max_grad_norm},
                      {"warmup_steps", optim.warmup_steps},
                      {"eval_every", eval.every}};
  base::write_atomically(folder / "settings.json", base::compact(settings));
}

}  // namespace

std::optional<std::vector<PeerPoint>> run_peer_islands(const PeerIslands& peer, const BenchOptions& options, base::Log& log) {
  std::string python;
  try {
    python = peer_python(options, log);
  } catch (const Error& error) {
    log.warn("no rows of plain PyTorch: {}", error.what());
    return std::nullopt;
  }
  const fs::path folder = fs::path(options.scratch) / "peer", curve = folder / (peer.ddp ? "ddp.jsonl" : "diloco.jsonl");
  if (!fs::exists(folder)) {
    base::make_folder(folder);
    write_folder(peer, options, folder, log);
  }
  const double ours = base::read_metrics(folder / "start" / "metrics.jsonl").back().number("eval_loss");
  std::vector<std::string> command{python,
                                   std::string(CAIRN_BENCH_FOLDER) + "/diloco_gloo.py",
                                   folder.string(),
                                   "--out",
                                   curve.string(),
                                   "--links",
                                   peer.links,
                                   "--ranks",
                                   std::to_string(peer.islands),
                                   "--every",
                                   std::to_string(peer.every)};
  if (peer.ddp) command.emplace_back("--ddp");
  const ProcessResult ended = run_program(command, options.scratch + "/peer.log");
  if (ended.exit_code != 0) base::fail_input("the peer's run failed: {}", ended.output);
  std::vector<PeerPoint> points;
  for (const base::MetricsRow& row : base::read_metrics(curve))
    points.push_back({.step = row.integer("step"),
                      .loss = row.number("loss"),
                      .eval_loss = row.number("eval_loss"),
                      .seconds = row.number("seconds"),
                      .waited_s = row.number("waited_s"),
                      .bytes = row.number("bytes")});
  if (points.empty() || !(std::abs(points.front().eval_loss - ours) < kStartsAlike))
    base::fail_input("the peer starts at a held-out loss of {}, ours at {}: not the same work",
                     points.empty() ? std::nan("") : points.front().eval_loss, ours);
  return points;
}

}  // namespace cairn::study
