#pragma once
#include <cstdint>
#include <vector>

namespace cairn::model {
class Fp8LinearLayers;
class Model;
}  // namespace cairn::model

namespace cairn::parallel {

// How a pass keeps what its gradients need.
struct ActivationSetup {
  int64_t tokens = 0;  // of a micro-batch
  double share = 1;    // of all this that one rank has, where ranks along tp and cp share tokens and widths out
  int64_t element_bytes = 4;
  bool on_gpu = false;                          // whose norms, on their way back, make once more what they came to
  const model::Fp8LinearLayers* fp8 = nullptr;  // null: nothing is in eight bits
  int64_t loss_chunks = 1;                      // so many parts of logits, of which one is there at a time
};

// Of one block and micro-batch, by its card.
struct ActivationBytes {
  double all = 0, input = 0;  // what it keeps, and the part of that without which it cannot compute the rest again
};
std::vector<ActivationBytes> activation_bytes(const model::Model& model, const ActivationSetup& setup);

// The most that blocks keep at a time, as backward goes from the last to the first: all of the one at work, and of those before it what
// they keep until then, which is their inputs alone where they are `recomputed` (by block; those that it says nothing of are not).
double peak_activation_bytes(const std::vector<ActivationBytes>& blocks, const std::vector<bool>& recomputed);

}  // namespace cairn::parallel
