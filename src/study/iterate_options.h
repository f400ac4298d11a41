// The recipe of a selection in rounds (`cairn study iterate`): [study] with kind = "iterate".
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"

namespace cairn::study {

struct IterateOptions {
  std::string kind = "iterate";
  std::string method = "iterative";
  int64_t budget = 1000;
  int64_t rounds = 3;
  int64_t clusters = 0;
  std::string embedding = "auto";
  std::string layer = "middle";
  std::string quota = "proportional";
  std::string quality;
  std::string pick = "weighted";
  std::string init = "uniform";
  std::string scorer = "loss_ratio";
  std::string reference;
  std::string score_on = "selected";
  double score_fraction = 1;
  std::string update = "multiplicative";
  double floor = 0.01;
  double round_epochs = 0;
  int64_t round_steps = 0;
  std::string device = "cpu";
};

base::Schema<IterateOptions> iterate_schema();

}  // namespace cairn::study
