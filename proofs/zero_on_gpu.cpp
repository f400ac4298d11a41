// ZeRO on one GPU that two processes share: what a rank holds there.
#include <cmath>
#include <filesystem>

#include <fmt/format.h>

#include "base/files.h"
#include "base/json.h"
#include "base/log.h"
#include "proofs/gpu_runs.h"
#include "study/claims.h"

namespace cairn::study {

namespace {

// Bytes that passes forward had made and that were still on the GPU when tensors took the most, and those that had come back to it: by
// memory.json, which sums up to what the allocator says.
double kept_bytes(const ProofOptions& options, const std::string& name, base::Log& log) {
  const base::Json report = base::parse_json(base::read_file(std::filesystem::path(options.scratch) / name / "memory.json", 1 << 20));
  double bytes = 0;
  std::string all;
  for (const base::Json& line : report.at("purposes")) {
    const auto purpose = line.at("purpose").get<std::string>();
    const auto own = line.at("bytes").get<double>();
    if (purpose.starts_with("forward") || purpose.starts_with("inputs")) bytes += own;
    all += fmt::format("; {} {:.0f} MiB", purpose, own / (1 << 20));
  }
  log.info("{}, at most{}", name, all);
  return bytes;
}

// Inputs of activation recomputation, in pinned host memory, against the same on the GPU: 24 layers, two blocks each. So many tokens
// that tensors take the most when all inputs are there: with fewer, the gradients that backward makes weigh more than the inputs that it
// is done with.
void prove_inputs_on_host(const ProofOptions& options, Findings& findings, base::Log& log) {
  constexpr int64_t kLayers = 24, kEmbed = 2048, kBatch = 8, kLength = 4096, kTokens = kBatch * kLength;
  constexpr double kInput = 2.0 * kEmbed * kTokens;  // bytes in bf16
  const auto kept_on = [&](const std::string& where) {
    Assignments sets = gpu_decoder(options, {.embed = kEmbed, .layers = kLayers, .batch = kBatch, .length = kLength});
    for (const char* set : {"recompute.mode=full", "train.deterministic=true", "log.memory=true"}) sets.emplace_back(set);
    sets.push_back("recompute.inputs=" + where);
    return must_train_on_gpu(options, log, "inputs-on-" + where, {.sets = std::move(sets), .steps = 8});
  };
  const GpuTrained device = kept_on("device"), host = kept_on("host");
  const double all = kept_bytes(options, "inputs-on-device", log) / kInput;
  findings.at_least(
      fmt::format("7. {} layers of two blocks, {} tokens, recomputed: inputs of so many on the GPU when tensors take the most", kLayers,
                  kTokens),
      2.0 * kLayers, all, 2.0 * kLayers - 4);
  findings.at_most("7. the same where they wait on the host", all, kept_bytes(options, "inputs-on-host", log) / kInput, 2.1);
  findings.at_most("7. the same: GiB of tensors at most", static_cast<double>(device.tensor_bytes_most) / (1 << 30),
                   static_cast<double>(host.tensor_bytes_most) / (1 << 30), static_cast<double>(device.tensor_bytes_most) / (1 << 30));
  findings.at_most("7. the same: time of a step", 1, host.step_s() / device.step_s(), 1.15);
  findings.at_most("7. the same: relative difference of the losses", 0, largest_relative_difference(device.losses, host.losses), 0);
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
