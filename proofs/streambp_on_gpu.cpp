// StreamBP on one GPU: how long a sequence can be in 40 GiB, against activation recomputation with whole logits and with chunked ones.
#include <algorithm>
#include <cmath>

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
  Assignments large_slices{"recompute.mode=stream", "recompute.slice=16384", "recompute.head_slice=2048"};  // where memory is left
};

// Whether two steps with sequences of so many thousand tokens stay within the memory.
bool fits(const ProofOptions& options, base::Log& log, const SyntheticTokens& tokens, const std::string& name, const Assignments& way,
          int64_t steps) {
  const GpuTrained trained = train_on_gpu(options, log, fmt::format("{}-{}", name, steps), decoder(options, tokens, steps * kStep, way));
  if (!trained.fault.empty() && !trained.lacked_memory()) base::fail_input("{} of {} tokens: {}", name, steps * kStep, trained.fault);
  log.info("  {} tokens {}", steps * kStep, trained.fault.empty() ? "fit" : "do not fit");
  return trained.fault.empty();
}

// The longest sequence that fits, to a sixteenth.
int64_t longest(const ProofOptions& options, base::Log& log, const SyntheticTokens& tokens, const std::string& name,
                const Assignments& way) {
  int64_t most = 0, too_many = 32;
  while (too_many * kStep <= kLongest && fits(options, log, tokens, name, way, too_many)) most = too_many, too_many *= 2;
  while (too_many - most > std::max<int64_t>(1, most / 16)) {
    const int64_t middle = (most + too_many) / 2;
    (fits(options, log, tokens, name, way, middle) ? most : too_many) = middle;
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
                chunked = longest(options, log, tokens, "chunked", ways.chunked);
  // In slices: only whether the goals fit. A step of the longest that does takes minutes.
  int64_t sliced = 0;
  for (const double goal : {2.8 * static_cast<double>(plain), 1.4 * static_cast<double>(chunked)}) {
    const int64_t steps = static_cast<int64_t>(std::ceil(goal / kStep));
    if (steps * kStep > sliced && fits(options, log, tokens, "stream", ways.stream, steps)) sliced = steps * kStep;
  }
  const auto ratio = [](int64_t a, int64_t b) { return b == 0 ? 0 : static_cast<double>(a) / static_cast<double>(b); };
  findings.at_least(
      fmt::format("5. 1.5B, 40 GiB: sequence that fits in slices ({}) / longest with recomputation with whole logits ({})", sliced, plain),
      1, ratio(sliced, plain), 2.8);
  findings.at_least(fmt::format("5. the same against chunked cross entropy ({})", chunked), 1, ratio(sliced, chunked), 1.4);
  const auto step_s = [&](const std::string& name, const Assignments& way) {
    GpuTraining training = decoder(options, tokens, plain, way);
    training.steps = 8;
    return must_train_on_gpu(options, log, name, training).step_s();
  };
  const double whole_s = step_s("recomputation-time", ways.recomputation), sliced_s = step_s("stream-time", ways.large_slices);
  findings.at_most(fmt::format("5. time of a token at {} tokens, in slices / recomputation", plain), 1, sliced_s / whole_s, 1.05);
}

}  // namespace cairn::study
