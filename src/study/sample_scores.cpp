// Scores of a row of logits z with target t, from sums that ranks along tp add up. With m = max z, q = exp(z - m), S = sum q:
//
//   loss = log S - (z_t - m),   el2n^2 = sum q^2 / S^2 - 2 q_t / S + 1,   entropy = log S - sum q (z - m) / S
#include "study/sample_scores.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <set>
#include <utility>

#include <ATen/core/IListRef.h>
#include <fmt/format.h>

#include "base/check.h"
#include "base/random.h"
#include "comm/group.h"
#include "data/batch_split.h"
#include "kernels/aten.h"
#include "kernels/cross_entropy.h"
#include "model/classifier/batch_norm.h"
#include "model/losses/row_losses.h"
#include "model/model.h"
#include "model/trainable.h"
#include "parallel/layout/model_shard.h"
#include "parallel/pass.h"
#include "train/job.h"

namespace cairn::study {
namespace {

constexpr int64_t kScoredRowsAtOnce = 4096;

enum Column { kLoss, kEl2n, kEntropy, kCorrect, kTargets, kSquares, kColumns };

// Computes the scores of a pass, and lets the model's own objective make the gradient.
class ScoringObjective final : public model::Objective {
 public:
  ScoringObjective(const model::Objective& own, bool probabilities) : own_(own), probabilities_(probabilities) {}

  Separates separates() const override { return own_.separates(); }

  model::Losses evaluate(model::Values& outputs, const mesh::Batch& batch, model::Values* gradients, double weight,
                         const mesh::Axes& axes) const override {
    const model::Value& logits = outputs.value("logits");
    const auto of = batch.fields.find("targets");
    const at::Tensor targets = (of == batch.fields.end() ? batch.field("labels") : of->second.tensor).reshape({-1});
    const at::Tensor rows = logits.tensor.view({-1, logits.tensor.size(-1)});
    comm::Group* const tp = model::is_vocab_parallel(logits, axes) ? axes.find("tp") : nullptr;
    int64_t begin = 0;
    if (tp) {
      const mesh::Placement::How how = logits.placement.on("tp");
      const auto& mine = std::get<mesh::Split>(how).pieces.at(static_cast<size_t>(tp->rank()));
      begin = mine.empty() ? 0 : mine.front().begin;
    }
    std::vector<at::Tensor> parts;
    for (int64_t first = 0; first < rows.size(0); first += kScoredRowsAtOnce) {
      const int64_t count = std::min(kScoredRowsAtOnce, rows.size(0) - first);
      parts.push_back(scores_of(rows.narrow(0, first, count), targets.narrow(0, first, count), begin, tp));
    }
    const at::Tensor by_row = at::cat(at::TensorList(parts), 1);  // [kSquares, rows]
    found = by_row.view({kSquares, batch.samples(), -1}).sum(2).t().to(at::kCPU, at::kDouble).contiguous();
    if (probabilities_) log_probabilities = rows.to(at::kDouble).log_softmax(1).cpu();
    return own_.evaluate(outputs, batch, gradients, weight, axes);
  }

  mutable at::Tensor found;              // [samples, kSquares]: sums over targets
  mutable at::Tensor log_probabilities;  // [samples, classes]

 private:
  static at::Tensor scores_of(const at::Tensor& rows, const at::Tensor& targets, int64_t begin, comm::Group* tp) {
    const at::Tensor z = rows.to(at::kFloat), counts = targets.ne(kernels::kIgnoreTarget);
    const at::Tensor largest = z.amax(1);
    if (tp) tp->all_reduce(largest, comm::Reduce::max, {comm::Purpose::loss, "largest logits"}).wait();
    const at::Tensor shifted = z - largest.unsqueeze(1), q = shifted.exp();
    const at::Tensor local = targets - begin, here = counts.logical_and(local.ge(0)).logical_and(local.lt(z.size(1)));
    const at::Tensor place = local.masked_fill(here.logical_not(), 0).unsqueeze(1);
    const at::Tensor target = shifted.gather(1, place).squeeze(1).masked_fill(here.logical_not(), 0);
    const at::Tensor sums = at::stack(at::TensorList{q.sum(1), q.square().sum(1), (q * shifted).sum(1), target});
    if (tp) tp->all_reduce(sums, comm::Reduce::sum, {comm::Purpose::loss, "sums over the vocabulary"}).wait();
    const at::Tensor log_sum = sums[0].log(), loss = log_sum - sums[3];
    const at::Tensor el2n = (sums[1] / sums[0].square() - sums[3].exp() / sums[0] * 2 + 1).clamp_min(0).sqrt();
    const at::Tensor entropy = log_sum - sums[2] / sums[0], correct = sums[3].ge(0).to(at::kFloat);
    return at::stack(at::TensorList{loss, el2n, entropy, correct, at::full_like(loss, 1)}) * counts.to(at::kFloat);
  }

