#include "bench/gpu_inputs.h"

#include <cmath>
#include <string_view>

#include <fmt/format.h>

#include "base/disk.h"
#include "base/files.h"
#include "base/random.h"
#include "data/llmc_file.h"
#include "data/tokenizer_json.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "model/objective.h"
#include "model/options.h"
#include "snapshot/safetensors.h"

namespace cairn::study {
namespace {

std::string token_shard(int64_t count, int64_t vocab) {
  const base::Random random = base::Random(kGpuSeed).for_purpose("gpu bench tokens");
  const base::Random follows = random.for_purpose("follows");
  std::vector<int32_t> ids(static_cast<size_t>(count));
  int64_t before = 0;
  for (int64_t i = 0; i < count; ++i) {
    const auto index = static_cast<uint64_t>(i);
    const auto drawn = static_cast<int64_t>(std::pow(static_cast<double>(vocab), random.uniform(index)));  // frequency about 1 / rank
    before = i > 0 && follows.uniform(index) < 0.5 ? (7 * before + 13) % vocab : std::min(drawn, vocab - 1);
    ids[static_cast<size_t>(i)] = static_cast<int32_t>(before);
  }
  data::Tokens tokens;
  tokens.wide = ids;
  return data::llmc_bytes(tokens);
}

// Bytes, the end of a text, and pieces that no text comes to.
std::string tokenizer_of(int64_t vocab) {
  data::Bpe bpe;
  for (int byte = 0; byte < 256; ++byte) bpe.pieces.emplace_back(1, static_cast<char>(byte));
  for (int64_t id = 256; id + 1 < vocab; ++id) bpe.pieces.push_back(fmt::format("piece{}", id));
  bpe.pieces.emplace_back("<|endoftext|>");
  bpe.added.push_back({.id = static_cast<int32_t>(vocab - 1), .text = "<|endoftext|>"});
  return data::write_tokenizer_json(bpe);
}

void write_weights(const GpuCase& one, const std::string& path) {
  model::ModelOptions options;
  options.layers = one.layers;
  options.embed = one.embed;
  options.heads = one.heads;
  options.kv_heads = one.kv_heads;
  options.head_dim = one.head_dim;
  options.mlp = one.mlp;
  options.tied = one.tied;
  const model::Task task = model::make_task(options, {.vocab = one.vocab, .length = one.length});
  mesh::NamedTensors tensors;
  for (const model::Parameter& parameter : task.model->parameters()) {
    const at::Tensor values = at::empty(parameter.shape, at::kBFloat16);
    model::start_values(parameter, values.view({-1}), base::Random(kGpuSeed));
    tensors.push_back({parameter.name, values});
  }
  snapshot::write_safetensors(path, tensors, base::real_disk());
}

}  // namespace

GpuInputs write_gpu_inputs(const GpuCase& one, int64_t steps, const std::string& folder) {
  GpuInputs files{.tokens = folder + "/tokens.bin", .tokenizer = folder + "/tokenizer.json", .weights = {}};
  base::write_atomically(files.tokens, token_shard(steps * one.tokens() + 1, one.vocab));
  base::write_atomically(files.tokenizer, tokenizer_of(one.vocab));
  if (!one.same_weights) return files;
  files.weights = folder + "/weights.safetensors";
  write_weights(one, files.weights);
  return files;
}

}  // namespace cairn::study
