// The recipe of coded training: [study] and [study.stragglers], beside the sections that train every model.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/recipe.h"
#include "base/schema.h"
#include "sync/coding/gradient_code.h"

namespace cairn::study {

// [study] with kind = "coded"
struct CodedStudyOptions {
  std::string kind = "coded";
  int64_t workers = 8;
  int64_t streams = 4;
  std::vector<std::string> vary = {};
  std::string scheme = "msgc";
  std::string params = "auto";
  int64_t s = 1, b = 1, w = 2, lambda = 1;
  int64_t max_delay = 3;
  int64_t probe_rounds = 80;
  double mu = 1;
  sync::CodeKind code = sync::CodeKind::automatic;
  int64_t dead_after = 50;
};
base::Schema<CodedStudyOptions> coded_study_schema();

// [study.stragglers]
struct MadeStragglers {
  double enter = 0;
  double leave = 0.5;
  double delay_s = 1;
  double base_s = 0;
  double load_s = 0;
};
base::Schema<MadeStragglers> made_stragglers_schema();

struct CodedRecipe {
  CodedStudyOptions study;
  MadeStragglers stragglers;
  std::vector<base::Recipe> streams;  // one for each model
};

// Refuses unknown keys, too few streams for the scheme, and values that contradict each other.
CodedRecipe read_coded(const base::Recipe::File& file, const std::vector<std::string>& sets);

// Every section, for the reference page.
std::vector<base::Section> coded_sections();

}  // namespace cairn::study