  const model::Objective& own_;
  bool probabilities_;
};

void check_layout(const train::Job& job, const ScoreOptions& options) {
  const mesh::Mesh& mesh = job.config.plan.mesh;
  for (const char* axis : {"pp", "cp"})
    if (mesh.extent(axis) > 1)
      base::fail_input("mesh.{} = {}: samples cannot be scored under it yet. Use mesh.dp or mesh.tp.", axis, mesh.extent(axis));
  if (!job.config.settings.data.needs().is_text() && job.config.settings.data.needs().tokens)
    base::fail_input("data.kind = {}: its samples have no scores. Use text or a table.", job.config.settings.data.kind);
  if (options.projection.dim <= 0 || options.projection.dim % mesh::kProjectionBlock != 0)
    base::fail_input("study.vectors.dim = {}: must be a multiple of {}. Use 1024.", options.projection.dim, mesh::kProjectionBlock);
}

// The layer of a parameter: "model.layers.3.self_attn.q_proj.lora_a" and "layers.3.weight" are of layer 3; -1: of none.
int64_t layer_of(const std::string& name) {
  const size_t at = name.find("layers.");
  const size_t h = name.find("h.");  // GPT-2
  const size_t begin = at != std::string::npos                                    ? at + 7
                       : h == 0 || (h != std::string::npos && name[h - 1] == '.') ? h + 2
                                                                                  : std::string::npos;
  if (begin == std::string::npos || begin >= name.size() || !std::isdigit(static_cast<unsigned char>(name[begin]))) return -1;
  return std::stoll(name.substr(begin));
}

// The last layer of a classifier, its head, counts as a layer too.
int64_t layer_or_head(const model::Parameter& parameter, int64_t layers, bool classifier) {
  const int64_t layer = layer_of(parameter.name);
  return layer < 0 && classifier && parameter.name.starts_with("head.") ? layers : layer;
}

std::vector<mesh::SampledParameter> sampled_parameters(const train::Job& job, const std::vector<bool>& chosen) {
  std::vector<mesh::SampledParameter> all;
  const auto& parameters = job.engine.model->parameters();
  const std::vector<parallel::ParameterShard>& shards = job.engine.store->shard().parameters;
  const comm::Group* const tp = job.engine.axes.find("tp");
  bool taken = false;
  for (size_t i = 0; i < parameters.size(); ++i) {
    mesh::SampledParameter one{.chosen = chosen[i], .name = parameters[i].name, .shape = parameters[i].shape};
    one.part = shards[i].local_shard;
    one.summed = tp != nullptr && one.part.boxes() == std::vector<mesh::Box>{mesh::whole(one.shape)};
    one.counts = !one.summed || tp->rank() == 0;
    // Inputs along the width of the hidden states, all of them here.
    const bool whole_inputs = one.shape.size() == 2 && one.part.local_shape()[1] == one.shape[1];
    one.hidden_inputs = chosen[i] && !taken && whole_inputs && parameters[i].name.find("lora_b") == std::string::npos;
    taken = taken || one.hidden_inputs;
    all.push_back(std::move(one));
  }
  return all;
}

// Whether this rank reports the samples that it computes: of ranks along tp, which compute the same, the first.
bool reports(const train::Job& job) {
  const comm::Group* const tp = job.engine.axes.find("tp");
  return !tp || tp->rank() == 0;
}

void sum_over_ranks(const train::Job& job, const at::Tensor& table) {
  if (job.engine.step_group->size() > 1)
    job.engine.step_group->all_reduce(table, comm::Reduce::sum, {comm::Purpose::state, "scores of samples"}).wait();
}

// What the ranks fill in, row by row; zero elsewhere.
struct Tables {
  at::Tensor scores, vectors, hidden, probabilities;
};

void put(at::Tensor& table, int64_t rows, int64_t first, const at::Tensor& part) {
  if (!part.defined()) return;
  if (!table.defined()) table = at::zeros(at::IntArrayRef{rows, part.size(1)}, part.options().device(at::kCPU));
  table.narrow(0, first, part.size(0)).copy_(part);
}

// Ranks without samples do not know the width of a table.
void agree_on_width(const train::Job& job, at::Tensor& table, int64_t rows, at::ScalarType dtype) {
  if (job.engine.step_group->size() == 1) return;
  const at::Tensor width = at::full({1}, table.defined() ? table.size(1) : 0, at::kLong);
  job.engine.step_group->all_reduce(width, comm::Reduce::max, {comm::Purpose::state, "width of scores"}).wait();
  if (!table.defined() && width.item<int64_t>() > 0) table = at::zeros(at::IntArrayRef{rows, width.item<int64_t>()}, dtype);
}

void leave_out(mesh::Batch& batch, const std::vector<int64_t>& columns) {
  const at::Tensor features = batch.field("features").clone();
  for (const int64_t one : columns) features.select(1, one).zero_();
  batch.fields["features"].tensor = features;
}

// R z for one direction of the chosen parameters, and the direction itself by parameter.
struct Direction {
  at::Tensor projected;
  std::vector<at::Tensor> by_parameter;
};

Direction direction(const train::Job& job, const std::vector<size_t>& chosen, const mesh::SampleProjection& projection,
                    const base::Random& random) {
  constexpr int64_t kEntriesAtOnce = 4096;
  Direction made{.projected = at::zeros({projection.dim}, at::kFloat), .by_parameter = {}};
  for (const size_t i : chosen) {
    const model::Parameter& parameter = job.engine.model->parameters()[i];
    const at::Tensor z = at::empty({parameter.elements()}, at::kFloat);
    random.for_name(parameter.name).fill_normal({z.data_ptr<float>(), static_cast<size_t>(z.numel())});
    for (int64_t first = 0; first < z.numel(); first += kEntriesAtOnce) {
      const int64_t count = std::min(kEntriesAtOnce, z.numel() - first);
      made.projected.add_(at::matmul(z.narrow(0, first, count),
                                     mesh::projection_rows(parameter.name, projection, at::arange(first, first + count, at::kLong))));
    }
    made.by_parameter.push_back(z.view(parameter.shape));
  }
  return made;
}

std::vector<double> column(const at::Tensor& table, int64_t which, bool by_target) {
  std::vector<double> values(static_cast<size_t>(table.size(0)));
  const auto rows = table.accessor<double, 2>();
  for (int64_t i = 0; i < table.size(0); ++i)
    values[static_cast<size_t>(i)] = rows[i][which] / (by_target ? std::max(1.0, rows[i][kTargets]) : 1);
  return values;
}

SampleScores to_scores(Tables tables, const ScoreOptions& options) {
  SampleScores found{.loss = column(tables.scores, kLoss, true),
                     .el2n = column(tables.scores, kEl2n, true),
                     .entropy = column(tables.scores, kEntropy, true),
                     .correct = column(tables.scores, kCorrect, true),
                     .targets = column(tables.scores, kTargets, false)};
  found.probabilities = tables.probabilities;
  if (!options.gradients) return found;
  for (size_t i = 0; i < found.targets.size(); ++i)
    found.grand.push_back(std::sqrt(tables.scores[static_cast<int64_t>(i)][kSquares].item<double>()) / std::max(1.0, found.targets[i]));
  const at::Tensor finite = tables.vectors.isfinite().all(1);
  found.not_finite = finite.numel() - finite.sum().item<int64_t>();
  const at::Tensor vectors = tables.vectors.nan_to_num(0, 0, 0);
  found.vectors = vectors / vectors.norm(2, 1, /*keepdim=*/true).clamp_min(1e-30);
  found.hidden = tables.hidden;
  return found;
}

}  // namespace

std::vector<bool> parameters_of_layer(const train::Job& job, const std::string& layer) {
  const auto& parameters = job.engine.model->parameters();
  const std::vector<bool> trained = model::trainable(*job.engine.model, job.config.settings.model.train);
  const bool classifier = !job.config.settings.data.needs().tokens;
  int64_t layers = 0;
  for (const model::Parameter& one : parameters) layers = std::max(layers, layer_of(one.name) + 1);
  const auto usable = [&](size_t i) {
    const model::Parameter& one = parameters[i];
    const bool matrix = one.shape.size() == 2 && one.role != model::Parameter::Role::embedding;
    const bool bias = one.role == model::Parameter::Role::bias && classifier && layer_or_head(one, layers, classifier) >= 0;
    return trained[i] && one.uses == 1 && (matrix || bias);
  };
  std::set<int64_t> all;
  for (size_t i = 0; i < parameters.size(); ++i)
    if (const int64_t at = layer_or_head(parameters[i], layers, classifier); at >= 0 && usable(i)) all.insert(at);
  if (all.empty()) base::fail_input("study.vectors.layer = {}: no layer has trained weights. Set model.train or model.lora.rank.", layer);
  int64_t wanted = -1;
  if (layer == "middle") {
    wanted = *std::next(all.begin(), static_cast<int64_t>(all.size()) / 2);
  } else if (layer == "last") {
    wanted = *all.rbegin();
  } else if (layer != "all") {
    const bool number = !layer.empty() && layer.size() < 6 && layer.find_first_not_of("0123456789") == std::string::npos;
    if (!number || all.count(std::stoll(layer)) == 0)
      base::fail_input("study.vectors.layer = {}: no trained weights there. Use middle, last, all, or a layer from {} to {}.", layer,
                       *all.begin(), *all.rbegin());
    wanted = std::stoll(layer);
  }
  std::vector<bool> chosen;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const int64_t at = layer_or_head(parameters[i], layers, classifier);
    chosen.push_back(usable(i) && at >= 0 && (wanted < 0 || at == wanted));
  }
  return chosen;
}

