#include "unlearn/stage.h"

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/log.h"
#include "base/random.h"
#include "base/stop.h"
#include "comm/group.h"
#include "comm/world.h"
#include "data/batch_split.h"
#include "kernels/aten.h"
#include "snapshot/pretrained.h"
#include "study/trained_weights.h"
#include "train/job.h"
#include "train/settings.h"
#include "train/train.h"
#include "unlearn/recipe.h"
#include "unlearn/records.h"

namespace cairn::unlearn {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOrigin = "the store";

std::set<int64_t> deleted_set(const Store& store) {
  const std::vector<int64_t> all = store.deleted();
  return {all.begin(), all.end()};
}

// The slices whose records a stage reads, in the order in which they are written for it.
std::vector<Place> slices_read(const Store& store, const ArtifactName& stage) {
  std::vector<Place> places;
  for (const int64_t slice : stage.slices) places.push_back({stage.shard, slice});
  if (store.spec().data == StageData::slice) places.erase(places.begin(), places.end() - 1);
  return places;
}

// A file with the records of a stage, for as long as the object lives. Only rank 0 writes it.
class StageFile {
 public:
  StageFile(const Store& store, const ArtifactName& stage, int64_t token, bool writes)
      : folder_(work_folder(store, stage, token)), writes_(writes) {
    if (!writes) return;
    base::make_folder(folder_);
    std::string text;
    const std::set<int64_t> deleted = deleted_set(store);
    for (const Place& place : slices_read(store, stage))
      for (const StoredRecord& record : read_slice(store, place, deleted)) {
        text += record.json + "\n";
        ++records_;
      }
    base::write_atomically(path(), text);
  }
  ~StageFile() {
    std::error_code none;
    if (writes_) fs::remove_all(folder_, none);
  }
  StageFile(const StageFile&) = delete;
  StageFile& operator=(const StageFile&) = delete;

  fs::path path() const { return folder_ / "records.jsonl"; }
  int64_t records() const { return records_; }

 private:
  fs::path folder_;
  bool writes_;
  int64_t records_ = 0;
};

int64_t seed_of(const Store& store, const ArtifactName& stage) {
  const ArtifactName whole{.shard = stage.shard, .slices = stage.slices};
  const base::Random random =
      base::Random(static_cast<uint64_t>(store.spec().seed)).for_purpose("unlearning stage").for_name(to_text(whole));
  return static_cast<int64_t>(random.bits64(0) >> 1);
}

// The layer's name of an adapter's parameter.
std::string module_of(const std::string& parameter) { return parameter.substr(0, parameter.find(".lora_")); }

// The recipe of one stage, made of the store's.
class StageRecipe {
 public:
  StageRecipe(const Store& store, const ArtifactName& stage, const fs::path& records, int ranks)
      : store_(store), stage_(stage), recipe_(base::Recipe::parse_saved({store.recipe(), (store.folder() / "recipe.toml").string()})) {
    base::Recipe brief = recipe_;
    const train::Settings settings = train::read_settings(brief);
    const bool is_brief = brief.read(model::lora_schema()) != model::AdapterOptions{};
    shape_ = settings.adapter.shape();
    set_data(records);
    set_layers(is_brief ? "model.lora.targets" : "model.adapter.targets");
    cache_layers_below(settings, ranks);
  }

  const base::Recipe& recipe() const { return recipe_; }
  const model::AdapterShape& shape() const { return shape_; }

 private:
  void set(const char* key, base::Setting value) { recipe_.set(key, std::move(value), kOrigin); }

  // All records of the stage are trained on, and nothing is kept of them.
  void set_data(const fs::path& records) {
    set("model.from", store_.spec().base);
    set("data.path", records.string());
    set("data.sources", std::vector<std::string>{});
    set("data.format", std::string("jsonl"));
    set("eval.fraction", 0.0);
    set("eval.every", int64_t{0});
    set("snapshot.every", int64_t{0});
    set("log.samples", int64_t{0});
    set("train.seed", seed_of(store_, stage_));
  }

  void set_layers(const char* targets) {
    const auto by_layer = adapters_by_layer(snapshot::read_outline(store_.spec().base).shape, shape_);
    std::set<std::string> modules;
    std::vector<std::string> trained;
    for (size_t stage = 0; stage < stage_.slices.size(); ++stage)
      for (const int64_t layer : store_.spec().layers[stage]) {
        const auto found = by_layer.find(layer);
        if (found == by_layer.end()) continue;
        for (const std::string& name : found->second) {
          modules.insert(module_of(name));
          if (stage + 1 == stage_.slices.size()) trained.push_back(name);
        }
      }
    set(targets, std::vector<std::string>(modules.begin(), modules.end()));
    set("model.train", trained);
  }

  // Nothing below the layers of the stage changes: later epochs need not run it. Where the recipe has something that this does not go
  // with, every epoch does.
  void cache_layers_below(const train::Settings& settings, int ranks) {
    base::Recipe options = base::Recipe::parse_saved({store_.options(), (store_.folder() / "unlearning.toml").string()});
    const int64_t bytes = options.read(unlearning_schema()).cache_bytes;
    const bool any_below = store_.spec().layers[stage_.slices.size() - 1].back() > 0;
    if (bytes == 0 || !any_below || settings.train.cache_frozen_bytes > 0) return;
    base::Recipe cached = recipe_;
    cached.set("train.cache_frozen_bytes", bytes, kOrigin);
    try {
      train::check_recipe(cached, ranks);
    } catch (const Error& error) {
      if (error.sentence().find("train.cache_frozen_bytes") == std::string::npos) throw;
      return;
    }
    recipe_ = cached;
  }

