// A worker of coded training: computes gradients for the master, and stops at once when one is not wanted any more.
#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "federate/coded_messages.h"

namespace cairn::comm {
class World;
}

namespace cairn::federate {

// The models that are trained in turn, as a worker holds them.
class GradientSource {
 public:
  virtual ~GradientSource() = default;
  virtual void take_weights(int64_t stream, std::span<const float> weights) = 0;
  struct Gradient {
    std::vector<float> sum = {};
    std::vector<double> losses = {};  // by range: sums over its samples
  };
  // Sum over ranges of weight * gradient, for a step of a stream. `given_up` is asked between blocks; nothing once it returns true.
  virtual std::optional<Gradient> compute(int64_t stream, int64_t step, std::span<const SampleRange> ranges,
                                          const std::function<bool()>& given_up) = 0;
};

struct WorkerOptions {
  int worker = 0;
  int64_t message_bytes_max = int64_t{64} << 20;
  // Seconds that the worker pauses before a task, by its round (from 0) and load: stragglers made for trials. Empty: none.
  std::function<double(int64_t round, double load)> delay = {};
};

// Serves until the master says stop.
void run_coded_worker(comm::World& world, const WorkerOptions& options, GradientSource& source);

}  // namespace cairn::federate
