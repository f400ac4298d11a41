#include "parallel/activations/activation_bytes.h"

#include <algorithm>

#include "model/decoder/fp8_linear.h"
#include "model/formed_weights.h"
#include "model/model.h"

namespace cairn::parallel {
namespace {

bool uses_fp8(const model::BlockOp& operation, const ActivationSetup& setup) {
  return setup.fp8 && operation.kind == model::BlockOp::Kind::product && !operation.parameters.empty() &&
         setup.fp8->of(operation.parameters.front());
}

// Bytes that a block keeps per token.
double kept_of(const model::Block& block, const model::Model& model, const ActivationSetup& setup) {
  bool fp8 = false, chunked = false;
  for (const model::BlockOp& one : block.card().operations) {
    fp8 = fp8 || uses_fp8(one, setup);
    chunked = chunked || (one.name == "logits" && setup.loss_chunks > 1);
  }
  double elements = 0, codes = 0;
  for (const model::BlockOp& one : block.card().operations) {
    double own = one.saved_elements_per_token;
    if (!chunked && (fp8 || (setup.on_gpu && one.recomputed_on_gpu))) own -= one.result_elements_per_token;
    if (one.name == "logits") own /= static_cast<double>(setup.loss_chunks);
    elements += own;
    if (one.name == "logits" && chunked)
      elements += static_cast<double>(model::input_width(one, model));  // the gradient of the head's input
    if (!uses_fp8(one, setup)) continue;
    codes += static_cast<double>(model::input_width(one, model)) /
             (chunked ? static_cast<double>(setup.loss_chunks) : 1);  // its input, quantized by columns
    if (one.name == "logits") codes += 2 * own;                       // of the gradient of the logits, by rows and by columns
  }
  return elements * static_cast<double>(setup.element_bytes) + codes;
}

// With chunked cross entropy the head keeps the fp8 codes of its weight, by rows and by columns, from the first chunk to the last.
double codes_of_head(const model::Block& block, const model::Model& model, const ActivationSetup& setup) {
  double bytes = 0;
  for (const model::BlockOp& one : block.card().operations)
    if (one.name == "logits" && setup.loss_chunks > 1 && uses_fp8(one, setup))
      bytes += 2 * static_cast<double>(model.parameters()[static_cast<size_t>(one.parameters.front().first)].elements());
  return bytes;
}

// Elements per token that the slices of an attention share: queries, keys and values, and twice the gradients of keys and values (their
// sums, and the part of one slice).
double shared_by_slices(const model::Card& card) {
  for (const model::BlockOp& one : card.operations) {
    if (one.kind != model::BlockOp::Kind::attention) continue;
    const double heads = static_cast<double>(one.heads), queries = one.saved_elements_per_token - heads;
    return queries + 6 * queries / heads * static_cast<double>(one.key_heads);
  }
  return 0;
}

}  // namespace

std::vector<ActivationBytes> activation_bytes(const model::Model& model, const ActivationSetup& setup) {
  std::vector<ActivationBytes> all;
  const double tokens = static_cast<double>(setup.tokens) * setup.share;
  for (const auto& block : model.blocks()) {
    ActivationBytes one{.all = tokens * kept_of(*block, model, setup) + codes_of_head(*block, model, setup)};
    if (!block->card().operations.empty()) {
      // A norm saves its input and its result, of which half is the input.
      const model::BlockOp& first = block->card().operations.front();
      const double read = first.kind == model::BlockOp::Kind::product ? static_cast<double>(model::input_width(first, model))
                                                                      : first.saved_elements_per_token / 2;
      one.input = tokens * read * static_cast<double>(setup.element_bytes);
    }
    if (setup.slices > 0 && block->card().sliceable) {  // a slice, and what all slices of a layer share; one input for each layer
      const double shared = tokens * shared_by_slices(block->card()) * static_cast<double>(setup.element_bytes);
      one.all /= static_cast<double>(setup.slices);
      if (shared > 0)
        one.all += shared;
      else if (!all.empty())
        one.all += all.back().all, one.input = 0;
    }
    all.push_back(one);
  }
  return all;
}

double peak_activation_bytes(const std::vector<ActivationBytes>& blocks, const std::vector<bool>& recomputed) {
  double before = 0, most = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    most = std::max(most, before + blocks[i].all);
    before += i < recomputed.size() && recomputed[i] ? blocks[i].input : blocks[i].all;
  }
  return most;
}

}  // namespace cairn::parallel
