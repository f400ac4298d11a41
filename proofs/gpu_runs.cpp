#include "proofs/gpu_runs.h"

#include <algorithm>
#include <limits>

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/log.h"
#include "base/metrics.h"
#include "kernels/aten.h"
#include "study/claims.h"
#include "study/gpu_monitor.h"
#include "study/process.h"

namespace cairn::study {

double GpuTrained::step_s() const {
  std::vector<double> steps;
  for (size_t i = std::max<size_t>(1, ends_s.size() / 3); i < ends_s.size(); ++i) steps.push_back(ends_s[i] - ends_s[i - 1]);
  if (steps.empty()) return std::numeric_limits<double>::infinity();
  std::nth_element(steps.begin(), steps.begin() + static_cast<std::ptrdiff_t>(steps.size() / 2), steps.end());
  return steps[steps.size() / 2];
}

GpuTrained train_on_gpu(const ProofOptions& options, base::Log& log, const std::string& name, const GpuTraining& training) {
  const std::filesystem::path out = std::filesystem::path(options.scratch) / name;
  std::vector<std::string> command{options.program, "train", "--device", "cuda", "--out", out.string()};
  if (!options.data.empty()) command.insert(command.end(), {"--data", options.data});
  command.insert(command.end(), training.arguments.begin(), training.arguments.end());
  for (const std::string& set : training.sets) command.insert(command.end(), {"--set", set});
  command.insert(command.end(), {"--set", fmt::format("train.steps={}", training.steps)});
  const GpuMonitor watch;
  double began_s = 0, startup_s = 0;
  const ProcessResult ended = run_program_for(std::chrono::duration<double>(training.limit_s), command, out.string() + ".log",
                                              [&](int) { began_s = watch.now_s(); });
  GpuTrained trained;
  if (std::filesystem::exists(out / "metrics.jsonl"))
    for (const base::MetricsRow& row : base::read_metrics(out / "metrics.jsonl")) {
      if (row.has("startup_seconds")) startup_s = row.number("startup_seconds");
      trained.losses.push_back(row.number("loss"));
      trained.gradient_norms.push_back(row.number("grad_norm"));
      trained.ends_s.push_back(row.number("seconds"));
      if (row.has("eval_loss")) trained.held_out_loss = row.number("eval_loss");
      if (row.has("stall_s")) trained.waited_s += row.number("stall_s");
      if (row.has("snapshot_s")) trained.saves_s.push_back(row.number("snapshot_s"));
      if (row.has("memory_tensors_most_bytes")) trained.tensor_bytes_most = row.integer("memory_tensors_most_bytes");
    }
  if (ended.exit_code != 0) {
    const size_t from = ended.output.rfind("cairn: ");
    trained.fault = fmt::format("exit code {}: {}", ended.exit_code, ended.output.substr(from == std::string::npos ? 0 : from));
  } else if (std::ssize(trained.losses) < training.steps) {  // asked to end, it did
    trained.fault = fmt::format("its time was up after {} of {} steps", trained.losses.size(), training.steps);
  }
  if (std::ssize(trained.ends_s) > 3 * kLastSteps) {
    const double first_s = began_s + startup_s;  // where the clock of the steps begins
    if (const auto span = watch.between(first_s + trained.ends_s[trained.ends_s.size() / 3],
                                        first_s + trained.ends_s[trained.ends_s.size() - 1 - kLastSteps]))
      trained.busy = span->busy;
  }
  if (trained.fault.empty())
    log.info("{}: {} steps of {:.1f} ms, {:.2f} GiB of tensors", name, trained.losses.size(), trained.step_s() * 1e3,
             static_cast<double>(trained.tensor_bytes_most) / (1 << 30));
  else
    log.info("{}: {}", name, trained.fault.substr(0, 300));
  return trained;
}

GpuTrained must_train_on_gpu(const ProofOptions& options, base::Log& log, const std::string& name, const GpuTraining& training) {
  GpuTrained trained = train_on_gpu(options, log, name, training);
  if (!trained.fault.empty()) base::fail_input("{}: {}", name, trained.fault);
  return trained;
}

Assignments gpu_decoder(const ProofOptions& options, const GpuDecoder& shape) {
  Assignments sets{fmt::format("model.embed={}", shape.embed),  fmt::format("model.layers={}", shape.layers),
                   fmt::format("model.heads={}", shape.heads),  fmt::format("model.kv_heads={}", shape.kv_heads),
                   fmt::format("model.mlp={}", shape.mlp),      fmt::format("train.global_batch={}", shape.batch),
                   fmt::format("data.length={}", shape.length), fmt::format("train.seed={}", options.seed)};
  for (const char* set : {"train.precision=bf16", "eval.fraction=0.0", "snapshot.every=0", "snapshot.last=false", "log.samples=0",
                          "log.trace=false", "log.tensorboard=false"})
    sets.emplace_back(set);
  if (!shape.wide_state)
    for (const char* set : {"train.parameters=bf16", "train.gradients=bf16", "optim.moments=bf16"}) sets.emplace_back(set);
  return sets;
}

double gpu_seconds(const std::function<void()>& work, int times) {
  const c10::impl::VirtualGuardImpl gpu(at::kCUDA);
  const c10::Stream stream = gpu.getStream(gpu.getDevice());
  double least = std::numeric_limits<double>::infinity();
  for (int round = -1; round < 3; ++round) {
    c10::Event begin(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT), end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
    begin.record(stream);
    for (int i = 0; i < times; ++i) work();
    end.record(stream);
    end.synchronize();
    if (round >= 0) least = std::min(least, begin.elapsedTime(end) * 1e-3 / times);
  }
  return least;
}

}  // namespace cairn::study
