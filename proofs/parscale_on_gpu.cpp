// ParScale on one GPU: what eight streams cost when a 1.6B model decodes, in time and memory, for one text and for 64.
#include <algorithm>
#include <memory>
#include <vector>

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/generate/generate.h"
#include "model/model.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

constexpr size_t kAll = 0;  // both pools of the allocator
constexpr int64_t kNewTokens = 128;

struct Decoded {
  double token_s = 0;  // the median time between two tokens
  int64_t weight_bytes = 0, peak_bytes = 0;
};

Decoded decode(int64_t streams, int64_t texts, const ProofOptions& options) {
  model::DecoderShape shape{
      .vocab = 151936, .embed = 2048, .layers = 24, .heads = 16, .kv_heads = 2, .head_dim = 128, .mlp = 9216, .length = 512, .tied = true};
  if (streams > 1) shape.streams = {.count = streams};
  const std::unique_ptr<model::Model> decoder = model::make_decoder(shape);
  const auto on_gpu = at::TensorOptions().device(at::kCUDA);
  const model::FlatWeights weights(decoder->layout(), at::empty({decoder->elements()}, on_gpu.dtype(at::kBFloat16)));
  model::initialize_parameters(*decoder, weights.flat(), base::Random(options.seed));
  model::Buffers buffers = decoder->make_buffers(on_gpu.dtype(at::kFloat));
  std::vector<int32_t> prompt;
  for (int32_t i = 0; i < 64; ++i) prompt.push_back(i * i % 1009);
  std::vector<model::GenerateRequest> requests(static_cast<size_t>(texts), {prompt});
  const model::GenerateOptions how{.tokens = kNewTokens, .length_max = shape.length, .sampling = {.temperature = 0}};
  const base::RealClock clock;
  Decoded found{.weight_bytes = static_cast<int64_t>(weights.flat().nbytes())};
  for (int round = 0; round < 2; ++round) {  // the first also loads kernels
    std::vector<double> times;
    c10::getDeviceAllocator(at::kCUDA)->resetPeakStats(0);
    (void)model::generate(*decoder, weights, buffers, requests, how, [&](int64_t request, int32_t) {
      if (request == 0) times.push_back(base::seconds(clock.now()));
      return true;
    });
    found.peak_bytes = c10::getDeviceAllocator(at::kCUDA)->getDeviceStats(0).allocated_bytes[kAll].peak;
    std::vector<double> gaps;
    for (size_t i = 1; i < times.size(); ++i) gaps.push_back(times[i] - times[i - 1]);
    std::nth_element(gaps.begin(), gaps.begin() + static_cast<std::ptrdiff_t>(gaps.size() / 2), gaps.end());
    found.token_s = gaps[gaps.size() / 2];
  }
  return found;
}

}  // namespace

void prove_parscale_on_gpu(const ProofOptions& options, Findings& findings, base::Log& log) {
  const Decoded one = decode(1, 1, options), eight = decode(8, 1, options);
  const Decoded many = decode(1, 64, options), many_eight = decode(8, 64, options);
  log.info("one text: {:.2f} ms a token with one stream, {:.2f} ms with eight; 64 texts: {:.2f} and {:.2f} ms a step", one.token_s * 1e3,
           eight.token_s * 1e3, many.token_s * 1e3, many_eight.token_s * 1e3);
  findings.at_most("H200. 1.6B, bf16, one text of 64 + 128 tokens: time of a token with eight streams to that with one", one.token_s,
                   eight.token_s / one.token_s, 1.35);
  findings.at_most("H200. device memory that eight streams need beside that of one, of the weights", 0,
                   static_cast<double>(eight.peak_bytes - one.peak_bytes) / static_cast<double>(one.weight_bytes), 0.08);
  findings.at_least("H200. 64 texts: time of a step with eight streams to that with one", many.token_s, many_eight.token_s / many.token_s,
                    2);
}

}  // namespace cairn::study
