// `cairn snapshot`: models as directories that other programs open. (Looking into them: inspect_command.cpp.)
#include <fmt/format.h>

#include "base/check.h"
#include "base/files.h"
#include "base/log.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/arguments.h"
#include "cli/commands.h"
#include "data/tokenizer/llama2c_tokenizer.h"
#include "data/tokenizer/tokenizer_json.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "snapshot/adapter.h"
#include "snapshot/llama2c.h"
#include "snapshot/merge_models.h"
#include "snapshot/pretrained.h"
#include "snapshot/stream_adapter.h"
#include "train/replay_log.h"

namespace cairn::cli {
namespace {

constexpr int64_t kTokenizerBytesMax = 200'000'000;

snapshot::ExportOptions options_of(const SnapshotArguments& a) {
  return {.dtype = a.dtype == "bf16" ? at::kBFloat16 : a.dtype == "fp16" ? at::kHalf : at::kFloat, .shard_bytes = a.shard_bytes};
}

void say_done(const SnapshotArguments& a, const model::DecoderShape& shape, const mesh::NamedTensors& parameters) {
  int64_t elements = 0;
  for (const mesh::NamedTensor& one : parameters) elements += one.tensor.numel();
  base::Terminal().line(fmt::format("{}: {}, {} parameters in {} tensors, {}", a.out, shape.family,
                                    base::human_count(static_cast<double>(elements)), parameters.size(), a.dtype));
}

void export_model(const SnapshotArguments& a) {
  base::Log log({.level = base::Level::warn, .terminal = std::make_shared<base::Terminal>(), .file = {}});
  const snapshot::Pretrained opened = snapshot::open_pretrained(a.source, log);
  if (a.only_adapter && !opened.adapter && opened.shape.streams.count > 1) {
    const auto decoder = model::make_decoder(opened.shape);
    const model::FlatWeights whole(decoder->layout(), at::empty({decoder->elements()}));
    const mesh::NamedTensors all = whole.layout().views(whole.flat());
    opened.load_into(all);
    return say_done(a, opened.shape, snapshot::write_stream_adapter(a.out, all, base::real_disk()));
  }
  if (a.only_adapter) {
    if (!opened.adapter) base::fail_input("{}: it has no adapter: train one with model.lora.rank or model.parscale.streams", a.source);
    snapshot::write_adapter(a.out, snapshot::with_head(*opened.adapter, opened), opened.shape, a.source, base::real_disk());
    return say_done(a, opened.shape, opened.adapter->tensors);
  }
  const model::FlatWeights weights = [&] {
    const auto decoder = model::make_decoder(opened.shape);
    return model::FlatWeights(decoder->layout(), at::empty({decoder->elements()}));
  }();
  const mesh::NamedTensors parameters = weights.layout().views(weights.flat());
  opened.load_into(parameters);
  if (!a.adapter.empty())
    snapshot::merge_adapter(parameters, snapshot::read_adapter(a.adapter), opened.shape,
                            a.undo ? snapshot::AdapterMerge::undo : snapshot::AdapterMerge::add);
  snapshot::write_pretrained(a.out, opened.shape, parameters, opened.texts, options_of(a), base::real_disk());
  say_done(a, opened.shape, parameters);
}

void average_models(const SnapshotArguments& a) {
  base::Log log({.level = base::Level::warn, .terminal = std::make_shared<base::Terminal>(), .file = {}});
  if (a.models.size() < 2)
    base::fail_input("snapshot merge {}: one model has nothing to be merged with; give several, or --adapter DIR", a.models.front());
  if (a.undo) base::fail_input("--undo: subtracts an adapter; add --adapter DIR");
  const snapshot::MergedModel merged = snapshot::merge_folders(a.models, a.weights, a.out, options_of(a), base::real_disk(), log);
  say_done(a, merged.shape, merged.parameters);
}

void merge_models_or_adapter(SnapshotArguments a) {
  if (a.adapter.empty()) return average_models(a);
  if (a.models.size() > 1) base::fail_input("--adapter {}: is added to one model, and {} are given", a.adapter, a.models.size());
  if (!a.weights.empty()) base::fail_input("--weights: are for several models; leave them out with --adapter");
  a.source = a.models.front();
  export_model(a);
}

// The text of a tokenizer.json, or of what llama2.c has instead (tok512.bin).
std::string tokenizer_json(const std::string& path) {
  const std::string bytes = base::read_file(path, kTokenizerBytesMax);
  return path.ends_with(".bin") ? data::write_tokenizer_json(data::read_llama2c_tokenizer(bytes, path)) : bytes;
}

void convert_llama2c(const SnapshotArguments& a) {
  const snapshot::Llama2c model = snapshot::read_llama2c(a.source);
  std::map<std::string, std::string> texts;
  if (!a.tokenizer.empty()) texts["tokenizer.json"] = tokenizer_json(a.tokenizer);
  snapshot::write_pretrained(a.out, model.shape, model.parameters, std::move(texts), options_of(a), base::real_disk());
  say_done(a, model.shape, model.parameters);
}

void replay_rounds(const SnapshotArguments& a) {
  base::Log log({.level = base::Level::warn, .terminal = std::make_shared<base::Terminal>(), .file = {}});
  const train::ReplayedLog replayed = train::replay_log(a.source, a.log, log);
  snapshot::write_pretrained(a.out, replayed.base.shape, replayed.parameters, replayed.base.texts, options_of(a), base::real_disk());
  if (replayed.last_round == replayed.first_round)
    base::Terminal().line(fmt::format("{} has all {} rounds of the log: nothing to apply", a.source, replayed.last_round));
  else
    base::Terminal().line(
        fmt::format("rounds {} to {}: {} recorded hashes met", replayed.first_round + 1, replayed.last_round, replayed.hashes));
  say_done(a, replayed.base.shape, replayed.parameters);
}

}  // namespace

int snapshot_command(const SnapshotArguments& a) {
  if (a.action == "inspect") return inspect_snapshot(a);
  if (a.action == "verify") return verify_snapshot(a);
  if (a.action == "diff") return diff_snapshots(a);
  if (a.action == "reshape") return reshape_snapshot(a);
  if (a.action == "replay") return replay_rounds(a), 0;
  if (a.action == "merge")
    merge_models_or_adapter(a);
  else
    a.action == "convert" ? convert_llama2c(a) : export_model(a);
  return 0;
}

}  // namespace cairn::cli
