#pragma once
#include <filesystem>
#include <map>
#include <string>

#include <gtest/gtest.h>

#include "kernels/aten.h"
#include "snapshot/snapshot.h"

namespace cairn::train {

// The model that a run ends with.
inline std::map<std::string, at::Tensor> model_of(const std::filesystem::path& out) {
  std::map<std::string, at::Tensor> all;
  const snapshot::OpenSnapshot opened = snapshot::open(*snapshot::find_latest(out.string()));
  const snapshot::Safetensors& tensors = opened.section("model");
  for (const snapshot::TensorEntry& entry : tensors.entries()) all[entry.name] = tensors.view(entry).clone();
  return all;
}

// How far the numbers that differ most are apart.
inline double furthest(const std::map<std::string, at::Tensor>& a, const std::map<std::string, at::Tensor>& b) {
  double most = 0;
  EXPECT_EQ(a.size(), b.size());
  for (const auto& [name, tensor] : a) most = std::max(most, (tensor - b.at(name)).abs().max().item<double>());
  return most;
}

}  // namespace cairn::train
