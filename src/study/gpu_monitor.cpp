#include "study/gpu_monitor.h"

#include <algorithm>
#include <condition_variable>
#include <dlfcn.h>
#include <mutex>
#include <thread>
#include <vector>

namespace cairn::study {
namespace {

// The NVML calls in use, as its header declares them; 0 is success.
struct Nvml {
  struct Memory {
    unsigned long long total, free, used;
  };
  struct Load {
    unsigned percent, memory_percent;
  };
  static constexpr unsigned kMultiprocessors = 1;  // NVML_CLOCK_SM

  void* device = nullptr;
  int (*energy)(void* device, unsigned long long* millijoules) = nullptr;
  int (*memory)(void* device, Memory* memory) = nullptr;
  int (*clock)(void* device, unsigned which, unsigned* mhz) = nullptr;
  int (*load)(void* device, Load* load) = nullptr;

  // Stays open until the process ends.
  static std::optional<Nvml> open() {
    void* const library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) return std::nullopt;
    Nvml nvml;
    int (*init)() = nullptr;
    int (*by_index)(unsigned index, void** device) = nullptr;
    const auto find = [&](auto& function, const char* name) {
      function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
      return function != nullptr;
    };
    const bool found = find(init, "nvmlInit_v2") && find(by_index, "nvmlDeviceGetHandleByIndex_v2") &&
                       find(nvml.energy, "nvmlDeviceGetTotalEnergyConsumption") && find(nvml.memory, "nvmlDeviceGetMemoryInfo") &&
                       find(nvml.clock, "nvmlDeviceGetClockInfo") && find(nvml.load, "nvmlDeviceGetUtilizationRates");
    if (!found || init() != 0 || by_index(0, &nvml.device) != 0) return std::nullopt;
    return nvml;
  }
};

constexpr std::chrono::milliseconds kEvery{50};

}  // namespace

struct GpuMonitor::Parts {
  struct Sample {
    double at_s, joules, clock_mhz, busy;
    int64_t bytes;
  };

  Nvml nvml;
  std::mutex mutex;
  std::condition_variable wake;
  bool over = false;
  std::vector<Sample> samples;
  std::thread thread;

  Sample look(double at_s) const {
    unsigned long long millijoules = 0;
    unsigned mhz = 0;
    Nvml::Memory memory{};
    Nvml::Load load{};
    nvml.energy(nvml.device, &millijoules);
    nvml.memory(nvml.device, &memory);
    nvml.clock(nvml.device, Nvml::kMultiprocessors, &mhz);
    nvml.load(nvml.device, &load);
    return {at_s, static_cast<double>(millijoules) / 1000, static_cast<double>(mhz), load.percent / 100.0,
            static_cast<int64_t>(memory.used)};
  }
};

GpuMonitor::GpuMonitor() {
  const std::optional<Nvml> nvml = Nvml::open();
  if (!nvml) return;
  parts_ = std::make_unique<Parts>();
  parts_->nvml = *nvml;
  parts_->thread = std::thread([this] {
    std::unique_lock lock(parts_->mutex);
    while (!parts_->over) {
      parts_->samples.push_back(parts_->look(now_s()));
      parts_->wake.wait_for(lock, kEvery, [this] { return parts_->over; });
    }
  });
}

GpuMonitor::~GpuMonitor() {
  if (!parts_) return;
  {
    const std::lock_guard lock(parts_->mutex);
    parts_->over = true;
  }
  parts_->wake.notify_all();
  parts_->thread.join();
}

int64_t GpuMonitor::bytes_now() const {
  if (!parts_) return 0;
  const std::lock_guard lock(parts_->mutex);
  return parts_->look(now_s()).bytes;
}

std::optional<GpuMonitor::Span> GpuMonitor::between(double from_s, double to_s) const {
  if (!parts_) return std::nullopt;
  const std::lock_guard lock(parts_->mutex);
  const Parts::Sample *first = nullptr, *last = nullptr;
  Span span;
  int64_t count = 0;
  for (const Parts::Sample& one : parts_->samples) {
    if (one.at_s < from_s || one.at_s > to_s) continue;
    if (first == nullptr) first = &one;
    last = &one;
    span.clock_mhz += one.clock_mhz;
    span.busy += one.busy;
    span.bytes_most = std::max(span.bytes_most, one.bytes);
    ++count;
  }
  if (count < 2 || last->at_s <= first->at_s) return std::nullopt;
  span.clock_mhz /= static_cast<double>(count);
  span.busy /= static_cast<double>(count);
  // The samples lie a little inside the span: extrapolate the energy to its ends.
  span.joules = (last->joules - first->joules) * (to_s - from_s) / (last->at_s - first->at_s);
  return span;
}

}  // namespace cairn::study
