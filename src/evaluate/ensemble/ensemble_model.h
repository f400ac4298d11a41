#pragma once
#include <memory>
#include <vector>

#include "evaluate/ensemble/posterior.h"
#include "model/decoder/shape.h"
#include "model/model.h"

namespace cairn::evaluate {

// Several decoders with one vocabulary as one model, combined in what they say: log p(.) = logsumexp_j(log q_j + log p_j(.)), where q
// (posterior.h) follows from how well each expert foresaw the sequence so far. So whatever scores, generates or judges with a model does so
// with an ensemble. Parameters are those of all experts, one expert after the other, under "expert.0.", "expert.1.", ...; the "logits" are
// logs of probabilities that sum to 1. What a sequence needs to remember lies in the cache, beside the experts' keys and values.
//
// With top_k, a token is read by the experts that count; the others catch up at the next refresh. Not to be trained.
std::unique_ptr<model::Model> make_ensemble(const std::vector<model::DecoderShape>& experts, MixtureOptions options);

}  // namespace cairn::evaluate
