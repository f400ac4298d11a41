// `cairn bench moe`: a layer with experts against a dense MLP of as many operations a token, and training steps against `transformers`. On
// a GPU also the grouped products, and steps against compiled PyTorch (moe_gpu.cpp).
#include <algorithm>
#include <filesystem>
#include <functional>

#include <ATen/Parallel.h>
#include <ATen/core/IListRef.h>
#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "bench/moe_parts.h"
#include "bench/peer_python.h"
#include "kernels/aten.h"
#include "kernels/device.h"
#include "mesh/axes.h"
#include "mesh/flat_gradients.h"
#include "model/decoder/decoder.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr int kMoeRounds = 5;
constexpr int64_t kMoeBatch = 8, kMoeLength = 256;

model::DecoderShape layer_shape(bool experts) {
  constexpr int64_t kTopK = 2, kWidth = 512;
  model::DecoderShape shape{
      .vocab = 64, .embed = 512, .layers = 1, .heads = 8, .kv_heads = 8, .head_dim = 64, .mlp = kTopK * kWidth, .length = kMoeLength};
  shape.family = experts ? "qwen3_moe" : "qwen3";
  if (experts) shape.experts = {.count = 8, .top_k = kTopK, .width = kWidth};
  return shape;
}

// The MLP of one layer, forward and backward.
class LayerTimer {
 public:
  explicit LayerTimer(bool experts)
      : model_(model::make_decoder(layer_shape(experts))),
        weights_(model_->layout(), at::empty({model_->elements()})),
        buffers_(model_->make_buffers(at::kFloat)),
        sink_(model_->layout(), at::zeros({model_->elements()}), model_->uses()) {
    model::initialize_parameters(*model_, weights_.flat(), base::Random(1));
    for (const auto& block : model_->blocks())
      if (block->card().name == "layers.0.mlp") block_ = block.get();
    x_ = at::randn({kMoeBatch, kMoeLength, layer_shape(experts).embed});
  }

  double seconds() {
    const at::NoGradGuard no_grad;
    const base::RealClock clock;
    const mesh::Axes alone;
    const model::Call call{.weights = weights_, .buffers = buffers_, .axes = alone, .into = &sink_};
    sink_.begin(1, {});
    const double begun = base::seconds(clock.now());
    model::Values values, gradients;
    model::Saved saved;
    values.put(block_->card().reads.front(), x_);
    block_->forward(values, &saved, call);
    gradients.put(block_->card().writes.front(), x_);
    block_->backward_input(gradients, saved, call);
    block_->backward_weight(std::move(saved), sink_, call);
    const double ended = base::seconds(clock.now());
    sink_.finish();
    return ended - begun;
  }

 private:
  std::unique_ptr<model::Model> model_;
  model::FlatWeights weights_;
  model::Buffers buffers_;
  mesh::FlatGradients sink_;
  const model::Block* block_ = nullptr;
  at::Tensor x_;
};

void layer_row(std::vector<BenchRow>& rows, base::Log& log) {
  log.info("a layer");
  LayerTimer experts(true), dense(false);
  std::vector<double> ours, plain;
  for (int round = -1; round < kMoeRounds; ++round) {
    const double of_experts = experts.seconds(), of_dense = dense.seconds();
    if (round >= 0) ours.push_back(1e3 * of_experts), plain.push_back(1e3 * of_dense);
  }
  rows.push_back(compare("2 of 8 experts, against a dense MLP of the same operations, forward and backward", ours, plain, "ms",
                         Better::lower, 1 / 1.2));
}

void train_with_cairn(const BenchOptions& options, const std::string& out, std::vector<std::string> sets) {
  std::vector<std::string> command{options.program, "train", "--out", out};
  for (const char* one : {"eval.fraction=0", "log.samples=0", "log.tensorboard=false", "log.trace=false", "optim.schedule=\"constant\"",
                          "optim.warmup_steps=0"})
    sets.emplace_back(one);
  for (const std::string& one : sets) command.insert(command.end(), {"--set", one});
  const ProcessResult ended = run_program(command, options.scratch + "/cairn.log");
  if (ended.exit_code != 0) base::fail_input("our run failed: {}", ended.output);
}

