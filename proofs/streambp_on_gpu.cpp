// StreamBP on one GPU: how long a sequence can be in 40 GiB, against activation recomputation with whole logits and with chunked ones.
#include <algorithm>

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "kernels/aten.h"
#include "proofs/gpu_runs.h"
#include "study/claims.h"
#include "study/synthetic_tokens.h"

namespace cairn::study {
namespace {

constexpr int64_t kRoom = int64_t{40} << 30;  // that runs find free
constexpr int64_t kVocab = 151936, kStep = 1024, kLongest = 512 * 1024;

// A decoder of the size of Qwen 1.5B, one sequence a step; weights and gradients in bf16, without moments.
GpuTraining decoder(const ProofOptions& options, const SyntheticTokens& tokens, int64_t length, const Assignments& way) {
  Assignments sets = gpu_decoder(
      options, {.embed = 1536, .layers = 28, .heads = 12, .kv_heads = 2, .mlp = 8960, .batch = 1, .length = length, .wide_state = true});
  for (const char* set : {"train.parameters=bf16", "train.gradients=bf16", "optim.kind=sgd", "model.tied=true"}) sets.emplace_back(set);
  sets.push_back(fmt::format("data.tokenizer_file=\"{}\"", tokens.tokenizer));
  sets.insert(sets.end(), way.begin(), way.end());
  return {.sets = std::move(sets), .steps = 2, .arguments = {"--data", tokens.tokens}, .limit_s = 300};
}

struct Ways {
  Assignments recomputation{"recompute.mode=full", "train.loss_chunks=1"};
  Assignments chunked{"recompute.mode=full", "train.loss_chunks=64"};
  Assignments stream{"recompute.mode=stream", "recompute.slice=2048", "recompute.head_slice=512"};
};

// The longest sequence, in steps of 1,024 tokens, with which two steps do not run out of memory.
int64_t longest(const ProofOptions& options, base::Log& log, const SyntheticTokens& tokens, const std::string& name,
                const Assignments& way) {
  const auto fits = [&](int64_t steps) {
    const GpuTrained trained = train_on_gpu(options, log, fmt::format("{}-{}", name, steps), decoder(options, tokens, steps * kStep, way));
    if (!trained.fault.empty() && !trained.lacked_memory()) base::fail_input("{} of {} tokens: {}", name, steps * kStep, trained.fault);
    return trained.fault.empty();
  };
  int64_t most = 0, too_many = 4;
  while (too_many * kStep <= kLongest && fits(too_many)) most = too_many, too_many *= 2;
  while (too_many - most > std::max<int64_t>(1, most / 16)) {
    const int64_t middle = (most + too_many) / 2;
    (fits(middle) ? most : too_many) = middle;
  }
  return most * kStep;
}

}  // namespace

void prove_streambp_on_gpu(const ProofOptions& options, Findings& findings, base::Log& log) {
  const auto [free, total] = c10::getDeviceAllocator(at::kCUDA)->getMemoryInfo(0);
  if (static_cast<int64_t>(free) < kRoom) {
    findings.skip("5. length that can be trained in slices and with recomputation", "needs 40 GiB of free memory on the GPU");
    return;
  }
  const at::Tensor filled = at::empty({static_cast<int64_t>(free) - kRoom}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA));
  const SyntheticTokens tokens = write_synthetic_tokens(16 * kLongest, kVocab, options.scratch);
  const Ways ways;
  const int64_t plain = longest(options, log, tokens, "recomputation", ways.recomputation),
                chunked = longest(options, log, tokens, "chunked", ways.chunked),
                sliced = longest(options, log, tokens, "stream", ways.stream);
  const auto ratio = [](int64_t a, int64_t b) { return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b); };
  findings.at_least(fmt::format("5. 1.5B, 40 GiB: longest sequence in slices ({}) / recomputation with whole logits ({})", sliced, plain),
                    1, ratio(sliced, plain), 2.8);
  findings.at_least(fmt::format("5. the same against chunked cross entropy ({})", chunked), 1, ratio(sliced, chunked), 1.4);
  const auto step_s = [&](const std::string& name, const Assignments& way) {
    GpuTraining training = decoder(options, tokens, plain, way);
    training.steps = 12;
    return must_train_on_gpu(options, log, name, training).step_s();
  };
  const double whole_s = step_s("recomputation-time", ways.recomputation), sliced_s = step_s("stream-time", ways.stream);
  findings.at_most(fmt::format("5. time of a token at {} tokens, in slices / recomputation", plain), 1, sliced_s / whole_s, 1.05);
}

}  // namespace cairn::study
