#pragma once
#include <string>
#include <vector>

#include "snapshot/pretrained.h"

namespace cairn::snapshot {

// The weighted mean of several finished models, parameter by parameter:
//
//   theta = sum_k w_k theta_k / sum_k w_k
//
// in fp32 ("A Single Merging Suffices": models that communicated a little while they trained stay mergeable). Optimizer state and
// counters are not averaged. `into` are the parameters of a model of that shape; one tensor of the others is read at a time. `weights`:
// one for each model, above 0; empty: all equal. Throws bad_input unless all models have the same shape, wiring and tokenizer.
void merge_models(const std::vector<Pretrained>& models, std::vector<double> weights, const mesh::NamedTensors& into);

// What `cairn snapshot merge` does: opens the folders (runs, snapshots, Hugging Face directories) and writes their mean to `out`, a
// Hugging Face directory with the texts of the first. Returns what it wrote.
struct MergedModel {
  model::DecoderShape shape;
  mesh::NamedTensors parameters;
};
MergedModel merge_folders(const std::vector<std::string>& folders, const std::vector<double>& weights, const std::string& out,
                          const ExportOptions& options, const base::Disk& disk, base::Log& log);

}  // namespace cairn::snapshot
