// The recipe of a study of values (`cairn study value`): [study] with kind = "value".
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"

namespace cairn::study {

struct ValueOptions {
  std::string kind = "value";
  std::string method = "tmc";
  std::string players = "example";
  std::string metric = "accuracy";
  std::string learner = "logistic";
  double ridge = 1;
  int64_t seeds = 1;
  double tolerance = 0.01;
  bool bootstrap = false;
  int64_t patience = 5;
  std::string coverage = "required";
  double error = 0.05;
  int64_t max_permutations = 0;
  int64_t save_every = 100;
  int64_t block = 32;
  double learning_rate = 0;
  int64_t validation = 0;
  std::string validation_source;
  std::string corrupted;
  std::string candidates;
  bool curves = true;
  double budget_hours = 24;
  std::string device = "cpu";
};

base::Schema<ValueOptions> value_schema();

}  // namespace cairn::study
