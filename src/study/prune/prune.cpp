#include "study/prune/prune.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/random.h"
#include "base/stop.h"
#include "base/text.h"
#include "comm/world.h"
#include "data/dataset.h"
#include "kernels/aten.h"
#include "kernels/device.h"
#include "memory/host_allocator.h"
#include "model/bit_mask.h"
#include "model/decoder/decoder.h"
#include "model/model.h"
#include "snapshot/masks.h"
#include "snapshot/snapshot.h"
#include "study/prune/layer_stream.h"
#include "study/prune/model_writer.h"
#include "study/prune/prune_inputs.h"
#include "study/prune/recover_subset.h"
#include "study/study_recipe.h"
#include "study/study_samples.h"
#include "train/evaluate.h"
#include "train/job.h"
#include "train/settings.h"
#include "train/train.h"

namespace cairn::study {
namespace {

constexpr double kNoLoss = std::numeric_limits<double>::quiet_NaN();

bool subset_has(const RecoverOptions& options, const char* subset) {
  return std::count(options.train.begin(), options.train.end(), subset) > 0;
}

class Prune {
 public:
  Prune(comm::World& world, const PruneRecipe& recipe, const PruneSetup& setup, const base::Stop& stop)
      : world_(world),
        o_(recipe.options),
        recipe_(recipe),
        setup_(setup),
        stop_(stop),
        quiet_(base::Log::quiet()),
        device_(kernels::device_from_name(setup.device)),
        group_(world.group(all_ranks(world), "prune")) {
    group_.set_deadline(std::chrono::hours(24 * 30));  // ranks wait while the first one writes and evaluates
    base::Recipe read = recipe.training;
    settings_ = train::read_settings(read);
    data_.emplace(open_study_samples(settings_, setup.cache, world.rank() == 0 ? world.log() : quiet_));
    draw_calibration();
  }

  PruneResult run() {
    if (base::path_exists(setup_.out / "model"))
      base::fail_input("{}: it has a pruned model already. Give another --out, or remove it.", (setup_.out / "model").string());
    result_.model = setup_.out / "model";
    std::string from = settings_.model.from;
    {
      const snapshot::Pretrained dense = opened(from);
      leave_out_what_is_missing(dense.shape);
      check_prunable(o_, dense.shape);
      begin_folder(dense);
      result_.parameters = model::make_decoder(dense.shape)->elements();
    }
    result_.dense_loss = loss_of(from);
    for (int64_t round = 1; round <= o_.rounds; ++round) from = take_round(round, from);
    if (first()) write_prune_report(result_, recipe_, setup_.out);
    return std::move(result_);
  }

 private:
  static std::vector<int> all_ranks(comm::World& world) {
    std::vector<int> ranks(static_cast<size_t>(world.size()));
    std::iota(ranks.begin(), ranks.end(), 0);
    return ranks;
  }
  bool first() const { return world_.rank() == 0; }

  // The default subsets, of those that this model has. What a recipe names must be there.
  void leave_out_what_is_missing(const model::DecoderShape& dense) {
    std::vector<std::string>& train = o_.recover.train;
    if (train != RecoverOptions{}.train) return;
    const std::unique_ptr<model::Model> model = model::make_decoder(pruned_shape(o_.recover, dense));
    const bool biased = std::ranges::any_of(model->parameters(), [](const auto& one) { return one.role == model::Parameter::Role::bias; });
    if (!biased) std::erase(train, "bias");
    if (dense.tied) std::erase(train, "head");
    if (first() && train != RecoverOptions{}.train)
      world_.log().info("prune.recover.train: {}, because this model has no {}", fmt::join(train, ", "),
                        biased       ? "head of its own"
                        : dense.tied ? "biases and no head of its own"
                                     : "biases");
  }

  void begin_folder(const snapshot::Pretrained& dense) {
    int64_t digest = first() ? static_cast<int64_t>(digest_of_model(dense)) : 0;
    group_.broadcast({&digest, 1, comm::Dtype::i64}, 0, {comm::Purpose::control, "the model"}).wait_host();
    const PruneInputs inputs{.model = static_cast<uint64_t>(digest), .data = data_->opened.digest};
    check_same_prune(recipe_, inputs, setup_.out);
    group_.barrier("the folder is checked").wait();
    if (first()) {
      base::make_folder(setup_.out);
      write_prune_inputs(recipe_, inputs, setup_.out);
    }
    group_.barrier("the folder").wait();
  }

