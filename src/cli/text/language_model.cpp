#include "cli/text/language_model.h"

#include <algorithm>
#include <exception>
#include <filesystem>
#include <optional>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "cli/text/expert_placement.h"
#include "data/tokenizer/open_tokenizer.h"
#include "data/tokenizer/tokenizer_config.h"
#include "evaluate/ensemble/ensemble_file.h"
#include "evaluate/ensemble/ensemble_model.h"
#include "kernels/aten.h"
#include "kernels/device.h"
#include "model/decoder/decoder.h"
#include "model/decoder/served_adapters.h"
#include "model/families/families.h"
#include "model/options.h"
#include "parallel/generate/sharded_generator.h"
#include "snapshot/adapter.h"
#include "snapshot/manifest.h"
#include "snapshot/pretrained.h"
#include "unlearn/live.h"

namespace cairn::cli {
namespace {

constexpr int kDepthMax = 32;

std::vector<int64_t> eos_of(const snapshot::Pretrained& opened) {
  const auto text = opened.texts.find("generation_config.json");
  if (text == opened.texts.end()) return opened.shape.tokens.eos;
  const base::GuardedJson parsed = base::parse_json_guarded(text->second, kDepthMax);
  const base::Json& config = parsed.value;
  if (!parsed.trouble.empty()) base::fail_input("{}/generation_config.json: {}", opened.path, parsed.trouble);
  if (!config.is_object()) base::fail_input("{}/generation_config.json: not a JSON object", opened.path);
  const auto eos = config.find("eos_token_id");
  if (eos == config.end() || eos->is_null()) return opened.shape.tokens.eos;
  std::vector<int64_t> ids;
  for (const base::Json& one : eos->is_array() ? *eos : base::Json::array({*eos})) {
    if (!one.is_number_integer() || one.get<int64_t>() < 0)
      base::fail_input("{}/generation_config.json: eos_token_id must be a token id or a list of them", opened.path);
    ids.push_back(one.get<int64_t>());
  }
  return ids;
}

bool has_tokenizer(const snapshot::Pretrained& opened) {
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"})
    if (opened.texts.contains(name)) return true;
  return false;
}

// Copies this rank's shards out of the files.
void load_shards(LanguageModel& into, const snapshot::Pretrained& opened, const MeshPlace& place) {
  parallel::ExpertTables tables;
  if (!place.placement.empty())
    tables = read_expert_tables(place.placement, placement_target(opened, *into.model, place.mesh.extent("ep")));
  into.plan = parallel::generation_plan(place.mesh, *into.model, tables);
  const parallel::ModelShard shard = parallel::model_shard(*into.model, *into.plan, place.rank);
  into.weights = parallel::allocate_shards(*into.model, *into.plan, shard, at::kFloat);
  const mesh::NamedTensors local = into.weights->layout().views(into.weights->flat());
  opened.visit(into.model->parameters(), [&](size_t i, const at::Tensor& whole) {
    if (!shard.parameters[i].here) return;
    local[i].tensor.copy_(parallel::cut_out(whole, shard.parameters[i].local_shard));
    snapshot::check_finite(local[i].tensor, opened.weights.path(), local[i].name);
  });
}

LanguageModel open_one(const std::string& folder, base::Log& log, const MeshPlace* place = nullptr) {
  const snapshot::Pretrained opened =
      snapshot::open_pretrained(folder, log, place ? static_cast<double>(place->ranks_here) / place->mesh.size() : 1);
  LanguageModel found;
  found.path = opened.path;
  found.shape = opened.shape;
  snapshot::check_reads_text(folder, opened.shape);
  found.own_adapter = opened.unmerged_adapter();
  found.model = model::make_decoder(opened.shape, found.own_adapter);
  if (place) {
    load_shards(found, opened, *place);
  } else {
    found.weights = std::make_unique<model::FlatWeights>(found.model->layout(), at::empty({found.model->elements()}));
    opened.load_into(found.weights->layout().views(found.weights->flat()));
  }
  found.trained_here = std::filesystem::exists(std::filesystem::path(opened.path) / snapshot::kManifestFile);
  if (has_tokenizer(opened)) found.tokenizer = data::open_tokenizer(opened.path);
  if (found.tokenizer) model::check_tokenizer_fits(opened.path, opened.shape.vocab, found.tokenizer->vocab_size());
  data::open_tokenizer_config(opened.path);  // report errors in it now, not in the first chat
  for (int64_t id : eos_of(opened))
    if (id < opened.shape.vocab) found.stops.push_back(static_cast<int32_t>(id));
  if (found.stops.empty() && found.tokenizer)
    if (const std::optional<int32_t> end = found.tokenizer->find_end_of_text()) found.stops.push_back(*end);
  return found;
}

// Opens the experts that exist. The others are removed from `file`, with a warning.
std::vector<LanguageModel> open_experts(evaluate::EnsembleFile& file, const std::string& folder, base::Log& log) {
  std::vector<LanguageModel> experts;
  while (experts.size() < file.experts.size()) {
    const evaluate::EnsembleExpert& expert = file.experts[experts.size()];
    if (!std::filesystem::is_directory(expert.path)) {
      log.warn("{}: expert {} is missing ({}): the others take over its weight", folder, expert.name, expert.path);
      evaluate::leave_out(file, experts.size());
      if (file.experts.empty()) base::fail_input("{}: none of its experts is there", folder);
      continue;
    }
    experts.push_back(open_one(expert.path, log));
    const LanguageModel& one = experts.back();
    if (one.own_adapter.rank > 0)
      base::fail_input("{}: expert {} has an adapter that is no part of its weights ({}). Use merged adapters.", folder, expert.name,
                       expert.path);
    if (!one.tokenizer) base::fail_input("{}: expert {} has no tokenizer ({})", folder, expert.name, expert.path);
    if (const uint64_t hash = data::hash(*one.tokenizer); hash != file.tokenizer)
      base::fail_input("{}: expert {} has another tokenizer ({:016x}) than the ensemble ({:016x}): all experts must have the same", folder,
                       expert.name, hash, file.tokenizer);
  }
  return experts;
}

LanguageModel open_ensemble(const std::string& folder, const std::string& domain, base::Log& log) {
  evaluate::EnsembleFile file = evaluate::read_ensemble(folder);
  std::vector<LanguageModel> experts = open_experts(file, folder, log);
  LanguageModel found;
  found.path = experts.front().path;
  found.shape = experts.front().shape;
  found.mix = file.mix(domain);
  std::vector<at::Tensor> flat;
  for (const LanguageModel& expert : experts) {
    found.experts.push_back(expert.shape);
    found.shape.length = std::min(found.shape.length, expert.shape.length);
    flat.push_back(expert.weights->flat());
  }
  found.model = evaluate::make_ensemble(found.experts, found.mix);
  found.weights = std::make_unique<model::FlatWeights>(found.model->layout(), at::cat(flat));
  found.tokenizer = std::move(experts.front().tokenizer);
  found.stops = experts.front().stops;
  found.trained_here = experts.front().trained_here;
  return found;
}

// The adapters of a store's shards, as they are served after so many deletions. Where a deletion comes while they are read, they are read
// again: what is returned depends on nothing that was deleted before.
std::vector<model::ServedAdapters::One> open_shards(const unlearn::Store& store, int64_t& deletions, base::Log& log) {
  while (true) {
    const unlearn::Served served = unlearn::served_by(store);
    std::vector<model::ServedAdapters::One> shards;
    std::exception_ptr failed;
    try {
      for (int64_t shard = 0; shard < store.spec().shards; ++shard) {
        const std::vector<unlearn::Artifact> chain = served.chain(shard);
        if (chain.empty()) continue;
        model::ServedAdapters::One& one = shards.emplace_back(
            model::ServedAdapters::One{.name = fmt::format("shard-{}", shard), .shape = chain.back().shape, .tensors = {}});
        for (const mesh::NamedTensor& tensor : unlearn::served_tensors(store, chain)) one.tensors[tensor.name] = tensor.tensor;
      }
    } catch (const Error&) {
      failed = std::current_exception();
    }
    deletions = served.deletions;
    if (static_cast<int64_t>(store.deleted().size()) != deletions) continue;
    if (failed) std::rethrow_exception(failed);
    if (const auto answering = static_cast<int64_t>(shards.size()); answering < store.spec().shards)
      log.warn("{}: {} of {} shards answer; `cairn unlearn repair {}` trains the others again", store.folder().string(), answering,
               store.spec().shards, store.folder().string());
    if (shards.empty())
      log.warn("{}: every order of every shard has lost its first stage: the base model answers", store.folder().string());
    return shards;
  }
}

}  // namespace

void LanguageModel::prepare_for_length(int64_t tokens) {
  model::DecoderShape built = shape;
  built.table_length = std::min(shape.length, tokens);
  std::vector<model::DecoderShape> several = experts;
  for (model::DecoderShape& one : several) one.table_length = built.table_length;
  model = adapters_together ? evaluate::make_adapter_ensemble(built, adapters, mix)
          : adapters        ? model::make_serving_decoder(built, adapters)
          : several.empty() ? model::make_decoder(built, own_adapter)
                            : evaluate::make_ensemble(several, mix);
  buffers = model->make_buffers(weights->flat().options().dtype(at::kFloat));
}

void LanguageModel::serve_adapters(const std::vector<std::string>& given) {
  if (own_adapter.rank > 0)
    base::fail_input("--adapter: {} has an adapter of style {} already. Give the model without it.", path,
                     base::enum_name(model::kAdapterStyleNames, own_adapter.style));
  if (!experts.empty()) base::fail_input("--adapter: {} is an ensemble; name one of its experts", path);
  if (adapters_together) base::fail_input("--adapter: this is a store of cairn unlearn, which has adapters of its own. Leave it out.");
  std::vector<model::ServedAdapters::One> all;
  for (const std::string& one : given) {
    const size_t equals = one.find('=');
    if (equals == std::string::npos || equals == 0 || equals + 1 == one.size())
      base::fail_input("--adapter {}: give NAME=DIR, as in --adapter french=adapters/french", one);
    const snapshot::Adapter read = snapshot::read_adapter(one.substr(equals + 1));
    snapshot::check_adapter(read, shape);
    model::ServedAdapters::One& into =
        all.emplace_back(model::ServedAdapters::One{.name = one.substr(0, equals), .shape = read.shape, .tensors = {}});
    for (size_t i = 0; i + 1 < all.size(); ++i)
      if (all[i].name == into.name) base::fail_input("--adapter {}: two adapters have this name", into.name);
    for (const mesh::NamedTensor& tensor : read.tensors) into.tensors[tensor.name] = tensor.tensor.to(weights->flat().options());
  }
  adapters = std::make_shared<const model::ServedAdapters>(std::move(all), shape.layers, model::family(shape.family).names.layers);
}

const data::Tokenizer& LanguageModel::require_tokenizer(std::string_view option) const {
  if (!tokenizer) base::fail_input("{}: {} has no tokenizer.json; give token ids (--ids 1,2,3)", option, path);
  return *tokenizer;
}

std::optional<int32_t> LanguageModel::first_token() const {
  if (!tokenizer) return shape.tokens.bos && *shape.tokens.bos < shape.vocab ? std::optional<int32_t>(*shape.tokens.bos) : std::nullopt;
  const std::optional<int32_t> first = tokenizer->begin_of_text();
  return first ? first : tokenizer->find_end_of_text();
}

std::vector<int32_t> LanguageModel::text_prefix() const { return data::text_prefix(require_tokenizer("--data"), trained_here); }

std::vector<int32_t> LanguageModel::prompt_ids(std::string_view text, std::string_view option) const {
  const data::Tokenizer& tokens = require_tokenizer(option);
  std::vector<int32_t> ids = text_prefix();
  tokens.encode(text, {}, ids);
  if (const std::optional<int32_t> first = first_token(); ids.empty() && first) ids.push_back(*first);
  if (ids.empty()) base::fail_input("{}: empty, and this model has no token that begins a text; give one or --ids", option);
  return ids;
}

namespace {

at::Device device_of(const ComputeOptions& on) {
  const at::Device device = kernels::device_from_name(on.device);
  if (on.precision == "bf16" && device.is_cpu())
    base::fail_input("--precision bf16: is for a GPU (--device cuda); a CPU computes in fp32: leave it out");
  return device;
}

void move_weights(LanguageModel& model, at::Device device, const ComputeOptions& on) {
  if (!device.is_cuda()) return;
  std::vector<mesh::Placement> placements;
  for (size_t i = 0; i < model.model->parameters().size(); ++i) placements.push_back(model.weights->placement({static_cast<int32_t>(i)}));
  const at::Tensor there = model.weights->flat().to(device, on.precision == "bf16" ? at::kBFloat16 : at::kFloat);
  model.weights = std::make_unique<model::FlatWeights>(model.weights->layout(), there, std::move(placements));
}

}  // namespace

namespace {

// The base model of a store, with the adapters of the shards that answer.
LanguageModel open_store(const std::string& folder, base::Log& log, at::Device device, const ComputeOptions& on) {
  const unlearn::Store store(folder);
  LanguageModel found = open_one(store.spec().base, log);
  move_weights(found, device, on);
  found.store = folder;
  std::vector<model::ServedAdapters::One> shards = open_shards(store, found.deletions, log);
  if (shards.empty()) return found;
  for (model::ServedAdapters::One& one : shards) {
    snapshot::Adapter whole{.shape = one.shape, .tensors = {}, .path = folder};
    for (const auto& [name, tensor] : one.tensors) whole.tensors.push_back({name, tensor});
    snapshot::check_adapter(whole, found.shape);
    for (auto& [name, tensor] : one.tensors) tensor = tensor.to(found.weights->flat().options());
  }
  found.mix = {.prior = std::vector<double>(shards.size(), 1.0),
               .average = true,
               .of_logs = store.spec().aggregate == unlearn::Aggregate::mean_log_prob};
  found.adapters_together = true;
  found.adapters =
      std::make_shared<const model::ServedAdapters>(std::move(shards), found.shape.layers, model::family(found.shape.family).names.layers);
  return found;
}

}  // namespace

bool has_new_deletions(const LanguageModel& model) {
  return !model.store.empty() && static_cast<int64_t>(unlearn::Store(model.store).deleted().size()) != model.deletions;
}

LanguageModel open_language_model(const std::string& folder, base::Log& log, const ComputeOptions& on, const std::string& domain) {
  const at::Device device = device_of(on);
  if (unlearn::is_store(folder)) {
    if (!domain.empty())
      base::fail_input("--domain {}: {} is a store of cairn unlearn, which has no domains. Leave it out.", domain, folder);
    return open_store(folder, log, device, on);
  }
  const bool ensemble = evaluate::is_ensemble(folder);
  if (!domain.empty() && !ensemble)
    base::fail_input("--domain {}: {} is one model; only an ensemble has priors for domains", domain, folder);
  LanguageModel found = ensemble ? open_ensemble(folder, domain, log) : open_one(folder, log);
  move_weights(found, device, on);
  return found;
}

LanguageModel open_sharded_model(const std::string& folder, base::Log& log, const MeshPlace& place, const ComputeOptions& on) {
  const at::Device device = device_of(on);
  LanguageModel found = open_one(folder, log, &place);
  move_weights(found, device, on);
  return found;
}

void check_mesh(const std::string& folder, const mesh::Mesh& mesh) {
  if (unlearn::is_store(folder))
    base::fail_input(
        "--mesh {}: {} is a store of cairn unlearn, whose shards answer together and are not sharded over ranks. Leave --mesh out.",
        mesh::to_string(mesh), folder);
  if (evaluate::is_ensemble(folder))
    base::fail_input("--mesh {}: {} is an ensemble, which is not sharded; leave --mesh out, or name one of its experts",
                     mesh::to_string(mesh), folder);
  parallel::generation_plan(mesh, *model::make_decoder(snapshot::read_outline(folder).shape));
}

}  // namespace cairn::cli
