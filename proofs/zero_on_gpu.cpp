// ZeRO on one GPU that two processes share: what a rank holds there.
#include <cmath>

#include <fmt/format.h>

#include "base/log.h"
#include "proofs/gpu_runs.h"
#include "study/claims.h"

namespace cairn::study {

void prove_zero_on_gpu(const ProofOptions& options, Findings& findings, base::Log& log) {
  const auto stage = [&](int zero) {
    Assignments sets = gpu_decoder(options, {.batch = 2, .length = 512, .wide_state = true});
    sets.push_back(fmt::format("memory.zero={}", zero));
    return must_train_on_gpu(options, log, fmt::format("zero-{}", zero),
                             {.sets = std::move(sets), .steps = 4, .arguments = {"--nproc", "2", "--mesh", "dp=2"}});
  };
  const GpuTrained whole = stage(0), shared = stage(3);
  const auto gib = [](const GpuTrained& of) { return static_cast<double>(of.tensor_bytes_most) / (1 << 30); };
  findings.at_most(
      fmt::format("7. 1.1 B parameters, 2 processes on one GPU: most GiB of tensors, stage 3 / stage 0 ({:.2f} GiB)", gib(whole)), 1,
      gib(shared) / gib(whole), 0.65);
  findings.at_most("7. the same: relative difference of the losses (bf16)", 0, largest_relative_difference(whole.losses, shared.losses),
                   1e-2);
  findings.skip("7. checkpoints in pinned host memory", "activations do not go to the host's memory yet");
}

}  // namespace cairn::study
