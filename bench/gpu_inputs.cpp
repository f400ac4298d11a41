#include "bench/gpu_inputs.h"

#include "base/files/disk.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "model/model.h"
#include "model/objective.h"
#include "model/options.h"
#include "snapshot/safetensors.h"
#include "study/synthetic_tokens.h"

namespace cairn::study {
namespace {

void write_weights(const GpuCase& one, const std::string& path) {
  model::ModelOptions options;
  options.layers = one.layers;
  options.embed = one.embed;
  options.heads = one.heads;
  options.kv_heads = one.kv_heads;
  options.head_dim = one.head_dim;
  options.mlp = one.mlp;
  options.tied = one.tied;
  const model::BuiltModel task = model::build_model(options, {.vocab = one.vocab, .length = one.length});
  mesh::NamedTensors tensors;
  for (const model::Parameter& parameter : task.model->parameters()) {
    const at::Tensor values = at::empty(parameter.shape, at::kBFloat16);
    model::initialize_parameter(parameter, values.view({-1}), base::Random(kGpuSeed));
    tensors.push_back({parameter.name, values});
  }
  snapshot::write_safetensors(path, tensors, base::real_disk());
}

}  // namespace

GpuInputs write_gpu_inputs(const GpuCase& one, int64_t steps, const std::string& folder) {
  const SyntheticTokens drawn = write_synthetic_tokens(steps * one.tokens() + 1, one.vocab, folder);
  GpuInputs files{.tokens = drawn.tokens, .tokenizer = drawn.tokenizer, .weights = {}};
  if (!one.same_weights) return files;
  files.weights = folder + "/weights.safetensors";
  write_weights(one, files.weights);
  return files;
}

}  // namespace cairn::study
