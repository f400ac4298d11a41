#pragma once
#include <string>

namespace cairn::cli {

// Where and in which precision a model computes: --device (cpu, cuda) and --precision (fp32, bf16).
struct ComputeOptions {
  std::string device = "cpu", precision = "fp32";
};

}  // namespace cairn::cli
