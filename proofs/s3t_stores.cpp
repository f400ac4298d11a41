#include "proofs/s3t_stores.h"

#include <algorithm>
#include <exception>
#include <functional>

#include <ATen/core/IListRef.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "base/random.h"
#include "base/stop.h"
#include "base/text.h"
#include "comm/local/local.h"
#include "data/selection/pool.h"
#include "evaluate/ensemble/ensemble_model.h"
#include "kernels/aten.h"
#include "mesh/axes.h"
#include "model/decoder/decoder.h"
#include "model/decoder/served_adapters.h"
#include "model/families/families.h"
#include "proofs/markov_runs.h"
#include "study/claims.h"
#include "unlearn/make_store.h"

namespace cairn::study {
namespace {

namespace fs = std::filesystem;

constexpr size_t kRecordLetters = 60, kRecordsMost = 400, kHeldOutTexts = 48;
constexpr size_t kTextBytesMax = size_t{1} << 28;
constexpr int64_t kArtifactBytesMax = int64_t{1} << 30;

// A source in which the last letter alone decides what comes next: one letter in three of four cases.
std::string pairs_text(uint64_t source, uint64_t seed, int64_t letters) {
  constexpr uint64_t kLetters = 32;
  constexpr const char* kAlphabet = "abcdefghijklmnopqrstuvwxyz012345";
  const base::Random table = base::Random(source).for_purpose("pairs table"), draws = base::Random(seed).for_purpose("pairs draws");
  std::string text;
  uint64_t last = 0;
  for (int64_t i = 0; i < letters; ++i) {
    const auto at = static_cast<uint64_t>(2 * i);
    const double u = draws.uniform(at);
    last = u < 0.75 ? table.below(2 * last, kLetters) : u < 0.95 ? table.below(2 * last + 1, kLetters) : draws.below(at + 1, kLetters);
    text += kAlphabet[last];
  }
  return text;
}

// The text of all documents that a file or the files of a folder have.
std::string text_of_data(const std::string& path) {
  data::DataOptions given;
  given.path = path;
  std::string text;
  data::for_each_record(given, "", [&](const data::PoolRecord& record) {
    if (text.size() < kTextBytesMax) text += record.text + "\n";
  });
  return text;
}

std::vector<std::string> pieces_of(const std::string& text) {
  std::vector<std::string> pieces;
  for (size_t at = 0; at + kRecordLetters <= text.size(); at += kRecordLetters)
    pieces.push_back(base::valid_utf8(text.substr(at, kRecordLetters)));
  return pieces;
}

MarkovRuns::Shape shape_of_base() { return {.layers = 8, .embed = 48, .heads = 4, .mlp = 96, .length = 64, .batch = 24}; }

}  // namespace

S3tWorld small_s3t_world(const ProofOptions& options, base::Log& log) {
  const MarkovRuns runs(options, log, shape_of_base());
  S3tWorld world{.base = runs.base("base", 400, {"optim.learning_rate=0.003"})};
  const std::string text = options.data.empty()
                               ? pairs_text(2 * options.seed + 1, options.seed, (kRecordsMost + kHeldOutTexts) * kRecordLetters)
                               : text_of_data(options.data);
  const std::vector<std::string> pieces = pieces_of(text);
  if (pieces.size() < 2 * kHeldOutTexts)
    base::fail_input("--data {}: at least {} bytes of text make records to delete. Give more text.", options.data,
                     2 * kHeldOutTexts * kRecordLetters);
  const size_t every = pieces.size() / kHeldOutTexts;  // held-out texts come from everywhere in the file
  for (size_t i = 0; i < pieces.size(); ++i) {
    if (i % every == 0 && world.held_out.size() < kHeldOutTexts)
      world.held_out.push_back(pieces[i]);
    else if (world.records.size() < kRecordsMost)
      world.records.push_back(pieces[i]);
  }
  return world;
}

S3tStores::S3tStores(const ProofOptions& options, base::Log& log, S3tWorld world)
    : options_(options), log_(log), world_(std::move(world)), records_file_(fs::path(options.scratch) / "records.jsonl") {
  std::string lines;
  for (const std::string& text : world_.records) lines += base::compact(base::OrderedJson{{"text", text}}) + "\n";
  base::write_atomically(records_file_, lines);
  const cli::LanguageModel model = cli::open_language_model(world_.base.string(), log);
  std::vector<at::Tensor> rows;
  for (const std::string& text : world_.held_out) {
    std::vector<int32_t> ids = model.tokenizer->encode(text);
    if (ids.empty()) continue;
    ids.resize(static_cast<size_t>(world_.judged), ids.back());
    at::Tensor row = at::empty({world_.judged}, at::kLong);
    std::copy(ids.begin(), ids.end(), row.mutable_data_ptr<int64_t>());
    rows.push_back(row);
  }
  held_out_ = at::stack(rows);
}

unlearn::Store S3tStores::make(const std::string& name, const std::vector<std::string>& sets, const std::vector<int64_t>& without) const {
  const base::Recipe::File file{.text = fmt::format(R"(
[model.adapter]
rank = 8
targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
[data]
length = {}
packing = "none"
[train]
epochs = 4
global_batch = 10
seed = {}
[optim]
learning_rate = 0.01
warmup_steps = 2
weight_decay = 0
[unlearning]
shards = 2
slices = 4
budget = 4
partition_seed = {}
)",
                                                    world_.length, options_.seed, options_.seed),
                                .name = "the proof"};
  std::vector<std::string> all{"model.from=" + world_.base.string(), "data.path=" + records_file_.string()};  // as --set takes any path
  all.insert(all.end(), world_.sets.begin(), world_.sets.end());
  all.insert(all.end(), sets.begin(), sets.end());
  return unlearn::make_store(unlearn::read_unlearn(file, all), fs::path(options_.scratch) / name, without);
}