  // Computes under prune.memory_limit_mb.
  template <typename Act>
  auto limited(const std::string& what, const Act& act) const {
    const auto limit = static_cast<int64_t>(o_.memory_limit_mb * 1048576);
    if (limit == 0) return act();
    const memory::ScopedHostLimit limited(limit);
    try {
      return act();
    } catch (const Error& error) {
      if (error.kind() != Error::Kind::out_of_memory || limited.refused_bytes() == 0) throw;
      base::fail_input(
          "prune.memory_limit_mb = {}: {} needs a tensor of {} more. Use prune.activations = \"disk\", fewer or shorter calibration "
          "samples, "
          "or a smaller prune.calibration_batch.",
          o_.memory_limit_mb, what, base::human_bytes(limited.refused_bytes()));
    }
  }

  // Different samples of the training set, in the order of a seed.
  void draw_calibration() {
    if (!o_.needs_activations()) return;
    const data::SampleRange all = data_->opened.samples->training();
    if (o_.calibration > all.count)
      base::fail_input("prune.calibration = {}: the data have {} training samples of {} tokens. Lower it, or set a shorter data.length.",
                       o_.calibration, all.count, data_->opened.length);
    if (o_.calibration < world_.size())
      base::fail_input("prune.calibration = {}: fewer than {} ranks. Use at least one for each.", o_.calibration, world_.size());
    const base::Random random = base::Random(static_cast<uint64_t>(o_.seed)).for_purpose("calibration");
    std::set<int64_t> drawn;
    for (uint64_t i = 0; static_cast<int64_t>(calibration_.size()) < o_.calibration; ++i) {
      const auto id = all.first + static_cast<int64_t>(random.below(i, static_cast<uint64_t>(all.count)));
      if (drawn.insert(id).second) calibration_.push_back(id);
    }
  }

  mesh::Batch batch_of(std::span<const int64_t> ids) const {
    mesh::Batch batch;
    data_->opened.samples->fill(ids, batch);
    return mesh::to_device(batch, device_);
  }

  snapshot::Pretrained opened(const std::filesystem::path& folder) {
    snapshot::Pretrained found = snapshot::open_pretrained(folder.string(), quiet_, 0);
    if (found.adapter || found.sparse)
      base::fail_input("{}: it is a snapshot with adapters or forms beside its weights. Export it first: cairn snapshot export.",
                       folder.string());
    return found;
  }

  // Of held-out samples; only the first rank computes it.
  double loss_of(const std::filesystem::path& folder) {
    double loss = kNoLoss;
    const data::SampleRange held = data_->opened.samples->held_out();
    if (first() && settings_.eval.samples > 0 && held.count > 0) {
      const snapshot::Pretrained found = opened(folder);
      const std::vector<int64_t> ids = ids_in({held.first, std::min(held.count, settings_.eval.samples)});
      const bool disk = o_.activations == ActivationPlace::disk;
      const StreamedLoss what{.model = found,
                              .samples = static_cast<int64_t>(ids.size()),
                              .batch = o_.calibration_batch,
                              .batches =
                                  [&](int64_t begin, int64_t count) {
                                    return batch_of(std::span(ids).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)));
                                  },
                              .device = device_,
                              .file = disk ? (setup_.out / ".activations").string() : ""};
      const int64_t before = memory::host_memory().current_bytes;
      memory::reset_host_peak();
      loss = limited(fmt::format("the loss of {}", folder.string()), [&] { return streamed_loss(what); });
      result_.loss_peak_bytes = std::max(result_.loss_peak_bytes, memory::host_memory().peak_bytes - before);
    }
    group_.broadcast({&loss, 1, comm::Dtype::f64}, 0, {comm::Purpose::loss, "a pruned model"}).wait_host();
    return loss;
  }

