// GPipe on one GPU: how deep a model gets with and without recompute, with the same stages and micro-batches.
#include <algorithm>

#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "kernels/aten.h"
#include "proofs/gpu_runs.h"
#include "study/claims.h"

namespace cairn::study {
namespace {

constexpr int64_t kRoom = int64_t{48} << 30;  // that runs find free: a small card takes less time to fill
constexpr int kStages = 4, kMicroBatches = 8;

// The most layers, a multiple of the stages, with which two steps do not run out of memory.
int64_t deepest(const ProofOptions& options, base::Log& log, const std::string& recompute) {
  const auto fits = [&](int64_t layers) {
    Assignments sets = gpu_decoder(options, {.layers = layers, .batch = 4 * kMicroBatches, .length = 2048, .wide_state = true});
    for (const std::string& set :
         {std::string("pipeline.schedule=gpipe"), fmt::format("pipeline.micro_batches={}", kMicroBatches), "recompute.mode=" + recompute})
      sets.push_back(set);
    const GpuTrained trained =
        train_on_gpu(options, log, fmt::format("{}-{}", recompute, layers),
                     {.sets = std::move(sets), .steps = 2, .arguments = {"--transport", "local", "--mesh", fmt::format("pp={}", kStages)}});
    if (!trained.fault.empty() && !trained.lacked_memory()) base::fail_input("{} layers: {}", layers, trained.fault);
    return trained.fault.empty();
  };
  int64_t most = 0, too_many = 1;  // in layers of each stage
  while (fits(too_many * kStages)) most = too_many, too_many *= 2;
  while (too_many - most > 1) {
    const int64_t middle = (most + too_many) / 2;
    (fits(middle * kStages) ? most : too_many) = middle;
  }
  return most * kStages;
}

}  // namespace

void prove_gpipe_on_gpu(const ProofOptions& options, Findings& findings, base::Log& log) {
  const auto [free, total] = c10::getDeviceAllocator(at::kCUDA)->getMemoryInfo(0);
  if (static_cast<int64_t>(free) < kRoom) {
    findings.skip("6. layers that can be trained with recompute and without", "needs 48 GiB of free memory on the GPU");
    return;
  }
  const int64_t taken = static_cast<int64_t>(free) - kRoom;
  const at::Tensor filled = at::empty({taken}, at::TensorOptions().dtype(at::kByte).device(at::kCUDA));
  const int64_t plain = deepest(options, log, "none"), recomputed = deepest(options, log, "stage");
  findings.at_least(
      fmt::format("6. 2048 wide, 4 stages on one GPU with 48 GiB free, 8 micro-batches of 8,192 tokens: layers that can be trained with "
                  "recompute / without ({})",
                  plain),
      1, plain == 0 ? 0 : static_cast<double>(recomputed) / static_cast<double>(plain), 3);
}

}  // namespace cairn::study