namespace {

void on_quiet_ranks(int ranks, const std::function<void(comm::World&)>& body) {
  comm::LocalOptions quiet;
  quiet.world = [](int) {
    comm::WorldOptions world;
    world.log = base::Log::quiet();
    return world;
  };
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks, quiet).run(body))
    if (error) std::rethrow_exception(error);
}

}  // namespace

unlearn::TrainedStages S3tStores::train(const unlearn::Store& store, int ranks) const {
  const base::Stop never;
  unlearn::TrainedStages done;
  on_quiet_ranks(ranks, [&](comm::World& world) {
    base::Log log = base::Log::quiet();
    const unlearn::TrainedStages found = unlearn::train_missing_stages(world, store, {.device = world_.device}, log, never);
    if (world.rank() == 0) done = found;
  });
  return done;
}

unlearn::TrainedStage S3tStores::train_stage(const unlearn::Store& store, const unlearn::StageChain& chain) const {
  const base::Stop never;
  unlearn::TrainedStage stage;
  on_quiet_ranks(1, [&](comm::World& world) { stage = unlearn::train_stage(world, store, chain, {.device = world_.device}, never); });
  return stage;
}

unlearn::Store S3tStores::trained(const std::string& name, const std::vector<std::string>& sets,
                                  const std::vector<int64_t>& without) const {
  unlearn::Store store = make(name, sets, without);
  const unlearn::TrainedStages done = train(store);
  log_.info("{}: {} stages in {:.1f} s", name, done.stages, done.seconds);
  return store;
}

unlearn::Store S3tStores::copy(const unlearn::Store& store, const std::string& name) const {
  const fs::path folder = fs::path(options_.scratch) / name;
  fs::remove_all(folder);
  fs::copy(store.folder(), folder, fs::copy_options::recursive);
  return unlearn::Store(folder);
}

cli::LanguageModel S3tStores::open(const unlearn::Store& store) const {
  base::Log quiet = base::Log::quiet();
  cli::LanguageModel model = cli::open_language_model(store.folder().string(), quiet, {.device = world_.device});
  model.prepare_for_length(held_out_.size(1));
  return model;
}

namespace {

at::Tensor next_token_log_probs(const model::Model& model, const model::Weights& weights, model::Buffers& buffers,
                                const at::Tensor& tokens) {
  const mesh::Axes axes;
  const model::Call call{.weights = weights, .buffers = buffers, .axes = axes, .needs = {false, false}};
  model::Values values;
  values.put("tokens", tokens.to(weights.get({0}).device()));
  for (const auto& block : model.blocks()) block->forward(values, nullptr, call);
  return at::log_softmax(values.take("logits").to(at::kFloat), -1).cpu();
}

}  // namespace

at::Tensor S3tStores::predictions(cli::LanguageModel& model) const {
  return next_token_log_probs(*model.model, *model.weights, model.buffers, held_out_);
}

double S3tStores::accuracy(const at::Tensor& predictions) const {
  const int64_t length = held_out_.size(1);
  const at::Tensor guessed = predictions.narrow(1, 0, length - 1).argmax(-1);
  return guessed.eq(held_out_.narrow(1, 1, length - 1)).to(at::kDouble).mean().item<double>();
}

double S3tStores::accuracy(const unlearn::Store& store, const std::vector<std::vector<unlearn::Artifact>>& chains) const {
  std::string key = store.folder().filename().string();
  for (const std::vector<unlearn::Artifact>& chain : chains) key += chain.empty() ? " -" : " " + to_text(chain.back().name);
  if (const auto found = known_.find(key); found != known_.end()) return found->second;
  base::Log quiet = base::Log::quiet();
  cli::LanguageModel base = cli::open_language_model(world_.base.string(), quiet, {.device = world_.device});
  std::vector<model::ServedAdapters::One> shards;
  for (const std::vector<unlearn::Artifact>& chain : chains) {
    if (chain.empty()) continue;
    model::ServedAdapters::One& one = shards.emplace_back(
        model::ServedAdapters::One{.name = fmt::format("{}", shards.size()), .shape = chain.back().shape, .tensors = {}});
    for (const mesh::NamedTensor& tensor : unlearn::served_tensors(store, chain))
      one.tensors[tensor.name] = tensor.tensor.to(base.weights->flat().options());
  }
  if (shards.empty()) {
    base.prepare_for_length(held_out_.size(1));
    return known_[key] = accuracy(predictions(base));
  }
  evaluate::MixtureOptions mix{.prior = std::vector<double>(shards.size(), 1.0), .average = true, .of_logs = true};
  const auto adapters =
      std::make_shared<const model::ServedAdapters>(std::move(shards), base.shape.layers, model::family(base.shape.family).names.layers);
  const auto model = evaluate::make_adapter_ensemble(base.shape, adapters, mix);
  model::Buffers buffers = model->make_buffers(base.weights->flat().options().dtype(at::kFloat));
  return known_[key] = accuracy(next_token_log_probs(*model, *base.weights, buffers, held_out_));
}

std::string bytes_of_artifact(const unlearn::Store& store, const std::string& name) {
  std::string all;
  for (const char* file : {"artifact.json", "adapter.safetensors"}) all += base::read_file(store.artifact(name) / file, kArtifactBytesMax);
  return all;
}

}  // namespace cairn::study
