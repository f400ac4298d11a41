// The recipe's prune.* keys.
#pragma once
#include <cstdint>
#include <string>
#include <vector>

#include "base/schema.h"

namespace cairn::study {

enum class PruneMethod { magnitude, wanda, sparsegpt, random };
inline constexpr base::EnumName<PruneMethod> kPruneMethodNames[] = {{PruneMethod::magnitude, "magnitude"},
                                                                    {PruneMethod::wanda, "wanda"},
                                                                    {PruneMethod::sparsegpt, "sparsegpt"},
                                                                    {PruneMethod::random, "random"}};

enum class PruneCompare { automatic, layer, row };
inline constexpr base::EnumName<PruneCompare> kPruneCompareNames[] = {
    {PruneCompare::automatic, "auto"}, {PruneCompare::layer, "layer"}, {PruneCompare::row, "row"}};

enum class RecoverMode { retrain, reconstruct, none };
inline constexpr base::EnumName<RecoverMode> kRecoverModeNames[] = {
    {RecoverMode::retrain, "retrain"}, {RecoverMode::reconstruct, "reconstruct"}, {RecoverMode::none, "none"}};

enum class RecoverInputs { repaired, dense };
inline constexpr base::EnumName<RecoverInputs> kRecoverInputsNames[] = {{RecoverInputs::repaired, "repaired"},
                                                                        {RecoverInputs::dense, "dense"}};

enum class PruneExport { sparse, adapter };
inline constexpr base::EnumName<PruneExport> kPruneExportNames[] = {{PruneExport::sparse, "sparse"}, {PruneExport::adapter, "adapter"}};

enum class ActivationPlace { memory, disk };
inline constexpr base::EnumName<ActivationPlace> kActivationPlaceNames[] = {{ActivationPlace::memory, "memory"},
                                                                            {ActivationPlace::disk, "disk"}};

// n of every m consecutive inputs are removed; m = 0: any.
struct PrunePattern {
  int64_t n = 0, m = 0;
  bool operator==(const PrunePattern&) const = default;
};

struct RecoverOptions {
  RecoverMode mode = RecoverMode::retrain;
  std::vector<std::string> train = {"bias", "norm", "head", "mask_lora"};
  int64_t rank = 16;
  double alpha = 32;
  int64_t steps = 500;
  double learning_rate = 5e-4;
  double warmup = 0.1;
  bool add_bias = false;
  RecoverInputs inputs = RecoverInputs::repaired;
};

struct PruneOptions {
  PruneMethod method = PruneMethod::magnitude;
  double sparsity = 0.5;
  std::string pattern = "unstructured";
  PruneCompare compare = PruneCompare::automatic;
  int64_t rounds = 1;
  int64_t calibration = 128;
  int64_t calibration_batch = 8;
  int64_t seed = 0;
  ActivationPlace activations = ActivationPlace::memory;
  double memory_limit_mb = 0;
  PruneExport exported = PruneExport::sparse;
  RecoverOptions recover = {};

  PrunePattern parsed_pattern() const;
  bool compares_rows() const;  // compare, where auto is resolved
  // The calibration samples are read: by the method, or to reconstruct.
  bool needs_activations() const;
};

base::Schema<PruneOptions> prune_schema();
base::Schema<RecoverOptions> recover_schema();

// Refuses options that contradict each other, or ask for nothing.
void check_prune_options(const PruneOptions& options);

}  // namespace cairn::study
