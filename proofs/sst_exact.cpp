// What sparse spectral training computes, to rounding: formulas, layouts, interruptions, bytes, restarts.
#include <algorithm>
#include <cmath>
#include <functional>

#include <fmt/format.h>

#include "base/random.h"
#include "base/stop.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "kernels/fill_normal.h"
#include "mesh/flat_gradients.h"
#include "model/decoder/decoder.h"
#include "model/decoder/spectral_weight.h"
#include "model/formed_weights.h"
#include "model/model.h"
#include "model/objective.h"
#include "parallel/pass.h"
#include "proofs/sst_parts.h"
#include "train/build.h"
#include "train/build/batches.h"
#include "train/evaluate.h"
#include "train/take_step.h"

namespace cairn::study {
namespace {

// Small rounds, so that a few steps see several.
Assignments short_rounds(const Assignments& more = {}) {
  Assignments sets{"model.spectral.rank=6",         "model.spectral.iteration_steps=4", "model.spectral.round_iterations=2",
                   "model.spectral.warmup_steps=2", "optim.learning_rate=0.003",        "eval.every=0"};
  sets.insert(sets.end(), more.begin(), more.end());
  return sets;
}

void with_job(const base::Recipe& recipe, const std::function<void(train::Job&)>& act) {
  for (const std::exception_ptr& error : comm::LocalNetwork(1).run([&](comm::World& world) {
         const std::unique_ptr<train::Job> job = train::build(world, recipe, {}, {});
         act(*job);
       }))
    if (error) std::rethrow_exception(error);
}

void step(train::Job& job, int64_t count = 1) {
  for (int64_t i = 0; i < count; ++i) train::take_step(job), ++job.progress.steps_done;
}

// A spectral decoder in double, with its loss on random tokens.
class DoubleModel {
 public:
  DoubleModel(bool enhanced, model::SpectralPath path, uint64_t seed)
      : model_(
            model::make_decoder({.vocab = 19, .embed = 12, .layers = 2, .heads = 4, .kv_heads = 2, .head_dim = 4, .mlp = 16, .length = 9},
                                {}, model::make_spectral_rule({.rank = 3, .enhanced = enhanced, .path = path}))),
        layout_(model_->layout()),
        flat_(at::empty({layout_.elements}, at::kDouble)),
        buffers_(model_->make_buffers(at::kDouble)) {
    model::initialize_parameters(*model_, flat_, base::Random(seed));
    for (const model::WeightForm* form : model::weight_forms(*model_)) {
      const model::Parameter& dense = form->dense_parameter();
      const at::Tensor start = at::empty(dense.shape, at::kFloat);
      model::initialize_parameter(dense, start.view({-1}), base::Random(seed));
      form->start(start.mul_(5), [&](mesh::ParamId id) { return layout_.view(flat_, id); });
    }
    const base::Random random(seed);
    const at::Tensor tokens = at::empty({3, 9}, at::kLong), targets = at::empty({3, 9}, at::kLong);
    for (uint64_t i = 0; i < 27; ++i) {
      tokens.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(random.below(2 * i, 19));
      targets.mutable_data_ptr<int64_t>()[i] = static_cast<int64_t>(random.below(2 * i + 1, 19));
    }
    batch_.ids = at::arange(3);
    batch_.fields["tokens"] = {tokens};
    batch_.fields["targets"] = {targets};
  }

  double loss(mesh::Gradients* into = nullptr) {
    const model::FlatWeights weights(layout_, flat_);
    const mesh::Axes alone;
    return parallel::execute({.model = *model_,
                              .at = weights,
                              .buffers = buffers_,
                              .axes = alone,
                              .batch = batch_,
                              .objective = *model::make_next_token(),
                              .into = into,
                              .weight = 1})
        .sum.item<double>();
  }
  at::Tensor gradient() {
    mesh::FlatGradients sink(layout_, at::zeros_like(flat_), model_->uses());
    sink.begin(1, nullptr);
    loss(&sink);
    sink.finish();
    return sink.flat();
  }
  at::Tensor view(const at::Tensor& flat, int32_t parameter) const { return layout_.view(flat, {parameter}); }
  const at::Tensor& flat() const { return flat_; }
  std::vector<model::SpectralLayer> layers() const { return model::spectral_layers(*model_); }

