#include "train/replay_log.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "kernels/aten.h"
#include "mesh/flat_layout.h"
#include "model/decoder/decoder.h"
#include "snapshot/snapshot.h"
#include "sync/one_byte/round_log.h"

namespace cairn::train {
namespace {

// The rounds that a snapshot of one-byte training has; nothing: the directory is no such snapshot.
std::optional<int64_t> rounds_in(const std::string& folder) {
  if (!base::path_exists(std::filesystem::path(folder) / "training" / "step.safetensors")) return std::nullopt;
  const snapshot::OpenSnapshot opened = snapshot::open(folder);
  const auto& entries = opened.section("step").entries();
  if (entries.size() != 1 || entries.front().name != "rounds") return std::nullopt;
  at::Tensor rounds = at::zeros({1}, at::kLong);
  opened.load_into("step", {{"rounds", rounds}});
  return rounds.item<int64_t>();
}

uint64_t hash_of_all(const mesh::NamedTensors& tensors, const std::vector<std::string>* only) {
  std::vector<std::pair<std::string, uint64_t>> hashes;
  for (const mesh::NamedTensor& one : tensors)
    if (!only || std::find(only->begin(), only->end(), one.name) != only->end())
      hashes.emplace_back(one.name, sync::hash_of_tensor(one.tensor));
  return sync::hash_of_parameters(hashes);
}

// Applies the rounds from `first` on to these tensors, in place.
void apply_rounds(const sync::RoundLog& log, const std::string& path, const mesh::NamedTensors& tensors, ReplayedLog& result) {
  const sync::RoundLogHeader& header = log.header();
  mesh::FlatLayout layout;
  for (const mesh::NamedTensor& one : tensors) layout.append(one.name, one.tensor.sizes().vec());
  const at::Tensor flat = at::empty({layout.elements}, header.parameters == "bf16" ? at::kBFloat16 : at::kFloat);
  const mesh::NamedTensors views = layout.views(flat);
  for (size_t i = 0; i < tensors.size(); ++i) views[i].tensor.copy_(tensors[i].tensor);
  const model::FlatWeights weights(layout, flat);
  sync::OneByteReplica::Model model{weights, {}, {}};
  for (const mesh::NamedTensor& one : tensors) {
    model.names.push_back(one.name);
    model.trained.push_back(std::find(header.trained.begin(), header.trained.end(), one.name) != header.trained.end());
  }
  const auto trained = static_cast<size_t>(std::count(model.trained.begin(), model.trained.end(), true));
  if (trained != header.trained.size())
    base::fail_input("{}: its rounds train {} parameters, and the base has {} of them: give the base checkpoint of that run", path,
                     header.trained.size(), trained);
  sync::OneByteOptions options;
  options.code = header.code, options.noise = header.noise, options.scale = header.scale;
  sync::OneByteReplica replica(options, header.run, model);
  result.last_round = result.first_round;
  for (const sync::RoundRecord& record : sync::decode_records(log.records(), header.code)) {
    if (record.manifest.round < result.first_round) continue;
    if (record.manifest.hash != 0) {
      if (record.manifest.hash != hash_of_all(views, &header.trained))
        base::fail_input("{}: at round {} the run had other weights: give the base checkpoint or a snapshot of that run", path,
                         record.manifest.round);
      ++result.hashes;
    }
    replica.apply(record);
    result.last_round = int64_t{record.manifest.round} + 1;
  }
  for (size_t i = 0; i < tensors.size(); ++i) tensors[i].tensor.copy_(views[i].tensor);
}

}  // namespace

ReplayedLog replay_log(const std::string& base, const std::filesystem::path& path, base::Log& warnings) {
  const std::optional<sync::RoundLog> log = sync::RoundLog::open(path);
  if (!log) base::fail_input("{}: no such file; give the rounds.bin of a run", path.string());
  if (log->torn_bytes() > 0) warnings.warn("{}: the last {} bytes are no whole round, and are left out", path.string(), log->torn_bytes());
  ReplayedLog result{.base = snapshot::open_pretrained(base, warnings), .parameters = {}};
  const auto decoder = model::make_decoder(result.base.shape);
  result.parameters = decoder->layout().views(at::empty({decoder->elements()}));
  std::optional<snapshot::Adapter> adapter = std::move(result.base.adapter);
  result.base.adapter.reset();
  result.base.load_into(result.parameters);
  if (log->header().parameters == "bf16")  // as the run kept them
    for (const mesh::NamedTensor& one : result.parameters) one.tensor.copy_(one.tensor.to(at::kBFloat16));
  const bool trains_adapter = adapter && std::any_of(adapter->tensors.begin(), adapter->tensors.end(), [&](const auto& one) {
                                return std::ranges::find(log->header().trained, one.name) != log->header().trained.end();
                              });
  const bool is_base = !trains_adapter && log->header().base == hash_of_all(result.parameters, nullptr);
  const std::optional<int64_t> rounds = is_base ? int64_t{log->header().first} : rounds_in(result.base.path);
  if (!rounds || *rounds < log->header().first)
    base::fail_input("{}: is not the base checkpoint of {}, whose rounds begin with other weights, and no snapshot of that run", base,
                     path.string());
  result.first_round = *rounds;
  if (trains_adapter) {
    for (mesh::NamedTensor& one : adapter->tensors) one.tensor = one.tensor.clone();
    apply_rounds(*log, path.string(), adapter->tensors, result);
  } else {
    apply_rounds(*log, path.string(), result.parameters, result);
  }
  if (adapter) snapshot::merge_adapter(result.parameters, *adapter, result.base.shape);
  return result;
}

}  // namespace cairn::train
