// What parts of the proof of MoSA share: keys of its adapters, runs with hooks, and the matrices that are in modules.
#pragma once
#include <exception>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "base/stop.h"
#include "comm/local/local.h"
#include "kernels/aten.h"
#include "model/decoder/adapter_matrix.h"
#include "model/model.h"
#include "proofs/layout_run.h"
#include "train/train.h"

namespace cairn::study {

namespace fs = std::filesystem;

inline constexpr int64_t kModules = 4, kRank = 16, kSequences = 100;

// 100 sequences are little data: passes over them follow each other.
inline Assignments adapter_keys(const std::string& kind, const Assignments& more = {}) {
  Assignments keys{"model.adapter.kind=" + kind,
                   fmt::format("model.adapter.rank={}", kRank),
                   "model.adapter.style=adaptformer",
                   "model.adapter.dropout=0.1",
                   "optim.learning_rate=0.005",
                   "optim.weight_decay=0.01",
                   "train.global_batch=25"};
  if (kind == "mosa") keys.push_back(fmt::format("model.adapter.modules={}", kModules));
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

inline void train_with(const base::Recipe& recipe, const fs::path& out, const train::RunHooks& hooks, const data::Subset& subset = {},
                       int ranks = 1) {
  const base::Stop never;
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks).run([&](comm::World& world) {
         train::Start start;
         start.out = out;
         if (!out.empty()) start.cache = out.parent_path() / "cache";
         train::run(world, recipe, start, subset, never, hooks);
       }))
    if (error) std::rethrow_exception(error);
}

// The split matrices of a model, and where their modules are among its parameters.
struct SplitMatrix {
  model::AdapterMatrix matrix;
  std::vector<int64_t> order;
};
inline std::vector<SplitMatrix> split_matrices(const model::Model& model, const model::AdapterShape& shape) {
  std::vector<SplitMatrix> all;
  const std::vector<model::Parameter>& parameters = model.parameters();
  for (size_t i = 0; i < parameters.size(); ++i) {
    const model::Parameter& one = parameters[i];
    if (one.modules == 1 || one.module != 0 || !one.name.ends_with(".weight")) continue;
    int64_t elements = 0;
    std::optional<mesh::ParamId> bias;
    for (size_t k = 0; k < parameters.size(); ++k) {
      if (parameters[k].module_of != one.module_of) continue;
      const bool is_bias = parameters[k].name.ends_with(".bias");
      if (!is_bias) elements += parameters[k].elements();
      if (is_bias && parameters[k].module == 0) bias = mesh::ParamId{static_cast<int32_t>(k)};
    }
    const bool narrows = one.module_of.ends_with(".down") || one.module_of.ends_with(".lora_A");
    const int64_t wide = elements / shape.rank;
    SplitMatrix& found = all.emplace_back(SplitMatrix{model::AdapterMatrix({.name = one.module_of,
                                                                            .out = narrows ? shape.rank : wide,
                                                                            .in = narrows ? wide : shape.rank,
                                                                            .modules = one.modules,
                                                                            .split = shape.split,
                                                                            .seed = shape.mask_seed,
                                                                            .weight = {static_cast<int32_t>(i)},
                                                                            .bias = bias}),
                                                      {}});
    found.order = found.matrix.module_order();
  }
  return all;
}

// mosa_pictures.cpp
void mosa_of_pictures(const ProofOptions& options, base::Log& log);

}  // namespace cairn::study
