#pragma once
#include <string>

namespace cairn::cli {

// Where a model computes, and in which precision, as --device and --precision have it.
struct ComputeOptions {
  std::string device = "cpu", precision = "fp32";
};

}  // namespace cairn::cli
