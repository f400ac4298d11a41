#include "train/model_from.h"

#include <algorithm>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/check.h"
#include "base/log.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/decoder/stream_options.h"
#include "model/decoder/weight_form.h"
#include "model/families/config.h"
#include "model/families/families.h"
#include "model/formed_weights.h"
#include "model/saved_buffers.h"
#include "snapshot/adapter.h"
#include "snapshot/stream_adapter.h"
#include "train/build.h"
#include "train/parameter_piece.h"
#include "train/start_forms.h"
#include "train/state/full_state.h"
#include "train/state/tensor_checksum.h"

namespace cairn::train {
namespace {

void load_adapter(const mesh::NamedTensors& into, const snapshot::Adapter& adapter, const std::string& from) {
  const auto find = [&](const std::string& name) -> const at::Tensor* {
    for (const mesh::NamedTensor& one : adapter.tensors)
      if (one.name == name) return &one.tensor;
    return nullptr;
  };
  for (const mesh::NamedTensor& one : into) {
    const at::Tensor* found = find(one.name);
    if (!found || found->sizes() != one.tensor.sizes())
      base::fail_input("model.adapter.from = {}: {} {}: the adapter is for another model", from, one.name,
                       found ? "has another shape there" : "is missing there");
    one.tensor.copy_(*found);
  }
  if (adapter.tensors.size() != into.size())
    base::fail_input("model.adapter.from = {}: it has {} tensors, and the model needs {}: the adapter is for another model", from,
                     adapter.tensors.size(), into.size());
}

void start_masks(Job& job, const snapshot::Pretrained& pretrained) {
  snapshot::load_masks(model::mask_buffers(job.engine.buffers), pretrained.masks);
}

bool same_folder(const std::filesystem::path& a, const std::filesystem::path& b) {
  return (a / "").lexically_normal() == (b / "").lexically_normal();
}

}  // namespace

ParameterSection section_of(const Job& job, const StateTensor& tensor) {
  const auto index = static_cast<int32_t>(tensor.parameter);
  for (const model::WeightForm* form : model::weight_forms(*job.engine.model)) {
    const std::vector<mesh::ParamId> ids = form->parameters();
    for (size_t i = form->stores_dense() ? 1 : 0; i < ids.size(); ++i)
      if (index >= ids[i].first && index < ids[i].first + ids[i].count) return ParameterSection::forms;
  }
  const model::Parameter& parameter = job.engine.model->parameters()[tensor.parameter];
  const bool adapter = parameter.role == model::Parameter::Role::adapter && !model::is_stream_parameter(parameter.name);
  return adapter ? ParameterSection::adapter : ParameterSection::model;
}

std::optional<snapshot::Pretrained> open_model_from(Job& job, base::Log& log) {
  const std::string& from = job.config.settings.model.from;
  if (from.empty()) return std::nullopt;
  snapshot::Pretrained opened = snapshot::open_pretrained(from, log);
  if (job.config.settings.data.needs().retrieval) opened.shape.tied = true;  // encoders have no head: that of the directory is not read
  job.carried = opened.texts;
  // With another tokenizer, the tokenizer files of the pretrained model would be wrong in the snapshots.
  const std::filesystem::path tokenizer = job.config.settings.data.tokenizer_file;
  if (!same_folder(tokenizer, opened.path) && !same_folder(tokenizer.parent_path(), opened.path)) {
    for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
                             "merges.txt", "tokenizer.model", "chat_template.jinja"})
      job.carried.erase(name);
  }
  if (const model::AdapterOptions& adapter = job.config.settings.adapter; adapter.rank > 0)
    job.carried["training/adapter_config.json"] = snapshot::format_adapter_config(adapter.shape(), opened.shape, from);
  if (const model::SparseOptions& sparse = job.config.settings.model.sparse; sparse.any()) {
    job.masks = snapshot::masks_checksum(opened.masks);
    job.carried[snapshot::kSparseFile] = snapshot::format_sparse(sparse);
  }
  return opened;
}

namespace {

// One parameter, where not all of them fit into memory at once. Returns its checksum.
uint64_t load_alone(Job& job, const snapshot::Pretrained& pretrained, const StateTensor& one, bool fresh) {
  const at::Tensor whole = at::empty(one.shape, at::kFloat);
  fresh ? start_values(job, one.parameter, whole) : pretrained.load_into({{one.name, whole}});
  job.engine.store->load(one.parameter, whole);
  return checksum_of(whole);
}

}  // namespace

