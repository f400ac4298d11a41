// The parts of `cairn bench moe` on a GPU, bf16: products of all experts of a layer in one call, and whole training steps.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <functional>
#include <vector>

#include <ATen/core/IListRef.h>
#include <ATen/ops/_grouped_mm.h>
#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/json.h"
#include "base/log.h"
#include "base/metrics.h"
#include "bench/kernels.h"
#include "bench/moe_parts.h"
#include "bench/peer_python.h"
#include "kernels/gemm.h"
#include "kernels/grouped_gemm.h"
#include "study/process.h"

namespace cairn::study {
namespace {

constexpr int64_t kExpertRows = 65536, kExpertEmbed = 2048, kExpertOut = 1536, kExpertCount = 64;
constexpr int kProductRounds = 7, kProductTimes = 6;

double gpu_seconds(const std::function<void(int)>& call) {
  const c10::impl::VirtualGuardImpl gpu(at::kCUDA);
  const c10::Stream stream = gpu.getStream(gpu.getDevice());
  c10::Event begin(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT), end(at::kCUDA, c10::EventFlag::BACKEND_DEFAULT);
  begin.record(stream);
  for (int i = 0; i < kProductTimes; ++i) call(i % Sets::kSets);
  end.record(stream);
  end.synchronize();
  return begin.elapsedTime(end) * 1e-3 / kProductTimes;
}

// Rows that the experts of a trained model get: not even, and none empty.
kernels::RowGroups uneven_groups() {
  std::vector<int64_t> counts;
  int64_t left = kExpertRows;
  for (int64_t e = 0; e + 1 < kExpertCount; ++e) {
    const double share = 1 + 0.5 * std::sin(static_cast<double>(e) * 2.3);
    counts.push_back(std::min(left, static_cast<int64_t>(share * static_cast<double>(kExpertRows) / kExpertCount)));
    left -= counts.back();
  }
  counts.push_back(left);
  return kernels::RowGroups(kernels::RowGroups(counts).counts().cuda());
}

struct ProductCase {
  const char* name;
  std::function<void(int)> ours, libtorch, dense;
};

std::vector<std::string> gpu_recipe(int64_t steps) {
  return {"data.vocab=32000",
          "data.length=2048",
          "train.global_batch=8",
          fmt::format("train.steps={}", steps),
          "model.kind=qwen3_moe",
          "model.embed=1024",
          "model.layers=8",
          "model.heads=16",
          "model.kv_heads=8",
          "model.head_dim=64",
          "model.moe.experts=32",
          "model.moe.top_k=4",
          "model.moe.width=768",
          "model.tied=false",
          "train.precision=bf16",
          "train.parameters=bf16",
          "train.gradients=bf16",
          "optim.moments=bf16",
          "optim.rounding=nearest",
          "optim.max_grad_norm=0",
          "optim.schedule=constant",
          "eval.fraction=0",
          "snapshot.every=0",
          "snapshot.last=false",
          "log.samples=0",
          "log.trace=false",
          "log.tensorboard=false",
          "model.moe.aux_loss=0.01",
          "data.stories_bytes=8000000"};
}

}  // namespace

void bench_moe_products(std::vector<BenchRow>& rows, base::Log& log) {
  log.info("products of {} experts over {} rows", kExpertCount, kExpertRows);
  const kernels::RowGroups groups = uneven_groups();
  const at::Tensor ends = groups.counts().cumsum(0, at::kInt);
  const Sets x({kExpertRows, kExpertEmbed}), dy({kExpertRows, kExpertOut}),
      w({kExpertCount, kExpertOut, kExpertEmbed}, at::kBFloat16, 0.02);
  const Sets y({kExpertRows, kExpertOut}), dx({kExpertRows, kExpertEmbed}), dw({kExpertCount, kExpertOut, kExpertEmbed});
  const at::Tensor one = w[0][0], done = dw[0][0];
  const std::vector<ProductCase> cases{
      {"forward", [&](int i) { kernels::grouped_linear(y[i], x[i], w[i], groups); },
       [&](int i) { at::_grouped_mm(x[i], w[i].transpose(1, 2), ends); }, [&](int i) { kernels::linear(y[i], x[i], one); }},
      {"input gradient", [&](int i) { kernels::grouped_linear_backward_input(dx[i], dy[i], w[i], groups); },
       [&](int i) { at::_grouped_mm(dy[i], w[i], ends); }, [&](int i) { kernels::linear_backward_input(dx[i], dy[i], one); }},
      {"weight gradient", [&](int i) { kernels::grouped_linear_backward_weight(dw[i], dy[i], x[i], groups); },
       [&](int i) { at::_grouped_mm(dy[i].t(), x[i], ends); }, [&](int i) { kernels::linear_backward_weight(done, dy[i], x[i]); }}};
  const double tera = 2e-12 * kExpertRows * kExpertEmbed * kExpertOut;
  for (const ProductCase& one_case : cases) {
    std::vector<double> ours, libtorch, dense;
    for (int round = -1; round < kProductRounds; ++round) {
      const double times[] = {gpu_seconds(one_case.ours), gpu_seconds(one_case.libtorch), gpu_seconds(one_case.dense)};
      if (round < 0) continue;
      ours.push_back(tera / times[0]), libtorch.push_back(tera / times[1]), dense.push_back(tera / times[2]);
    }
    rows.push_back(compare(fmt::format("{} of {} experts, against libtorch's grouped product", one_case.name, kExpertCount), ours, libtorch,
                           "TFLOP/s", Better::higher, 1));
    rows.push_back(compare(fmt::format("{} of {} experts, against one dense product of the same operations", one_case.name, kExpertCount),
                           ours, dense, "TFLOP/s", Better::higher, 0.7));
  }
}

void bench_moe_gpu_step(const BenchOptions& options, std::vector<BenchRow>& rows, base::Log& log) {
  const std::string python = python_with_torch(options, log);
  const int64_t steps = options.steps > 0 ? options.steps : 40;
  base::Json settings;
  settings["device"] = "cuda", settings["steps"] = steps, settings["batch"] = 8, settings["length"] = 2048, settings["vocab"] = 32000;
  settings["embed"] = 1024, settings["layers"] = 8, settings["heads"] = 16, settings["kv_heads"] = 8, settings["head_dim"] = 64;
  settings["experts"] = 32, settings["top_k"] = 4, settings["width"] = 768;
  std::vector<double> ours, peer;
  for (int round = 0; round < 3; ++round) {
    log.info("steps on the GPU, round {} of 3", round + 1);
    const std::string out = options.scratch + "/moe-gpu";
    std::filesystem::remove_all(out);
    std::vector<std::string> command{options.program, "train", "--device", "cuda", "--out", out};
    for (const std::string& one : gpu_recipe(steps)) command.insert(command.end(), {"--set", one});
    for (const std::string& one : options.sets) command.insert(command.end(), {"--set", one});
    const ProcessResult ended = run_program(command, options.scratch + "/cairn.log");
    if (ended.exit_code != 0) base::fail_input("our run failed: {}", ended.output);
    std::vector<double> rates;
    for (const base::MetricsRow& row : base::read_metrics(out + "/metrics.jsonl"))
      if (row.integer("step") > steps / 3) rates.push_back(row.number("tokens_per_s"));
    std::sort(rates.begin(), rates.end());
    ours.push_back(rates.at(rates.size() / 2));
    peer.push_back(moe_peer_rate(options, python, base::compact(settings)));
  }
  rows.push_back(compare("training steps, 32 experts of which 4, 8 layers, against compiled PyTorch with its grouped product", ours, peer,
                         "tokens/s", Better::higher, 1));
}

}  // namespace cairn::study
