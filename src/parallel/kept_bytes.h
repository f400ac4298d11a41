#pragma once
#include <cstdint>
#include <vector>

namespace cairn::model {
class Fp8Products;
class Model;
}  // namespace cairn::model

namespace cairn::parallel {

// How a pass keeps what its gradients need.
struct Keeping {
  int64_t tokens = 0;  // of a micro-batch
  int64_t element_bytes = 4;
  bool makes_again = false;                 // a GPU's norms, on their way back, make once more what they came to
  const model::Fp8Products* fp8 = nullptr;  // null: nothing is in eight bits
  int64_t loss_chunks = 1;                  // so many parts of logits, of which one is there at a time
};

// Of one block and micro-batch, by its card.
struct KeptBytes {
  double all = 0, input = 0;  // what it keeps, and the part of that without which it cannot compute the rest again
};
std::vector<KeptBytes> kept_bytes(const model::Model& model, const Keeping& keeping);

// The most that blocks keep at a time: of some their inputs alone, and the inside of the largest of those while it is computed again.
// `recomputed`: by block; those that it says nothing of are not.
double kept_at_most(const std::vector<KeptBytes>& blocks, const std::vector<bool>& recomputed);

}  // namespace cairn::parallel
