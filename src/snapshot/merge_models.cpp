#include "snapshot/merge_models.h"

#include <cmath>
#include <numeric>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/json.h"
#include "kernels/aten.h"
#include "model/decoder/decoder.h"
#include "model/families/config.h"
#include "model/model.h"

namespace cairn::snapshot {
namespace {

// config.json without the fields that change nothing in the model.
base::Json config_of(const Pretrained& one) {
  model::DecoderShape shape = one.shape;
  shape.other_fields.clear();
  shape.dropout = 0;
  shape.tokens = {};
  return base::parse_json(model::format_config(shape));
}

void check_mergeable(const Pretrained& first, const Pretrained& other) {
  const base::Json expected = config_of(first), found = config_of(other);
  std::vector<std::string> differences;
  for (const auto& [key, value] : expected.items())
    if (!found.contains(key) || found[key] != value)
      differences.push_back(
          fmt::format("{} is {} here and {} there", key, value.dump(), found.contains(key) ? found[key].dump() : "unset"));
  for (const auto& [key, value] : found.items())
    if (!expected.contains(key)) differences.push_back(fmt::format("{} is unset here and {} there", key, value.dump()));
  if (!differences.empty())
    base::fail_input("{} and {}: only models of one shape have a mean: {}", first.path, other.path, fmt::join(differences, "; "));
  for (const char* name : {"tokenizer.json", "tokenizer.model", "vocab.json"}) {
    const auto a = first.texts.find(name), b = other.texts.find(name);
    if ((a == first.texts.end()) != (b == other.texts.end()) || (a != first.texts.end() && a->second != b->second))
      base::fail_input("{} and {}: their {} differ; only models with one tokenizer have a mean", first.path, other.path, name);
  }
}

void check_weights(const std::vector<double>& weights, size_t models) {
  if (weights.size() != models) base::fail_input("--weights: {} numbers for {} models; give one for each", weights.size(), models);
  for (const double weight : weights)
    if (!std::isfinite(weight) || weight <= 0)
      base::fail_input("--weights {}: must be above 0; leave out a model that shall not count", weight);
}

}  // namespace

void merge_models(const std::vector<Pretrained>& models, std::vector<double> weights, const mesh::NamedTensors& into) {
  if (weights.empty()) weights.assign(models.size(), 1);
  check_weights(weights, models.size());
  for (const Pretrained& other : models) check_mergeable(models.front(), other);
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  const std::unique_ptr<model::Model> decoder = model::make_decoder(models.front().shape);
  for (const mesh::NamedTensor& one : into) one.tensor.zero_();
  for (size_t k = 0; k < models.size(); ++k)
    models[k].visit(decoder->parameters(), [&](size_t i, const at::Tensor& whole) {
      check_finite(whole, models[k].weights.path(), into[i].name);
      into[i].tensor.add_(whole.to(at::kFloat), weights[k] / sum);
    });
}

MergedModel merge_folders(const std::vector<std::string>& folders, const std::vector<double>& weights, const std::string& out,
                          const ExportOptions& options, const base::Disk& disk, base::Log& log) {
  std::vector<Pretrained> models;
  for (const std::string& folder : folders) models.push_back(open_pretrained(folder, log));
  const auto decoder = model::make_decoder(models.front().shape);
  MergedModel merged{models.front().shape, decoder->layout().views(at::empty({decoder->elements()}))};
  merge_models(models, weights, merged.parameters);
  write_pretrained(out, merged.shape, merged.parameters, models.front().texts, options, disk);
  return merged;
}

}  // namespace cairn::snapshot
