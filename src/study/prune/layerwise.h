// Prunes a model layer by layer, and repairs each layer where asked to, with one layer in memory (PERP, arXiv:2312.15230). For layer b with
// inputs X, one set for all calibration samples:
//
//   Y = dense(X)                       and the statistics that the criterion needs
//   m = mask(w, statistics);  w = m .* w
//   repair: AdamW on mean((pruned(X) - Y)^2) over a small subset of the layer's parameters; merge
//   X = repaired(X), or Y (recover.inputs = dense)
//
// Ranks share the calibration samples; statistics, gradients and errors are summed over them, so all have the same layer.
#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "mesh/batch.h"
#include "snapshot/pretrained.h"
#include "study/prune/prune_options.h"

namespace cairn::base {
class Log;
class Stop;
}  // namespace cairn::base
namespace cairn::comm {
class Group;
}

namespace cairn::study {

struct LayerPruned {
  std::string name;                          // "layers.3"
  int64_t weights = 0, removed = 0;          // of its linear layers
  double error_before = 0, error_after = 0;  // mean squared difference to the dense outputs: pruned, and repaired; NaN: not measured
  double output_square = 0;                  // mean square of the dense outputs, to judge the errors by
  int64_t trained = 0;                       // parameters
};

struct LayerwiseResult {
  std::vector<LayerPruned> layers;
  int64_t weights = 0, removed = 0;
  int64_t peak_bytes = 0;          // of tensors on the host, beyond those before it; 0: not counted
  int64_t largest_part_bytes = 0;  // of one part's values, fp32
  int64_t activation_bytes = 0;    // of the two sets of activations in memory
  int64_t model_bytes = 0;         // of all values, fp32
  double sparsity() const { return weights == 0 ? 0 : static_cast<double>(removed) / static_cast<double>(weights); }
};

struct LayerwiseSetup {
  const snapshot::Pretrained& from;
  std::filesystem::path to;
  PruneOptions options;
  double sparsity = 0.5;  // of this round
  // Calibration samples [begin, begin + count) of `samples`, on the device; unused where the options need no activations.
  std::function<mesh::Batch(int64_t begin, int64_t count)> batches;
  int64_t samples = 0;
  c10::Device device;
  comm::Group& group;  // all ranks; its first rank writes
  base::Log& log;
  const base::Stop& stop;
};

// Collective. Writes `to`, a Hugging Face directory with masks beside the weights.
LayerwiseResult prune_layerwise(const LayerwiseSetup& setup);

}  // namespace cairn::study
