// The recipe of a model that learns one dataset after the other (`cairn study lifelong`): [study] with kind = "lifelong".
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"

namespace cairn::study {

struct LifelongOptions {
  std::string kind = "lifelong";
  std::string method = "adapt";
  std::vector<std::string> datasets;
  int64_t budget = 1000;
  int64_t pool_cap = 0;
  int64_t clusters = 0;
  std::vector<std::string> scores = {"ppl", "el2n", "entropy", "grand"};
  std::string within = "ccs";
  std::string prune_vectors = "hidden";
  std::vector<std::string> image;
  std::string skills;
  std::string device = "cpu";
};
base::Schema<LifelongOptions> lifelong_schema();

// [study.vectors]
struct VectorOptions {
  std::string kind = "gradient";
  std::string layer = "middle";
  int64_t dim = 8192;
  std::string type = "sgd";
  int64_t seed = 0;
  int64_t directions = 64;
  double perturbation = 1e-3;
};
base::Schema<VectorOptions> vector_schema();

std::vector<base::Section> lifelong_sections();

}  // namespace cairn::study
