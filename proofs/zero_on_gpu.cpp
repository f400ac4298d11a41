// ZeRO on one GPU that two processes share: what a rank holds there.
#include <cmath>

#include <fmt/format.h>

#include "base/log.h"
#include "proofs/gpu_runs.h"
#include "study/claims.h"

namespace cairn::study {

namespace {

// Inputs of blocks that are computed again, in pinned host memory, against the same on the GPU: 24 layers, two blocks each.
void prove_inputs_on_host(const ProofOptions& options, Findings& findings, base::Log& log) {
  constexpr int64_t kLayers = 24, kEmbed = 2048, kTokens = 4096;
  const auto kept_on = [&](const char* where) {
    Assignments sets = gpu_decoder(options, {.embed = kEmbed, .layers = kLayers, .batch = 1, .length = kTokens});
    sets.emplace_back("recompute.mode=full");
    sets.push_back(fmt::format("recompute.inputs={}", where));
    return must_train_on_gpu(options, log, fmt::format("inputs-on-{}", where), {.sets = std::move(sets), .steps = 8});
  };
  const GpuTrained device = kept_on("device"), host = kept_on("host");
  constexpr double kInput = 2.0 * kEmbed * kTokens;  // bytes in bf16; what else there is is the same in both
  constexpr double kBlocks = 2 * kLayers + 1;        // that read the stream: the head too
  const double fewer = static_cast<double>(device.tensor_bytes_most - host.tensor_bytes_most) / kInput;
  findings.at_most(
      fmt::format("7. {} blocks of {} tokens, computed again: inputs of so many on the GPU, where they wait on the host", kBlocks, kTokens),
      kBlocks, kBlocks - fewer, 2.1);
  findings.at_most("7. the same: time of a step", 1, host.step_s() / device.step_s(), 1.15);
  findings.at_most("7. the same: difference of the first loss", 0, std::abs(device.losses[0] - host.losses[0]), 0);
  // The library's attention adds gradients up in any order.
  findings.at_most("7. the same: relative difference of the losses", 0, largest_relative_difference(device.losses, host.losses), 1e-3);
}

}  // namespace

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
  prove_inputs_on_host(options, findings, log);
}

}  // namespace cairn::study
