#include "task/checkpoints.h"

#include <limits>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "base/files.h"
#include "base/files/disk.h"
#include "base/json.h"
#include "base/version.h"
#include "comm/world.h"
#include "snapshot/snapshot.h"
#include "task/trainer.h"
#include "train/state/find_snapshot.h"

namespace cairn::task {
namespace {

const char* const kState = "training/state.json";
const char* const kEpochs = "epochs";
const char* const kLast = "last";

void note_best(const std::vector<std::string>& names, const Metrics& metrics, double sign, Metrics& best, std::vector<std::string>& due) {
  const std::string kind = sign > 0 ? "argmin-" : "argmax-";
  for (const std::string& name : names) {
    const auto found = metrics.find(name);
    if (found == metrics.end()) {
      std::vector<std::string> known;
      for (const auto& [other, value] : metrics) known.push_back(other);
      base::fail_unknown("metric to save by", name, known);
    }
    const auto before = best.find(kind + name);
    if (before != best.end() && sign * found->second >= sign * before->second) continue;
    best[kind + name] = found->second;
    due.push_back(kind + name);
  }
}

}  // namespace

std::string to_json(const TrainerState& progress) {
  base::OrderedJson json{{"step", progress.step}, {"epoch", progress.epoch}, {"updates", progress.updates}, {"seed", progress.seed}};
  json["best"] = base::OrderedJson::object();
  for (const auto& [name, value] : progress.best) json["best"][name] = value;
  return base::pretty(json) + "\n";
}

TrainerState parse_trainer_state(const std::string& text, const std::string& path) {
  const base::Json json = base::parse_json_guarded(text, 4).value;
  const auto whole = [&](const char* key) {
    if (!json.is_object() || !json.contains(key) || !json[key].is_number_unsigned())
      base::fail_corrupt(path, fmt::format("no number \"{}\" that is 0 or more", key));
    return json[key].get<uint64_t>();
  };
  TrainerState progress{.step = static_cast<int64_t>(whole("step")),
                        .epoch = static_cast<int64_t>(whole("epoch")),
                        .updates = static_cast<int64_t>(whole("updates")),
                        .seed = whole("seed")};
  if (!json.contains("best") || !json["best"].is_object()) base::fail_corrupt(path, "no object \"best\"");
  for (const auto& [name, value] : json["best"].items()) {
    if (!value.is_number()) base::fail_corrupt(path, fmt::format("best \"{}\" is no number", name));
    progress.best[name] = value.get<double>();
  }
  return progress;
}

std::vector<std::string> folders_due(const SaveOptions& save, int64_t epoch, const Metrics& metrics, Metrics& best) {
  std::vector<std::string> due;
  if (save.every_epochs > 0 && epoch % save.every_epochs == 0) due.emplace_back(kEpochs);
  if (save.last) due.emplace_back(kLast);
  note_best(save.argmin, metrics, 1, best, due);
  note_best(save.argmax, metrics, -1, best, due);
  return due;
}

std::optional<snapshot::OpenSnapshot> newest(comm::World& world, const std::filesystem::path& folder) {
  std::optional<snapshot::OpenSnapshot> best;
  for (const char* name : {kEpochs, kLast}) {
    if (!base::path_exists(folder / name / "recipe.toml")) continue;
    std::optional<snapshot::OpenSnapshot> found = train::find_snapshot(world, world.everyone(), (folder / name).string());
    if (found && (!best || found->step() > best->step())) best = std::move(found);
  }
  return best;
}

void write_checkpoint(const std::filesystem::path& folder, const std::string& name, const std::string& about,
                      const mesh::NamedTensors& model, const mesh::NamedTensors& optimizer, const TrainerState& progress) {
  const std::filesystem::path into = folder / name;
  base::make_folder(into);
  base::write_atomically(into / "recipe.toml", about);
  snapshot::Contents contents{.step = progress.step, .tensors = {}, .texts = {}, .version = base::version()};
  contents.tensors["model"] = model;
  if (!optimizer.empty()) contents.tensors["optimizer"] = optimizer;
  contents.texts[kState] = to_json(progress);
  const int64_t keep = name == kEpochs ? std::numeric_limits<int64_t>::max() : 1;
  snapshot::save(into.string(), contents, {.newest = keep}, base::real_disk());
}

}  // namespace cairn::task