at::Tensor zero_order_vectors(train::Job& job, std::span<const int64_t> ids, const ScoreOptions& options, const ZeroOrder& how) {
  if (!job.assembly->trivial())
    base::fail_input("study.vectors.type = zero_order: parameters are sharded. Use mesh.dp without ZeRO, or type = sgd.");
  if (job.config.settings.layout.memory.parameters != memory::TierKind::device)
    base::fail_input("study.vectors.type = zero_order: it writes parameters in memory. Leave memory.parameters out, or use type = sgd.");
  const std::vector<bool> wanted = parameters_of_layer(job, options.layer);
  std::vector<size_t> chosen;
  std::vector<at::Tensor> values, before;
  for (const parallel::ParameterSlice& one : job.engine.store->pieces())
    if (wanted[one.parameter]) {
      chosen.push_back(one.parameter);
      values.push_back(one.value.view(job.engine.model->parameters()[one.parameter].shape));
      before.push_back(values.back().clone());
    }
  at::Tensor vectors = at::zeros({static_cast<int64_t>(ids.size()), options.projection.dim}, at::kFloat);
  const base::Random random = base::Random(how.seed).for_purpose("zero_order");
  for (int64_t k = 0; k < how.directions; ++k) {
    const Direction z = direction(job, chosen, options.projection, random.for_index(static_cast<uint64_t>(k)));
    at::Tensor slopes = at::zeros({static_cast<int64_t>(ids.size())}, at::kDouble);
    for (const double sign : {1.0, -1.0}) {
      for (size_t i = 0; i < values.size(); ++i) values[i].copy_(before[i] + z.by_parameter[i].to(before[i].options()) * (sign * how.size));
      job.engine.store->updated();
      const std::vector<double> losses = score_samples(job, ids).loss;
      for (size_t s = 0; s < losses.size(); ++s) slopes.data_ptr<double>()[s] += sign * losses[s] / (2 * how.size);
    }
    vectors.addr_(slopes.to(at::kFloat), z.projected);
  }
  for (size_t i = 0; i < values.size(); ++i) values[i].copy_(before[i]);
  job.engine.store->updated();
  return vectors / vectors.norm(2, 1, /*keepdim=*/true).clamp_min(1e-30);
}

