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

class DecodeRunner;
class Model;

struct GenerateOptions {
  int64_t tokens = 100;    // new tokens per prompt, at most
  int64_t length_max = 0;  // of prompt and answer together: the model's length
  int64_t vocab = 0;       // ids from here on are never sampled: the tokenizer has none beyond; 0: all that the model has
  SamplingOptions sampling = {};
  std::vector<int32_t> stops = {};  // stop tokens: each ends the text and is not returned
  bool batched = false;             // sequences at the same position go through one call on a CPU too, as on a GPU
};

// One sequence to generate. Its tokens depend on the model, the prompt and `random` alone, not on the other requests (on a GPU except for
// rounding, which may depend on the batch size).
struct GenerateRequest {
  std::vector<int32_t> prompt;  // not empty, shorter than length_max
  base::Random random = {};
  int32_t adapter = -1;  // of those that the model serves (decoder/served_adapters.h); -1: none
};

enum class FinishReason { tokens, stop_token, stop_text, context };
// "tokens" (the limit was reached), "end_of_text" (a stop token), "stop" (the caller ended it), "context" (length_max was reached).
std::string name(FinishReason finish_reason);

struct GeneratedText {
  std::vector<int32_t> ids = {};              // without the prompt
  std::vector<float> log_probabilities = {};  // of each token, under the model's distribution before penalties, temperature and cuts
  FinishReason finish_reason = FinishReason::tokens;
};

// Called with each token as it is sampled. False ends the sequence after it (FinishReason::stop_text).
using OnToken = std::function<bool(int64_t request, int32_t id)>;

// Generates all requests together, token by token, with a KV cache. Prompts may differ in length. Consecutive requests with the same prompt
// prefill it once. Waits for the device; one thread.
std::vector<GeneratedText> generate(const Model& model, const Weights& weights, Buffers& buffers, std::span<const GenerateRequest> requests,
                                    const GenerateOptions& options, const OnToken& on_token = {});

// The same on any runner that has a row for each request and room for length_max positions (parallel/generate/sharded_generator.h: a model
// that is sharded over ranks).
std::vector<GeneratedText> generate(DecodeRunner& runner, std::span<const GenerateRequest> requests, const GenerateOptions& options,
                                    const OnToken& on_token = {});

}  // namespace cairn::model