  // Returns the folder of the round's model.
  std::string take_round(int64_t number, const std::string& from) {
    const bool last = number == o_.rounds, retrains = o_.recover.mode == RecoverMode::retrain;
    const std::filesystem::path folder = o_.rounds == 1 ? setup_.out : setup_.out / fmt::format("round-{}", number);
    if (first()) base::make_folder(folder);
    group_.barrier("the folder of a round").wait();
    const std::filesystem::path model = last ? result_.model : folder / "model";
    const std::filesystem::path pruned = retrains ? folder / "pruned" : model;
    // Each round removes the same share of what is left.
    PruneRound round{.sparsity = 1 - std::pow(1 - o_.sparsity, static_cast<double>(number) / static_cast<double>(o_.rounds))};
    round.pruned_loss = round.recovered_loss = round.merged_loss = kNoLoss;
    const base::RealClock clock;
    if (!base::path_exists(pruned)) prune(from, pruned, round);
    round.prune_seconds = base::seconds(clock.now());
    count_masks(pruned, round);
    const double loss = loss_of(pruned);
    (o_.recover.mode == RecoverMode::reconstruct ? round.merged_loss : round.pruned_loss) = loss;
    if (o_.recover.mode == RecoverMode::reconstruct)
      for (const LayerPruned& layer : round.pruned.layers) round.trained += layer.trained;
    if (o_.recover.mode == RecoverMode::none) round.merged_loss = loss;
    if (retrains && !base::path_exists(model)) {
      const base::RealClock since;
      retrain(pruned, folder / "run", round);
      if (stop_.requested()) throw Error(Error::Kind::cancelled, "stopped; start it again to go on");
      if (first()) merge(pruned, folder / "run", model);
      group_.barrier("the merged model").wait();
      round.recover_seconds = base::seconds(since.now());
      if (!subset_has(o_.recover, "lora")) round.merged_loss = loss_of(model);
    }
    if (first())
      world_.log().info("round {}: sparsity={:.4f} loss dense={:.4f} pruned={:.4f} recovered={:.4f} merged={:.4f}", number,
                        static_cast<double>(round.removed) / static_cast<double>(round.weights), result_.dense_loss, round.pruned_loss,
                        round.recovered_loss, round.merged_loss);
    result_.rounds.push_back(std::move(round));
    return model.string();
  }

