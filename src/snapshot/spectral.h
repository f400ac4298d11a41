// Snapshots of spectral training: weights of linear layers as factors in training/forms.safetensors, and training/spectral.json, which says
// of which. Whoever opens such a snapshot as a model gets the dense weights.
#pragma once
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "mesh/named_tensor.h"

namespace cairn::snapshot {

inline constexpr const char* kSpectralFile = "training/spectral.json";

// The factors of one weight, as views of the file: vectors are rows, active ones before frozen ones.
struct SpectralWeightFile {
  std::string name;             // of the dense weight
  bool fan_in_fan_out = false;  // it is stored [in, out]
  std::vector<at::Tensor> u, v;
  at::Tensor s;

  // The dense weight; of the singular values, all but the smallest whose squares add up to at most this share of all squares.
  at::Tensor dense(double dropped_energy = 0) const;
  int64_t values() const { return s.numel(); }
};

struct SpectralState {
  std::vector<SpectralWeightFile> weights;
  // Writes the dense weights into the tensors of these names, and returns the other tensors.
  mesh::NamedTensors merge_into(const mesh::NamedTensors& parameters) const;
  std::vector<std::string> names() const;
};

// A dense weight that the run trains as factors.
struct SpectralName {
  std::string name;
  bool fan_in_fan_out = false;
};
std::string format_spectral(const std::vector<SpectralName>& weights);
// Empty where the folder's run had no spectral weights. Throws corrupt_file for factors that do not fit together.
std::optional<SpectralState> read_spectral(const std::string& folder);

}  // namespace cairn::snapshot
