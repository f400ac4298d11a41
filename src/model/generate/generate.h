#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/random.h"
#include "model/call.h"
#include "model/generate/sampling.h"

namespace cairn::model {

class Model;

struct GenerateOptions {
  int64_t tokens = 100;    // most to add to each prompt
  int64_t length_max = 0;  // of prompt and answer together: what the model was built for
  SamplingOptions sampling = {};
  std::vector<int32_t> stops = {};  // each ends the text when drawn; it is not returned
  bool batched = false;             // texts that stand at one position are read together on a CPU too, as always on a GPU
};

// One text to write. Its token i depends on the model, the prompt and `random` alone, whatever is written beside it (on a GPU: but for
// roundings, which may depend on how many texts there are).
struct GenerateRequest {
  std::vector<int32_t> prompt;  // not empty, shorter than length_max
  base::Random random = {};
};

enum class FinishReason { tokens, stop_token, stop_text, context };
// "tokens" (as many as were asked for), "end_of_text" (a stop token), "stop" (the caller said so), "context" (the model reads no more).
std::string name(FinishReason finish_reason);

struct GeneratedText {
  std::vector<int32_t> ids = {};              // without the prompt
  std::vector<float> log_probabilities = {};  // of each, under the model's own distribution: before penalties, temperature and cuts
  FinishReason finish_reason = FinishReason::tokens;
};

// Hears of each token as it is written; false ends that text there (Ended::stop_text, that token included).
using OnToken = std::function<bool(int64_t request, int32_t id)>;

// Continues all prompts together, token by token, with a cache of keys and values that grows as they do. Prompts may differ in length;
// one that several requests share is read once.
std::vector<GeneratedText> generate(const Model& model, const Weights& weights, Buffers& buffers, std::span<const GenerateRequest> requests,
                                    const GenerateOptions& options, const OnToken& on_token = {});

}  // namespace cairn::model
