#include "bench/gpu_table.h"

#include <fmt/format.h>

#include "base/text.h"

namespace cairn::study {
namespace {

std::string number(double value, const char* format) { return value > 0 ? fmt::format(fmt::runtime(format), value) : "-"; }

std::string gibibytes(int64_t bytes) { return number(static_cast<double>(bytes) / (1 << 30), "{:.2f}"); }

}  // namespace

std::string gpu_table(const GpuCase& one, const std::vector<GpuRun>& runs, const GpuCeiling& ceiling) {
  std::string table = fmt::format("{} parameters, {} x {} tokens a step, {:.1f} TFLOP a step\n",
                                  base::human_count(static_cast<double>(one.parameters())), one.batch, one.length, one.flops() / 1e12);
  table += fmt::format("{}, PyTorch {}; products of {}: {} TFLOP/s on end, {} at best\n", ceiling.device.empty() ? "?" : ceiling.device,
                       ceiling.torch.empty() ? "?" : ceiling.torch, ceiling.size, number(ceiling.tflops, "{:.4g}"),
                       number(ceiling.burst_tflops, "{:.4g}"));
  table += fmt::format("{:<9} {:>6} {:>9} {:>10} {:>8} {:>8} | {:>8} {:>9} {:>8} | {:>8} {:>9} {:>6} {:>5}\n", "", "steps", "ms/step",
                       "tokens/s", "TFLOP/s", "ceiling", "tensors", "allocator", "device", "start s", "tokens/J", "W", "MHz");
  for (const GpuRun& run : runs) {
    const double step_s = run.steady_steps > 0 ? run.steady_s / static_cast<double>(run.steady_steps) : 0;
    const double tflops = step_s > 0 ? one.flops() / step_s / 1e12 : 0;
    const double tokens = static_cast<double>(run.steady_steps * one.tokens());
    table += fmt::format("{:<9} {:>6} {:>9} {:>10} {:>8} {:>8} | {:>8} {:>9} {:>8} | {:>8} {:>9} {:>6} {:>5}{}\n", run.who,
                         run.losses.size(), number(step_s * 1000, "{:.1f}"), number(run.tokens_per_s(one), "{:.0f}"),
                         number(tflops, "{:.4g}"), ceiling.tflops > 0 ? number(100 * tflops / ceiling.tflops, "{:.1f}%") : "-",
                         gibibytes(run.tensor_bytes_most), gibibytes(run.allocator_bytes_most), gibibytes(run.device_bytes_most),
                         number(run.first_step_s, "{:.2f}"), run.joules > 0 ? number(tokens / run.joules, "{:.1f}") : "-",
                         run.steady_s > 0 ? number(run.joules / run.steady_s, "{:.0f}") : "-", number(run.clock_mhz, "{:.0f}"),
                         run.fault.empty() ? "" : "  (not to its end)");
  }
  table += "memory in GiB; start: from the start of the process to the end of its first step, of which\n";
  for (const GpuRun& run : runs) {
    if (run.startup.empty()) continue;
    table += fmt::format("  {:<9}", run.who);
    for (const auto& [part, seconds] : run.startup) table += fmt::format(" {} {:.2f}", part, seconds);
    table += "\n";
  }
  for (const GpuRun& run : runs) {
    if (run.losses.empty()) continue;
    table += fmt::format("  {:<9} loss {:.4f} at step 1, {:.4f} at step {}\n", run.who, run.losses.front(), run.losses.back(),
                         run.losses.size());
  }
  return table;
}

}  // namespace cairn::study
