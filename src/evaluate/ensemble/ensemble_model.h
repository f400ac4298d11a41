#pragma once
#include <memory>
#include <vector>

#include "evaluate/ensemble/posterior.h"
#include "model/decoder/shape.h"
#include "model/model.h"

namespace cairn::model {
class ServedAdapters;
}

namespace cairn::evaluate {

// A mixture of decoders with one vocabulary, as one model:
//
//   log p(x) = logsumexp_j(log q_j + log p_j(x))
//
// where q (posterior.h) is the posterior over experts given the sequence so far. Everything that scores or generates with a model works
// with an ensemble. Parameters are those of all experts, one expert after the other, named "expert.0.", "expert.1.", ...; the "logits" are
// normalised log probabilities. The state of a sequence lies in the KV cache, beside the experts' keys and values.
//
// With top_k, only the selected experts read a token; the others catch up at the next refresh. Cannot be trained.
std::unique_ptr<model::Model> make_ensemble(const std::vector<model::DecoderShape>& experts, MixtureOptions options);

// The same of one decoder with several adapters: each is an expert, and all share the decoder's parameters, which have their own names.
std::unique_ptr<model::Model> make_adapter_ensemble(const model::DecoderShape& shape, std::shared_ptr<const model::ServedAdapters> adapters,
                                                    MixtureOptions options);

}  // namespace cairn::evaluate
