// MoS on one GPU: a batch of a 1.3B decoder in which each text has an adapter of its own.
#include <fmt/format.h>

#include "base/log.h"
#include "proofs/mos_serving.h"
#include "study/claims.h"

namespace cairn::study {

void prove_mos_on_gpu(const ProofOptions& options, Findings& findings, base::Log& log) {
  model::AdapterShape adapter{.rank = 32,
                              .alpha = 64,
                              .targets = {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
                              .kind = model::AdapterKind::mos};
  adapter.equivalent_rank = 8, adapter.private_rank = 2, adapter.shards = 4;
  const ServingRates found = serving_rates(
      {.shape = {.vocab = 32000, .embed = 2048, .layers = 24, .heads = 16, .kv_heads = 16, .head_dim = 128, .mlp = 5504, .length = 512},
       .adapter = adapter,
       .device = c10::DeviceType::CUDA,
       .dtype = c10::ScalarType::BFloat16,
       .seed = options.seed});
  log.info("a batch of 16 texts: {:.0f} tokens/s with one adapter, {:.0f} with 16", found.one, found.several);
  findings.at_least("5. tokens/s of a batch of 16 texts with 16 adapters, of those with one adapter", found.one, found.several / found.one,
                    0.5);
}

}  // namespace cairn::study