void start_from(Job& job, const snapshot::Pretrained& pretrained, comm::World& world) {
  const bool swapped = job.config.settings.layout.memory.parameters != memory::TierKind::device;
  const bool one_by_one = swapped && job.config.settings.adapter.from.empty() && job.config.settings.model.parscale.from.empty() &&
                          !pretrained.adapter && !pretrained.sparse && !pretrained.spectral;
  // Without sharding, this rank's tensors are the full tensors and are loaded directly.
  const bool direct = job.assembly->trivial() && !swapped;
  // Streams that the pretrained model does not have begin with their starting values; so does a head for other classes.
  const std::string head = model::family(pretrained.shape.family).names.head + ".";
  const bool new_head = pretrained.shape.pictures.channels > 0 && pretrained.shape.vocab != job.data.classes;
  if (new_head)
    world.log().info("{} tells {} classes apart, and the data have {}: the head is new", pretrained.path, pretrained.shape.vocab,
                     job.data.classes);
  const auto is_new = [&](const std::string& name) {
    return (pretrained.shape.streams.count == 1 && model::is_stream_parameter(name)) || (new_head && name.starts_with(head));
  };
  // An adapter may bring a head.
  const std::string& adapter_from = job.config.settings.adapter.from;
  const std::optional<snapshot::Adapter> given =
      adapter_from.empty() ? std::nullopt : std::optional(snapshot::read_adapter(adapter_from));
  const auto is_given = [&](const std::string& name) {
    return given && std::ranges::any_of(given->tensors, [&](const mesh::NamedTensor& one) { return one.name == name; });
  };
  mesh::NamedTensors whole, own, adapters;
  uint64_t sum = 0;
  for (const StateTensor& one : parameter_state(job)) {
    const ParameterSection section = section_of(job, one);
    const bool adapter = section == ParameterSection::adapter || is_given(one.name);
    const bool fresh = adapter || section != ParameterSection::model || is_new(one.name);
    if (one_by_one) {
      sum = sum * 31 + load_alone(job, pretrained, one, fresh);
      continue;
    }
    whole.push_back({one.name, direct ? one.mine : at::empty(one.shape, at::kFloat)});
    if (!direct && fresh) start_values(job, one.parameter, whole.back().tensor);
    if (adapter) adapters.push_back(whole.back());
    if (!fresh) own.push_back(whole.back());
  }
  const mesh::NamedTensors dense = dense_weights_of_forms(job);
  own.insert(own.end(), dense.begin(), dense.end());
  pretrained.load_into(own);
  start_masks(job, pretrained);
  if (const std::string& from = job.config.settings.model.parscale.from; !from.empty()) {
    mesh::NamedTensors streams;
    for (const mesh::NamedTensor& one : whole)
      if (model::is_stream_parameter(one.name)) streams.push_back(one);
    snapshot::load_stream_adapter(streams, from);
  }
  if (given) load_adapter(adapters, *given, adapter_from);
  for (const mesh::NamedTensor& one : dense) sum = sum * 31 + checksum_of(one.tensor);
  for (size_t i = 0; i < whole.size(); ++i) {
    sum = sum * 31 + checksum_of(whole[i].tensor);
    if (!direct) job.engine.store->load(i, whole[i].tensor);
  }
  start_forms(job, dense, world);
  job.engine.store->updated();
  auto mine = static_cast<int64_t>(sum);
  std::vector<int64_t> all(static_cast<size_t>(world.size()));
  world.everyone()
      .all_gather({all.data(), world.size(), comm::Dtype::i64}, {&mine, 1, comm::Dtype::i64}, {comm::Purpose::control, "model.from"})
      .wait_host();
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0])
      base::fail_input("model.from = {}: rank {} reads other weights there than rank 0: every machine needs the same directory",
                       job.config.settings.model.from, rank);
  world.log().info("started from {}: {}, {} tensors", pretrained.path, pretrained.shape.family, job.engine.model->parameters().size());
  if (const std::string dropout = model::requested_dropout(pretrained.shape); !dropout.empty())
    world.log().info("{}/config.json asks for dropout ({}): Cairn trains {}, and keeps these fields in the config.json it writes",
                     pretrained.path, dropout,
                     job.config.settings.model.dropout > 0
                         ? fmt::format("with model.dropout = {} on the residual stream alone", job.config.settings.model.dropout)
                         : "without dropout");
}

}  // namespace cairn::train
