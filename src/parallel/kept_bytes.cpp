#include "parallel/kept_bytes.h"

#include <algorithm>

#include "model/fp8_products.h"
#include "model/model.h"

namespace cairn::parallel {
namespace {

constexpr double kCode = 1;  // byte

// Bytes of an operation for each token.
double kept_of(const model::Operation& operation, const model::Model& model, const Keeping& keeping) {
  const bool product = operation.kind == model::Operation::Kind::product && !operation.parameters.empty();
  const bool coded = keeping.fp8 && product && keeping.fp8->of(operation.parameters.front());
  const bool logits = operation.name == "logits";
  double elements = operation.saved_elements_per_token;
  if (keeping.makes_again || keeping.fp8) elements -= operation.made_again_per_token;
  double bytes = elements * static_cast<double>(keeping.element_bytes) / static_cast<double>(logits ? keeping.loss_chunks : 1);
  if (coded) {
    const std::vector<int64_t>& shape = model.parameters()[static_cast<size_t>(operation.parameters.front().first)].shape;
    bytes += kCode * static_cast<double>(shape[operation.by_input ? 0 : 1]);  // what it multiplied, by columns
    if (logits) bytes += 2 * kCode * elements;                                // of their gradient, by rows and by columns
  }
  return bytes;
}

}  // namespace

std::vector<KeptBytes> kept_bytes(const model::Model& model, const Keeping& keeping) {
  std::vector<KeptBytes> all;
  const auto tokens = static_cast<double>(keeping.tokens);
  for (const auto& block : model.blocks()) {
    KeptBytes one;
    for (const model::Operation& operation : block->card().operations) one.all += tokens * kept_of(operation, model, keeping);
    if (!block->card().operations.empty()) {
      // The first operation keeps its input and what it makes of it, where that is not made again.
      const model::Operation& first = block->card().operations.front();
      one.input = tokens * first.saved_elements_per_token / 2 * static_cast<double>(keeping.element_bytes);
    }
    all.push_back(one);
  }
  return all;
}

double kept_at_most(const std::vector<KeptBytes>& blocks, const std::vector<bool>& recomputed) {
  double kept = 0, inside = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const bool again = i < recomputed.size() && recomputed[i];
    kept += again ? blocks[i].input : blocks[i].all;
    if (again) inside = std::max(inside, blocks[i].all - blocks[i].input);
  }
  return kept + inside;
}

}  // namespace cairn::parallel