  void prune(const std::string& from, const std::filesystem::path& to, PruneRound& round) {
    const snapshot::Pretrained dense = opened(from);
    const LayerwiseSetup setup{
        .from = dense,
        .to = to,
        .options = o_,
        .sparsity = round.sparsity,
        .batches =
            [&](int64_t begin, int64_t count) {
              return batch_of(std::span(calibration_).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)));
            },
        .samples = static_cast<int64_t>(calibration_.size()),
        .device = device_,
        .group = group_,
        .log = first() ? world_.log() : quiet_,
        .stop = stop_};
    round.pruned = limited("the layer-wise pass", [&] { return prune_layerwise(setup); });
  }

  void count_masks(const std::filesystem::path& folder, PruneRound& round) {
    const snapshot::Pretrained pruned = opened(folder);
    const auto decoder = model::make_decoder(pruned.shape);
    for (const model::Parameter& one : decoder->parameters())
      for (const mesh::NamedTensor& mask : pruned.masks) {
        if (mask.name != one.name + model::kMaskSuffix) continue;
        round.weights += one.elements();
        round.removed += one.elements() - model::unpack_mask(mask.tensor, one.shape[1]).sum().item<int64_t>();
      }
  }

  // The recipe of a retraining: the user's, with the model, its forms and the subset.
  base::Recipe recipe_of(const std::filesystem::path& pruned, PruneRound& round) {
    const RecoverOptions& r = o_.recover;
    const snapshot::Pretrained model = opened(pruned);
    std::vector<std::string> weights;
    for (const mesh::NamedTensor& one : model.masks)
      weights.push_back(one.name.substr(0, one.name.size() - std::string(model::kMaskSuffix).size()));
    const RetrainedParts parts = retrained_parts(r, model.shape, weights);
    round.trained = parts.trained_elements;
    std::vector<std::pair<std::string, base::Setting>> keys{
        {"model.from", pruned.string()},
        {"model.train", parts.trained},
        {"model.sparse.form", std::string(base::enum_name(model::kSparseFormNames, parts.sparse.form))},
        {"model.sparse.rank", parts.sparse.rank},
        {"model.sparse.alpha", parts.sparse.alpha},
        {"model.sparse.keep_zeros", parts.sparse.keep_zeros},
        {"train.steps", r.steps},
        {"optim.kind", std::string("adamw")},
        {"optim.learning_rate", r.learning_rate},
        {"optim.weight_decay", 0.0},
        {"optim.schedule", std::string("linear")},
        {"optim.min_lr_ratio", 0.0},
        {"optim.warmup_steps", static_cast<int64_t>(std::llround(r.warmup * static_cast<double>(r.steps)))},
        {"log.samples", int64_t{0}}};
    if (parts.adapter.rank > 0) {
      keys.emplace_back("model.adapter.rank", parts.adapter.rank);
      keys.emplace_back("model.adapter.alpha", parts.adapter.alpha);
      keys.emplace_back("model.adapter.targets", parts.adapter.targets);
    }
    return with_keys(recipe_.training, keys);
  }

  void retrain(const std::filesystem::path& pruned, const std::filesystem::path& run, PruneRound& round) {
    const base::Recipe recipe = recipe_of(pruned, round);
    const bool begun = base::path_exists(run / "recipe.toml");
    if (begun)
      if (const auto newest = snapshot::find_latest(run.string()); newest && snapshot::open(*newest).step() >= o_.recover.steps)
        return;  // an earlier call has trained
    const train::Start start{
        .out = run, .resume = begun, .cache = setup_.cache, .device = setup_.device, .threads = setup_.threads, .terminal = nullptr};
    train::run(world_, recipe, start, {}, stop_,
               {.at_begin = {}, .at_end = [&](train::Job& job) { round.recovered_loss = train::evaluate_held_out(job).loss; }});
  }

  // Writes the trained model in the files' own precision, and checks its zeros.
  void merge(const std::filesystem::path& pruned, const std::filesystem::path& run, const std::filesystem::path& to) {
    const at::NoGradGuard no_grad;
    const snapshot::Pretrained before = opened(pruned);
    snapshot::Pretrained trained = snapshot::open_pretrained(run.string(), quiet_);
    std::optional<snapshot::Adapter> beside;
    if (subset_has(o_.recover, "lora")) beside = std::exchange(trained.adapter, std::nullopt);
    const auto decoder = model::make_decoder(trained.shape);
    const mesh::NamedTensors whole = decoder->layout().views(at::empty({decoder->elements()}));
    trained.load_into(whole);
    std::vector<snapshot::TensorEntry> tensors, masks;
    for (const mesh::NamedTensor& one : whole) {
      const at::Tensor file = before.view(one.name);
      tensors.push_back({.name = one.name,
                         .dtype = file.defined() ? snapshot::dtype_of(file.scalar_type()) : snapshot::SafetensorsDtype::f32,
                         .shape = one.tensor.sizes().vec()});
    }
    for (const mesh::NamedTensor& one : before.masks)
      masks.push_back({.name = one.name, .dtype = snapshot::SafetensorsDtype::u8, .shape = one.tensor.sizes().vec()});
    PrunedModelWriter writer(to, trained.shape, std::move(tensors), std::move(masks), before.texts);
    std::map<std::string, at::Tensor> by_mask;
    for (const mesh::NamedTensor& one : whole) {
      writer.tensors().write(one.name, one.tensor);
      by_mask[one.name + model::kMaskSuffix] = one.tensor;
    }
    for (const mesh::NamedTensor& one : before.masks) {
      const at::Tensor& weight = by_mask.at(one.name);
      const at::Tensor pruned_places = model::unpack_mask(one.tensor, weight.size(1)).logical_not();
      const int64_t filled = weight.masked_select(pruned_places).ne(0).sum().item<int64_t>();
      CAIRN_CHECK(filled == 0, "{}: {} pruned weights are not 0 after merging", one.name, filled);
      writer.masks().write(one.name, one.tensor);
    }
    writer.commit();
    if (beside) snapshot::write_adapter((to.parent_path() / "adapter").string(), *beside, trained.shape, to.string(), base::real_disk());
  }

  comm::World& world_;
  PruneOptions o_;
  const PruneRecipe& recipe_;
  const PruneSetup& setup_;
  const base::Stop& stop_;
  base::Log quiet_;
  at::Device device_;
  comm::Group& group_;
  train::Settings settings_;
  std::optional<StudySamples> data_;
  std::vector<int64_t> calibration_;
  PruneResult result_;
};

}  // namespace

PruneRecipe read_prune(const base::Recipe::File& file, const std::vector<std::string>& sets) {
  StudyRecipe parts = split_recipe(file, sets, "prune");
  PruneRecipe found{.options = parts.all.read(prune_schema()), .training = std::move(parts.training)};
  found.options.recover = parts.all.read(recover_schema());
  parts.all.check_all_used(train::recipe_sections());
  check_prune_options(found.options);
  found.options_toml = parts.all.resolved_toml();
  base::Recipe read = found.training;
  const train::Settings settings = train::read_settings(read);
  found.training_toml = read.resolved_toml();
  if (settings.model.from.empty()) base::fail_input("model.from: there is nothing to prune. Name a directory with a trained model.");
  if (!settings.data.needs().is_text())
    base::fail_input("data.kind = {}: a pruned model is repaired on plain text. Use text or chats.", settings.data.kind);
  if (settings.adapter.rank > 0)
    base::fail_input("model.adapter.rank = {}: prune.recover.train says which adapters are trained. Leave model.adapter out.",
                     settings.adapter.rank);
  return found;
}

PruneResult run_prune(comm::World& world, const PruneRecipe& recipe, const PruneSetup& setup, const base::Stop& stop) {
  return Prune(world, recipe, setup, stop).run();
}

}  // namespace cairn::study