SampleScores score_samples(train::Job& job, std::span<const int64_t> ids, const ScoreOptions& options) {
  check_layout(job, options);
  train::Engine& engine = job.engine;
  const auto total = static_cast<int64_t>(ids.size());
  const ScoringObjective scoring(*engine.objective, options.probabilities);
  comm::Group* const tp = engine.axes.find("tp");
  std::optional<mesh::SampleGradients> sink;
  if (options.gradients)
    sink.emplace(sampled_parameters(job, parameters_of_layer(job, options.layer)), options.projection, [tp](const at::Tensor& part) {
      if (tp) tp->all_reduce(part, comm::Reduce::sum, {comm::Purpose::gradient, "gradients of samples"}).wait();
    });
  model::PassOptions pass_options = engine.options;
  pass_options.draws_by_token = false;  // scores do not depend on chance
  Tables tables;
  tables.scores = at::zeros({total, kColumns}, at::kDouble);
  const data::BatchRange mine = job.shares.within_step_group(total);
  const int64_t most = (total + job.shares.step_group_ranks - 1) / job.shares.step_group_ranks;
  const int64_t at_once = std::max<int64_t>(engine.micro_batching.samples, job.config.settings.data.needs().tokens ? 1 : 256);
  for (const data::BatchRange& part : data::micro_batches(mine.count, at_once, most)) {
    const int64_t first = mine.first + part.first;
    mesh::Batch batch =
        mesh::to_device(job.batches->fill(ids.subspan(static_cast<size_t>(first), static_cast<size_t>(part.count))), job.config.device);
    if (!options.zeroed.empty()) leave_out(batch, options.zeroed);
    const parallel::Pass like = train::pass_over(engine, batch);
    if (sink) {
      const auto of = batch.fields.find("targets");
      sink->begin(part.count, job.config.device, of == batch.fields.end() ? at::Tensor() : of->second.tensor.ne(kernels::kIgnoreTarget));
    }
    parallel::execute({.model = like.model,
                       .at = like.at,
                       .buffers = like.buffers,
                       .axes = like.axes,
                       .batch = batch,
                       .objective = scoring,
                       .into = sink ? &*sink : nullptr,
                       .options = pass_options,
                       .progress = like.progress});
    if (part.count == 0) continue;
    at::Tensor vectors = sink ? sink->projected() : at::Tensor(), squares = sink ? sink->squares() : at::Tensor();
    if (sink && tp) {  // sums over shards of parameters
      tp->all_reduce(vectors, comm::Reduce::sum, {comm::Purpose::gradient, "projected gradients"}).wait();
      tp->all_reduce(squares, comm::Reduce::sum, {comm::Purpose::gradient, "norms of gradients"}).wait();
    }
    if (!reports(job)) continue;
    tables.scores.narrow(0, first, part.count).narrow(1, 0, kSquares).copy_(scoring.found);
    if (sink) tables.scores.narrow(0, first, part.count).select(1, kSquares).copy_(squares);
    put(tables.vectors, total, first, vectors);
    put(tables.hidden, total, first, sink ? sink->inputs() : at::Tensor());
    put(tables.probabilities, total, first, scoring.log_probabilities);
  }
  if (sink) model::commit_batch_norms(engine.buffers, /*skipped=*/true, {});
  sum_over_ranks(job, tables.scores);
  for (auto& [table, dtype] : {std::pair<at::Tensor*, at::ScalarType>{&tables.vectors, at::kFloat},
                               {&tables.hidden, at::kFloat},
                               {&tables.probabilities, at::kDouble}}) {
    agree_on_width(job, *table, total, dtype);
    if (table->defined()) sum_over_ranks(job, *table);
  }
  return to_scores(std::move(tables), options);
}

}  // namespace cairn::study
