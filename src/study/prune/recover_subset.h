// What prune.recover.train means for a model: which parameters are trained, and which forms its weights have.
#pragma once
#include <string>
#include <vector>

#include "model/decoder/adapter_shape.h"
#include "model/decoder/shape.h"
#include "model/decoder/sparse_options.h"
#include "study/prune/prune_options.h"

namespace cairn::model {
class Model;
}

namespace cairn::study {

// The shape of the pruned model: prune.recover.add_bias gives its layers biases. Refuses families whose other readers know none.
model::DecoderShape pruned_shape(const RecoverOptions& options, model::DecoderShape shape);

// The weights that are pruned: those of all linear layers in the blocks, in running order. Refuses a model in which a pattern does not fit.
std::vector<std::string> pruned_weights(const model::Model& plain, const PrunePattern& pattern);

// The forms of these weights, and the LoRA adapters beside them (rank 0: none). `with_head`: the head may have one.
model::SparseOptions sparse_options(const RecoverOptions& options, std::vector<std::string> weights);
model::AdapterShape adapter_shape(const RecoverOptions& options, const std::vector<std::string>& weights, const model::DecoderShape& shape,
                                  bool with_head);

// The trained parameters of a model with these forms and adapters. Refuses a subset that the model does not have.
std::vector<std::string> trained_parameters(const model::Model& model, const RecoverOptions& options, const model::DecoderShape& shape,
                                            bool with_head);

// What a retraining of a pruned model trains.
struct RetrainedParts {
  model::SparseOptions sparse;
  model::AdapterShape adapter;
  std::vector<std::string> trained = {};
  int64_t trained_elements = 0;
};
RetrainedParts retrained_parts(const RecoverOptions& options, const model::DecoderShape& shape, const std::vector<std::string>& weights);

// Refuses a model that cannot be pruned and recovered as the options say, before anything is computed.
void check_prunable(const PruneOptions& options, const model::DecoderShape& dense);

}  // namespace cairn::study