 private:
  std::unique_ptr<model::Model> model_;
  mesh::FlatLayout layout_;
  at::Tensor flat_;
  model::Buffers buffers_;
  mesh::Batch batch_;
};

// b. Central differences along a random direction of one parameter, against its gradient.
void against_differences(const ProofOptions& options, Findings& findings) {
  double worst = 0, ratio = 0;
  for (const model::SpectralPath path : {model::SpectralPath::factored, model::SpectralPath::dense}) {
    DoubleModel model(false, path, options.seed), enhanced(true, path, options.seed);
    const at::Tensor gradient = model.gradient().clone(), without = enhanced.gradient();
    for (const model::SpectralLayer& layer : model.layers()) {
      for (const int32_t parameter : {layer.s, layer.u, layer.v}) {
        const at::Tensor values = model.view(model.flat(), parameter), before = values.clone();
        const at::Tensor direction = at::empty(values.sizes(), at::kFloat);
        kernels::fill_normal(direction.view({-1}), base::Random(options.seed).for_index(static_cast<uint64_t>(parameter)), 0, 1);
        constexpr double kStep = 1e-5;
        values.add_(direction, kStep);
        const double up = model.loss();
        values.copy_(before).add_(direction, -kStep);
        const double difference = (up - model.loss()) / (2 * kStep);
        values.copy_(before);
        const at::Tensor own = model.view(gradient, parameter);
        const double expected = (own * direction).sum().item<double>(), scale = own.norm().item<double>() * direction.norm().item<double>();
        worst = std::max(worst, std::abs(difference - expected) / scale);
      }
      const at::Tensor s = model.view(model.flat(), layer.s).narrow(0, 0, layer.rank).unsqueeze(1);
      for (const int32_t parameter : {layer.u, layer.v}) {
        const at::Tensor derivative = model.view(gradient, parameter);
        ratio = std::max(ratio,
                         (model.view(without, parameter) - derivative / s).norm().item<double>() / (derivative / s).norm().item<double>());
      }
    }
  }
  findings.at_most("3b. gradients of s, U and V against central differences in double: largest deviation, relative", 0, worst, 1e-6);
  findings.at_most("3b. enhanced gradients against derivatives / s: largest deviation, relative", 0, ratio, 1e-5);
}

// a. Both paths, and the weights before and after a decomposition.
void same_function(const ProofOptions& options, const MarkovRuns& runs, const std::filesystem::path& start, Findings& findings) {
  const std::filesystem::path scratch = options.scratch;
  const auto losses = [&](const std::string& name, const Assignments& sets) {
    return train_layout({runs.recipe(start, 12, sets, options.seed), 1, scratch / name}).losses;
  };
  const std::vector<double> factored = losses("factored", short_rounds({"model.spectral.path=factored"})),
                            dense = losses("dense", short_rounds({"model.spectral.path=dense"})),
                            ordinary = losses("ordinary", {"optim.learning_rate=0.003", "eval.every=0"});
  findings.at_most("3a. factored against dense products: largest relative difference of losses", 0,
                   largest_relative_difference(factored, dense), 1e-5);
  findings.at_most("3a. U diag(s) V^T against the ordinary weights: relative difference of the first loss", 0,
                   std::abs(factored.front() - ordinary.front()) / ordinary.front(), 1e-5);
  with_job(runs.recipe(start, 40, short_rounds({"eval.samples=96"}), options.seed), [&](train::Job& job) {
    step(job, 8);
    const double before = train::evaluate_held_out(job).loss;
    for (const auto& one : job.between_steps) one->before_step(9);
    findings.at_most("3a. held-out loss before and after a decomposition: relative difference", before,
                     std::abs(train::evaluate_held_out(job).loss - before) / before, 1e-5);
  });
}

// c. All pairs active, plain gradient descent, one small step.
void first_order(const ProofOptions& options, const MarkovRuns& runs, const std::filesystem::path& start, Findings& findings) {
  const Assignments sets{"model.spectral.rank=48",
                         "model.spectral.enhanced=false",
                         "model.spectral.vector_lr_scale=1",
                         "model.spectral.s_lr_scale=1",
                         "model.spectral.warmup_steps=0",
                         R"(model.train=["*.spectral_*"])",
                         "optim.kind=sgd",
                         "optim.momentum=0",
                         "optim.nesterov=false",
                         "optim.weight_decay=0",
                         "optim.max_grad_norm=0",
                         "optim.learning_rate=0.003",
                         "optim.schedule=constant",
                         "optim.warmup_steps=0",
                         "eval.every=0"};
  with_job(runs.recipe(start, 20, sets, options.seed), [&](train::Job& job) {
    step(job, 4);
    const mesh::Batch batch = job.batches->make(train::batch_index(job, 5));
    const auto loss = [&] {
      const model::Losses found = job.step->evaluate(job.engine, batch);
      return found.sum.item<double>() / found.count.item<double>();
    };
    std::vector<at::Tensor> before;
    for (const mesh::NamedTensor& one : job.engine.trained.values) before.push_back(one.tensor.clone());
    const double was = loss();
    step(job);
    double predicted = 0;
    for (size_t i = 0; i < before.size(); ++i)
      predicted +=
          (job.engine.trained.gradients[i].tensor * (job.engine.trained.values[i].tensor - before[i])).to(at::kDouble).sum().item<double>();
    const double changed = loss() - was;
    findings.at_most("3c. all pairs, one small step of gradient descent: change of the loss over its first-order prediction, distance to 1",
                     predicted, std::abs(changed / predicted - 1), 0.03);
  });
}

// d, e, f. Ranks, a kill inside an iteration, unit vectors.
void layouts(const ProofOptions& options, const MarkovRuns& runs, const std::filesystem::path& start, Findings& findings) {
  constexpr int64_t kSteps = 18, kKilledAt = 6;  // three draws and two decompositions, and two steps more
  const std::filesystem::path scratch = options.scratch;
  const auto recipe = [&](const Assignments& sets) {
    base::Recipe one = runs.recipe(start, kSteps, short_rounds(sets), options.seed);
    one.set("snapshot.every", kKilledAt, "proof");
    return one;
  };
  const Trained alone = train_layout({recipe({}), 1, scratch / "one-rank"});
  for (const auto& [name, ranks, sets] :
       std::vector<std::tuple<std::string, int, Assignments>>{{"dp=2", 2, {"mesh.dp=2"}},
                                                              {"dp=4", 4, {"mesh.dp=4"}},
                                                              {"dp=4 with ZeRO 3", 4, {"mesh.dp=4", "memory.zero=3"}},
                                                              {"tp=2", 2, {"mesh.tp=2"}},
                                                              {"pp=2", 2, {"mesh.pp=2", "train.micro_batch=24"}}})
    findings.at_most("3d. " + name + " against one rank over two rounds: largest relative difference of losses", 0,
                     largest_relative_difference(train_layout({recipe(sets), ranks, scratch / ("layout " + name)}).losses, alone.losses),
                     1e-5);
  copy_up_to(scratch / "one-rank", scratch / "resumed", kKilledAt);
  const Trained resumed = train_layout({recipe({}), 1, scratch / "resumed", true});
  double differ = largest_difference(resumed.parameters, alone.parameters);
  differ = std::max(differ, largest_difference(resumed.optimizer, alone.optimizer));
  const Tensors factors = snapshot_tensors(scratch / "one-rank", "forms");
  differ = std::max(differ, largest_difference(snapshot_tensors(scratch / "resumed", "forms"), factors));
  findings.at_most("3e. killed inside an iteration and resumed: largest difference of factors, other parameters and moments", 0, differ, 0);
  double length = 0, least = 1;
  for (const auto& [name, tensor] : factors) {
    if (name.ends_with("spectral_s"))
      least = std::min(least, tensor.min().item<double>());
    else
      length = std::max(length, (tensor.to(at::kDouble).square().sum(1).sqrt() - 1).abs().max().item<double>());
  }
  findings.at_most("3f. length of a vector, largest distance to 1", 1, length, 1e-6);
  findings.at_least("3f. least singular value", 0, least, 0);
}

// Bytes of state and of messages, and gradients right after a restart.
void bytes_and_restarts(const ProofOptions& options, const MarkovRuns& runs, const std::filesystem::path& start, Findings& findings) {
  double state = 0, gradients = 0, smallest = 1e300;
  const auto of_layer = [](const std::string& name, const model::SpectralLayer& layer) {
    const std::string base = layer.name.substr(0, layer.name.rfind('.') + 1) + "spectral_";
    return name.find(base) != std::string::npos;
  };
  with_job(runs.recipe(start, 40, short_rounds(), options.seed), [&](train::Job& job) {
    step(job, 5);  // the last one begins an iteration
    for (const model::SpectralLayer& layer : model::spectral_layers(*job.engine.model)) {
      const auto expected = static_cast<double>(8 * (layer.values + layer.rank * (layer.in + layer.out)));
      double found = 0, summed = 0;
      for (const mesh::NamedTensor& one : job.engine.optimizer->state())
        if (of_layer(one.name, layer)) found += static_cast<double>(one.tensor.nbytes());
      for (const mesh::NamedTensor& one : job.engine.trained.gradients) {
        if (!of_layer(one.name, layer)) continue;
        summed += static_cast<double>(one.tensor.nbytes());
        if (!one.name.ends_with("spectral_s")) smallest = std::min(smallest, one.tensor.norm().item<double>());
      }
      state = std::max(state, std::abs(found - expected));
      gradients = std::max(gradients, std::abs(summed - expected / 2));
    }
  });
  findings.at_most("4. optimizer state of a layer, difference to 8 (k + r (m + n)) bytes", 0, state, 0);
  findings.at_most("4. its gradients, difference to half of that", 0, gradients, 0);
  const auto sent = [&](const Assignments& sets) {
    Assignments all = sets;
    all.insert(all.end(), {"mesh.dp=2", "snapshot.every=0", "eval.every=0"});
    const RunStats found = collect_stats({runs.recipe(start, 40, all, options.seed), 2, 1});
    double most = 0;
    for (const RankStats& rank : found.ranks)
      most = std::max(most, static_cast<double>(rank.sent.at(comm::Purpose::gradient) + rank.sent.at(comm::Purpose::parameter)));
    return most;
  };
  int64_t trained = 0;
  with_job(runs.recipe(start, 40, short_rounds(), options.seed), [&](train::Job& job) {
    for (const mesh::NamedTensor& one : job.engine.trained.values) trained += one.tensor.numel();
  });
  const double share = sent(short_rounds()) / static_cast<double>(4 * trained);
  findings.at_most("4. dp=2: gradients and parameters that a rank sends in a step, of the trained ones", 1, share, 1.001);
  findings.at_least("4. dp=2: the same, so that all trained ones are sent", 1, share, 0.999);

  double restarted = 0;
  const Assignments lora{"model.adapter.kind=lora", "model.adapter.rank=6", "optim.learning_rate=0.003", "eval.every=0"};
  with_job(runs.recipe(start, 40, lora, options.seed), [&](train::Job& job) {
    step(job);
    for (const mesh::NamedTensor& one : job.engine.trained.gradients)
      if (one.name.find("lora_A") != std::string::npos) restarted = std::max(restarted, one.tensor.norm().item<double>());
  });
  findings.at_most("2. gradient norm of LoRA's A right after a restart, largest of the layers", 0, restarted, 0);
  findings.at_least("2. gradient norm of active vectors right after a draw, smallest of the layers", restarted, smallest, 1e-12);
}

}  // namespace

void prove_spectral_exactness(const ProofOptions& options, const MarkovRuns& runs, const std::filesystem::path& start, Findings& findings) {
  same_function(options, runs, start, findings);
  against_differences(options, findings);
  first_order(options, runs, start, findings);
  layouts(options, runs, start, findings);
  bytes_and_restarts(options, runs, start, findings);
}

}  // namespace cairn::study