  const Store& store_;
  const ArtifactName& stage_;
  base::Recipe recipe_;
  model::AdapterShape shape_;
};

// What was trained before and stays: adapters of the stages before (s3t), or where this stage begins (sisa).
mesh::NamedTensors tensors_before(const Store& store, const StageChain& chain) {
  mesh::NamedTensors all;
  const size_t own = chain.size() - 1;
  for (size_t stage = store.spec().method == Method::sisa && own > 0 ? own - 1 : 0; stage < own; ++stage)
    for (mesh::NamedTensor& one : read_adapter_tensors(store, read_artifact(store, to_text(chain[stage])))) all.push_back(std::move(one));
  return all;
}

// The mean loss on a file that no record may be deleted from. Every rank reads all of it.
double validation_loss(train::Job& job, const Store& store) {
  base::Recipe options = base::Recipe::parse_saved({store.options(), (store.folder() / "unlearning.toml").string()});
  const std::string file = options.read(unlearning_schema()).validation;
  if (file.empty()) return kNotMeasured;
  data::DataOptions data = job.config.settings.data;
  data.path = file, data.sources = {}, data.format = "auto";
  base::Log quiet = base::Log::quiet();
  const data::OpenedData opened = data::open_data(data, {.held_out_fraction = 0}, quiet);
  const data::SampleRange range = opened.samples->training();
  double sums[2] = {0, 0};
  for (const data::BatchRange& part : data::micro_batches(range.count, job.config.plan.micro_batch, range.count)) {
    std::vector<int64_t> ids(static_cast<size_t>(part.count));
    std::iota(ids.begin(), ids.end(), range.first + part.first);
    mesh::Batch batch;
    opened.samples->fill(ids, batch);
    const model::Losses losses = job.step->evaluate(job.engine, mesh::to_device(batch, job.config.device));
    sums[0] += losses.sum.item<double>();
    sums[1] += losses.count.to(at::kDouble).item<double>();
  }
  job.engine.step_group->all_reduce({sums, 2, comm::Dtype::f64}, comm::Reduce::sum, {comm::Purpose::loss, "validation"}).wait_host();
  return sums[1] > 0 ? sums[0] / sums[1] : kNotMeasured;
}

}  // namespace

int64_t records_of_stage(const Store& store, const StageChain& chain) {
  const std::set<int64_t> deleted = deleted_set(store);
  int64_t records = 0;
  for (const Place& place : slices_read(store, chain.back())) records += static_cast<int64_t>(read_slice(store, place, deleted).size());
  return records;
}

base::Recipe recipe_of_stage(const Store& store, const ArtifactName& stage, const fs::path& records, int ranks) {
  return StageRecipe(store, stage, records, ranks).recipe();
}

TrainedStage train_stage(comm::World& world, const Store& store, const StageChain& chain, const StageSetup& setup, const base::Stop& stop) {
  const base::RealClock clock;
  const ArtifactName& own = chain.back();
  const auto from_rank_0 = [&](int64_t number) {
    world.everyone().broadcast({&number, 1, comm::Dtype::i64}, 0, {comm::Purpose::control, "records of a stage"}).wait_host();
    return number;
  };
  const StageFile file(store, own, from_rank_0(new_token()), world.rank() == 0);
  const int64_t records = from_rank_0(file.records());
  CAIRN_CHECK(records > 0, "{}: no records", to_text(own));
  const StageRecipe made(store, own, file.path(), world.size());
  const mesh::NamedTensors before = tensors_before(store, chain);
  TrainedStage found;
  const train::RunHooks hooks{.at_begin = [&](train::Job& job) { study::put_trained(job, before); },
                              .at_end =
                                  [&](train::Job& job) {
                                    found.tensors = study::take_trained(job);
                                    found.examples = static_cast<double>(records) * job.sampler->epoch(job.progress.steps_done);
                                    found.artifact.validation = validation_loss(job, store);
                                  }};
  const train::Start start{.out = {}, .cache = {}, .device = setup.device, .threads = setup.threads, .terminal = nullptr};
  const train::Result result = train::run(world, made.recipe(), start, {}, stop, hooks);
  if (result.stopped) throw Error(Error::Kind::cancelled, fmt::format("{}: stopped; start the command again to go on", to_text(own)));
  Artifact& artifact = found.artifact;
  artifact.name = own;
  artifact.base_checksum = store.spec().base_checksum;
  artifact.seed = seed_of(store, own);
  artifact.records = records;
  artifact.loss = result.loss;
  artifact.shape = {.rank = made.shape().rank, .alpha = made.shape().alpha, .by_root = made.shape().by_root};
  if (chain.size() > 1) {
    artifact.parent = to_text(chain[chain.size() - 2]);
    artifact.parent_checksum = read_artifact(store, artifact.parent).checksum;
  }
  found.seconds = base::seconds(clock.now());
  return found;
}

}  // namespace cairn::unlearn
