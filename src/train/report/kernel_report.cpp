#include "train/report/kernel_report.h"

#include <algorithm>
#include <map>

#include <ATen/DeviceAccelerator.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/profiler_kineto.h>

#include "base/text.h"

namespace cairn::train {

namespace profiler = torch::autograd::profiler;

void KernelReport::before_step() {
  if (++seen_ != kStepsBefore + 1) return;
  const torch::profiler::impl::ProfilerConfig config(torch::profiler::impl::ProfilerState::KINETO);
  const std::set<torch::profiler::impl::ActivityType> activities{torch::profiler::impl::ActivityType::CUDA};
  at::accelerator::synchronizeDevice(device_.index());
  profiler::prepareProfiler(config, activities);
  profiler::enableProfiler(config, activities);
  watching_ = true;
}

void KernelReport::after_step() {
  if (!watching_ || seen_ < kStepsBefore + kSteps) return;
  at::accelerator::synchronizeDevice(device_.index());
  const auto result = profiler::disableProfiler();
  watching_ = false;
  std::vector<Span> spans;
  for (const profiler::KinetoEvent& event : result->events())
    if (event.deviceType() == device_.type())
      spans.push_back({event.name(), static_cast<int64_t>(event.startNs()), static_cast<int64_t>(event.endNs())});
  found_ = tabulate(spans, kSteps);
}

KernelReport::~KernelReport() {
  if (watching_) (void)profiler::disableProfiler();
}

KernelReport::Found KernelReport::tabulate(const std::vector<Span>& spans, int64_t steps) {
  Found found{.steps = steps};
  if (spans.empty()) return found;
  std::vector<Span> in_order = spans;
  std::sort(in_order.begin(), in_order.end(), [](const Span& a, const Span& b) { return a.begin_ns < b.begin_ns; });
  std::map<std::string, Line> by_name;
  int64_t until = in_order.front().begin_ns;
  for (const Span& span : in_order) {
    Line& line = by_name[span.kernel];
    line.kernel = span.kernel;
    ++line.count;
    line.ns += span.end_ns - span.begin_ns;
    found.busy_ns += std::max<int64_t>(0, span.end_ns - std::max(until, span.begin_ns));
    until = std::max(until, span.end_ns);
  }
  found.whole_ns = until - in_order.front().begin_ns;
  for (const auto& [name, line] : by_name) found.lines.push_back(line);
  std::stable_sort(found.lines.begin(), found.lines.end(), [](const Line& a, const Line& b) { return a.ns > b.ns; });
  return found;
}

std::string KernelReport::table(const Found& found, size_t lines_most) {
  if (found.steps == 0) return "no kernels were profiled: the run ended before\n";
  const double steps = static_cast<double>(found.steps), whole = std::max(1.0, static_cast<double>(found.whole_ns));
  const auto row = [&](double ns, double count, const std::string& name) {
    constexpr size_t kName = 120;
    return fmt::format("{:>9.3f} ms {:>6.2f} % {:>8.1f}  {}\n", ns / steps / 1e6, 100 * ns / whole, count / steps, name.substr(0, kName));
  };
  std::string text = fmt::format("a step on the device, over {}: {:.3f} ms, times each kernel ran, and which\n",
                                 base::plural(found.steps, "step"), whole / steps / 1e6);
  text += row(static_cast<double>(found.whole_ns - found.busy_ns), 0, "(nothing ran)");
  Line rest{.kernel = ""};
  size_t kinds = 0;
  for (size_t i = 0; i < found.lines.size(); ++i) {
    const Line& line = found.lines[i];
    if (i < lines_most) {
      text += row(static_cast<double>(line.ns), static_cast<double>(line.count), line.kernel);
      continue;
    }
    rest.ns += line.ns, rest.count += line.count, ++kinds;
  }
  if (kinds > 0) text += row(static_cast<double>(rest.ns), static_cast<double>(rest.count), fmt::format("({} others)", kinds));
  return text;
}

}  // namespace cairn::train
