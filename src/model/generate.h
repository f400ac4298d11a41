#pragma once
#include <cstdint>
#include <functional>
#include <vector>

#include "base/random.h"
#include "model/call.h"

namespace cairn::model {

class Model;

struct GenerateOptions {
  int64_t tokens = 100;      // most to add
  int64_t length_max = 0;    // of prompt and answer together: what the model was built for
  double temperature = 0.8;  // 0: always the likeliest
  int64_t top_k = 40;        // 0: all
  int32_t stop = -1;         // ends the text when drawn; it is not returned
  base::Random random = {};
};

struct Generated {
  std::vector<int32_t> ids;              // without the prompt
  std::vector<float> log_probabilities;  // of each, under the model's own distribution
};

// Continues a prompt token by token with a cache of keys and values. The prompt must not be empty. Token i depends on the model, the
// prompt and `random` alone.
Generated generate(const Model& model, const Weights& weights, Buffers& buffers, const std::vector<int32_t>& prompt,
                   const GenerateOptions& options);

}  // namespace cairn::model
