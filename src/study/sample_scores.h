// Scores of samples under a trained model: losses, errors, entropies, gradients and hidden states, from passes of the trainer's own engine.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/sample_gradients.h"

namespace cairn::train {
struct Job;
}

namespace cairn::study {

struct ScoreOptions {
  bool gradients = false;        // vectors and norms: a forward and backward pass
  std::string layer = "middle";  // whose trained parameters: "middle", "last", "all", or its number from 0
  mesh::SampleProjection projection = {};
  std::vector<int64_t> zeroed = {};  // columns of the features that are set to 0 (an image left out)
  bool probabilities = false;        // of every class (classifiers)
};

// By sample, in the order that was asked for. Means run over the targets of a sample.
struct SampleScores {
  std::vector<double> loss = {};     // mean cross entropy: the logarithm of the perplexity
  std::vector<double> el2n = {};     // mean length of softmax - onehot
  std::vector<double> entropy = {};  // mean entropy of the prediction, in nats
  std::vector<double> correct = {};  // share of targets that are the likeliest prediction
  std::vector<double> targets = {};  // their number
  std::vector<double> grand = {};    // norm of the gradient of the mean loss; with gradients
  at::Tensor vectors = {};           // fp32 [samples, dim]: projected gradients of unit length; with gradients
  at::Tensor hidden = {};            // fp32 [samples, width]: mean input of that layer; with gradients
  at::Tensor probabilities = {};     // fp64 [samples, classes]: logarithms; with probabilities
  int64_t not_finite = 0;            // gradients with entries that are not finite, which were replaced by 0
};

// Collective: ranks with different samples of a batch share `ids` out, and all return the same. Pipelines and context parallelism are
// refused. `job` keeps its parameters.
SampleScores score_samples(train::Job& job, std::span<const int64_t> ids, const ScoreOptions& options = {});

// Estimates of the projected gradients of the layer from losses alone: the mean, over random directions z, of
// (loss(w + size z) - loss(w - size z)) / (2 size) z. Unit length. For layouts in which every rank has all parameters. Collective.
struct ZeroOrder {
  int64_t directions = 64;
  double size = 1e-3;
  uint64_t seed = 0;
};
at::Tensor zero_order_vectors(train::Job& job, std::span<const int64_t> ids, const ScoreOptions& options, const ZeroOrder& how);

// The parameters that `layer` names, by index. Refuses a layer without trained linear layers.
std::vector<bool> parameters_of_layer(const train::Job& job, const std::string& layer);

}  // namespace cairn::study
