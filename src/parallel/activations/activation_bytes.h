#pragma once
#include <cstdint>
#include <vector>

namespace cairn::model {
class Fp8LinearLayers;
class Model;
}  // namespace cairn::model

namespace cairn::parallel {

// What decides how many bytes of activations a pass keeps for backward.
struct ActivationSetup {
  int64_t tokens = 0;  // of a micro-batch
  double share = 1;    // fraction of tokens and widths that one rank has, along tp and cp
  int64_t element_bytes = 4;
  bool on_gpu = false;                          // GPU norms recompute their result in backward
  const model::Fp8LinearLayers* fp8 = nullptr;  // null: no fp8 linear layers
  int64_t loss_chunks = 1;                      // chunked cross entropy: logits of one chunk exist at a time
  int64_t slices = 0;                           // layers are computed in so many slices (StreamBP); 0: over whole sequences
};

// Bytes that one block keeps for one micro-batch, from its card.
struct ActivationBytes {
  double all = 0;    // everything that backward needs
  double input = 0;  // its inputs alone: what a recomputed block keeps
};
std::vector<ActivationBytes> activation_bytes(const model::Model& model, const ActivationSetup& setup);

// The peak over backward, which goes from the last block to the first: everything of the block at work, and what the blocks before it keep
// until then. `recomputed`: by block; blocks beyond its end are not recomputed.
double peak_activation_bytes(const std::vector<ActivationBytes>& blocks, const std::vector<bool>& recomputed);

}  // namespace cairn::parallel
