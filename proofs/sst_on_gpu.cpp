// Spectral training of a decoder of 125M parameters on one GPU: what memory and steps cost beside ordinary training.
#include <cmath>

#include <fmt/format.h>

#include "base/log.h"
#include "proofs/gpu_runs.h"
#include "study/claims.h"

namespace cairn::study {

void prove_sst_on_gpu(const ProofOptions& options, Findings& findings, base::Log& log) {
  const auto train = [&](const std::string& name, const GpuDecoder& shape, int64_t steps, const Assignments& more) {
    Assignments sets = gpu_decoder(options, shape);
    sets.insert(sets.end(), more.begin(), more.end());
    return must_train_on_gpu(options, log, name, {.sets = sets, .steps = steps, .limit_s = 200});
  };
  const GpuDecoder large{
      .embed = 768, .layers = 12, .heads = 12, .kv_heads = 12, .mlp = 3072, .batch = 16, .length = 1024, .wide_state = true};
  GpuDecoder little = large;  // whose activations hardly count
  little.batch = 1, little.length = 128;
  const Assignments spectral{"model.spectral.rank=64", "model.spectral.iteration_steps=40", "model.spectral.warmup_steps=8"};
  const GpuTrained dense_state = train("dense-little", little, 12, {}), factors_state = train("spectral-little", little, 12, spectral);
  findings.at_most("H200: bytes on the GPU of 64 pairs, of ordinary training with AdamW, 125M parameters", 1,
                   static_cast<double>(factors_state.tensor_bytes_most) / static_cast<double>(dense_state.tensor_bytes_most), 0.65);
  const GpuTrained dense = train("dense", large, 60, {}), factors = train("spectral", large, 60, spectral);
  findings.at_most("H200: time of a step of 16k tokens, of ordinary training", 1, factors.step_s() / dense.step_s(), 1.6);
  log.info("losses after 60 steps: {:.3f} ordinary, {:.3f} spectral", dense.losses.back(), factors.losses.back());
  findings.skip("H200: loss between LoRA and full training after 300M tokens", "takes half an hour");
}

}  // namespace cairn::study