double middle_of(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

double our_rate(const BenchOptions& options, const std::string& folder, int64_t steps) {
  const std::string out = options.scratch + "/moe-run";
  std::filesystem::remove_all(out);
  train_with_cairn(options, out,
                   {"model.from=" + folder, fmt::format("train.steps={}", steps), "snapshot.every=0", "snapshot.last=false",
                    fmt::format("data.length={}", kMoeLength), fmt::format("train.global_batch={}", kMoeBatch)});
  std::vector<double> rates;
  for (const base::MetricsRow& row : base::read_metrics(out + "/metrics.jsonl"))
    if (row.integer("step") > 1) rates.push_back(row.number("tokens_per_s"));
  return middle_of(rates);
}

void transformers_row(const BenchOptions& options, std::vector<BenchRow>& rows, base::Log& log) {
  const std::string version = base::read_file(std::string(CAIRN_BENCH_FOLDER) + "/../deps/torch.txt", 4096);
  const size_t pin = version.find("torch==");
  const std::string torch = version.substr(pin, version.find('\n', pin) - pin);
  const std::string python = peer_python(options, log, "peft", {torch, "transformers", "peft", "numpy"}, "about 5 GB, a few minutes");
  const std::string run = options.scratch + "/moe-base", folder = options.scratch + "/moe-model";
  train_with_cairn(options, run,
                   {"train.steps=1", "data.vocab=4096", "model.kind=qwen3_moe", "model.embed=256", "model.layers=4", "model.heads=4",
                    "model.kv_heads=2", "model.head_dim=64", "model.moe.experts=8", "model.moe.top_k=2", "model.moe.width=256",
                    "model.tied=false", fmt::format("data.length={}", kMoeLength), "train.global_batch=2"});
  const ProcessResult exported = run_program({options.program, "snapshot", "export", run, "--out", folder}, options.scratch + "/cairn.log");
  if (exported.exit_code != 0) base::fail_input("the export failed: {}", exported.output);
  const int64_t steps = options.steps > 0 ? options.steps : 6;
  base::Json settings;
  settings["folder"] = folder, settings["steps"] = steps, settings["length"] = kMoeLength, settings["batch"] = kMoeBatch;
  settings["threads"] = at::get_num_threads();
  std::vector<double> ours, peer;
  for (int round = 0; round < 3; ++round) {
    log.info("training steps, round {} of 3", round + 1);
    ours.push_back(our_rate(options, folder, steps));
    peer.push_back(moe_peer_rate(options, python, base::compact(settings)));
  }
  rows.push_back(
      compare("training steps, 8 experts of which 2, 4 layers, against transformers", ours, peer, "tokens/s", Better::higher, 1.3));
}

}  // namespace

double moe_peer_rate(const BenchOptions& options, const std::string& python, const std::string& settings) {
  const ProcessResult ended =
      run_program({python, std::string(CAIRN_BENCH_FOLDER) + "/moe_peer.py", settings}, options.scratch + "/peer.log");
  if (ended.exit_code != 0) base::fail_input("the peer's run failed: {}", ended.output);
  const base::Json result = base::parse_json(ended.output.substr(ended.output.rfind('{')));
  if (!result.is_object()) base::fail_input("the peer's run printed no JSON: {}", ended.output);
  std::vector<double> rates;
  for (size_t i = 1; i < result["seconds"].size(); ++i)
    rates.push_back(result["tokens"].get<double>() / result["seconds"][i].get<double>());
  return middle_of(rates);
}

std::vector<BenchRow> bench_moe(const BenchOptions& options, base::Log& log) {
  const auto wanted = [&](const char* name) { return options.only.empty() || options.only == name; };
  if (!wanted("layer") && !wanted("transformers") && !wanted("products") && !wanted("step"))
    base::fail_input("--case {}: has layer, transformers and, on a GPU, products and step", options.only);
  std::vector<BenchRow> rows;
  if (wanted("layer")) layer_row(rows, log);
  if (wanted("transformers")) transformers_row(options, rows, log);
  const bool gpu = kernels::can_use_cuda();
  if (!gpu && options.only.empty()) log.info("no GPU here: products and step are not measured");
  if (!gpu && (options.only == "products" || options.only == "step")) base::fail_input("--case {}: needs a GPU", options.only);
  if (gpu && wanted("products")) bench_moe_products(rows, log);
  if (gpu && wanted("step")) bench_moe_gpu_step(options, rows, log);
  return rows;
}

}  // namespace cairn::study
