// MoSA: adapters in disjoint random modules that take turns in training, and one ordinary adapter in the end. The controls are the ordinary
// adapter, and the ordinary adapter with the same term between two dropout passes.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <mutex>

#include <fmt/format.h>

#include "base/files/disk.h"
#include "base/log.h"
#include "base/metrics.h"
#include "kernels/aten.h"
#include "kernels/fill_normal.h"
#include "mesh/flat_gradients.h"
#include "model/decoder/adapter_matrix.h"
#include "model/decoder/decoder.h"
#include "model/model.h"
#include "parallel/pass.h"
#include "proofs/markov_runs.h"
#include "proofs/mosa_parts.h"
#include "proofs/sampler_runs.h"
#include "proofs/study_tables.h"
#include "snapshot/adapter.h"
#include "snapshot/folder.h"
#include "snapshot/pretrained.h"
#include "study/claims.h"
#include "train/build/batches.h"
#include "train/evaluate.h"
#include "train/job.h"
#include "train/learning_rate.h"
#include "train/step_passes.h"
#include "train/train.h"

namespace cairn::study {
namespace {

double held_out_with(train::Job& job, int64_t module) {
  const int64_t before = std::exchange(job.engine.options.module, module);
  const double loss = train::evaluate_held_out(job).loss;
  job.engine.options.module = before;
  return loss;
}

// A matrix of a job's model as a pass computes with it that is told to use this module.
struct Computed {
  at::Tensor weight, bias;
};
Computed computed(train::Job& job, const model::AdapterMatrix& matrix, int64_t module) {
  model::PassOptions options = job.engine.options;
  options.module = module;
  const model::Call call{.weights = job.engine.store->weights(),
                         .buffers = job.engine.buffers,
                         .axes = job.engine.axes,
                         .needs = {false, false},
                         .options = options};
  return {matrix.weight(call).clone(), matrix.bias(call).clone()};
}

// 1a, 1b and 2, on a trained model.
void modules_of(train::Job& job, Findings& findings) {
  const model::AdapterShape shape = job.config.settings.adapter.shape();
  double uncovered = 0, unequal = 0, apart = 0, outputs = 0, outside = 0, matrices = 0;
  for (const auto& [matrix, order] : split_matrices(*job.engine.model, shape)) {
    ++matrices;
    std::vector<int64_t> owners(order.size(), 0), owner(order.size(), -1);
    int64_t at = 0, most = 0, least = static_cast<int64_t>(order.size());
    for (int64_t n = 0; n < matrix.modules(); ++n) {
      most = std::max(most, matrix.module_elements(n)), least = std::min(least, matrix.module_elements(n));
      for (const int64_t end = at + matrix.module_elements(n); at < end; ++at)
        ++owners[static_cast<size_t>(order[static_cast<size_t>(at)])], owner[static_cast<size_t>(order[static_cast<size_t>(at)])] = n;
    }
    uncovered += static_cast<double>(std::count_if(owners.begin(), owners.end(), [](int64_t count) { return count != 1; }));
    unequal = std::max(unequal, static_cast<double>(most - least));
    const Computed merged = computed(job, matrix, model::kModulesByPass);
    at::Tensor sum = at::zeros_like(merged.weight), bias = at::zeros_like(merged.bias);
    const at::Tensor h = at::empty({64, merged.weight.size(1)});
    kernels::fill_normal(h.view({-1}), base::Random(1), 0, 1);
    at::Tensor mean = at::zeros({64, merged.weight.size(0)});
    for (int64_t n = 0; n < matrix.modules(); ++n) {
      const Computed one = computed(job, matrix, n);
      sum += one.weight, bias += one.bias;
      mean += at::matmul(h, one.weight.t()) / static_cast<double>(matrix.modules());
      const at::Tensor flat = one.weight.reshape({-1}).contiguous();
      for (size_t i = 0; i < owner.size(); ++i) outside += owner[i] != n && flat.const_data_ptr<float>()[i] != 0;
    }
    const auto modules = static_cast<double>(matrix.modules());
    apart = std::max(
        {apart, (merged.weight - sum / modules).abs().max().item<double>(), (merged.bias - bias / modules).abs().max().item<double>()});
    const at::Tensor expected = at::matmul(h, merged.weight.t());
    outputs = std::max(outputs, (mean - expected).abs().max().item<double>() / expected.abs().max().item<double>());
  }
  findings.at_least("1a. matrices in modules", 0, matrices, 1);
  findings.at_most("1a. their elements that belong to no module, or to several", 0, uncovered, 0);
  findings.at_most("1a. elements of the largest module beyond the smallest", 0, unequal, 1);
  findings.at_most("1b. the merged adapter against the mean of the sparse ones, largest difference of a parameter", 0, apart, 0);
  findings.at_most("1b. its outputs against the mean of theirs, relative", 0, outputs, 1e-6);
  findings.at_most("2. elements outside of its mask where a module is not zero, after training", 0, outside, 0);
}

// 1c. One module without the term between passes.
void one_module(const ProofOptions& options, const MarkovRuns& runs, const fs::path& base, Findings& findings) {
  const fs::path scratch = options.scratch;
  const auto trained = [&](const std::string& name, const Assignments& sets) {
    return train_layout({runs.recipe(base, 20, sets, options.seed), 1, scratch / name}).losses;
  };
  const std::vector<double> plain = trained("ordinary", adapter_keys("bottleneck"));
  const std::vector<double> one = trained("one-module", adapter_keys("mosa", {"model.adapter.modules=1", "model.adapter.consistency=0"}));
  findings.at_most("1c. one module without the term between passes, 20 steps: losses differ from the ordinary adapter's", 0,
                   static_cast<double>(one == plain ? 0 : 1), 0);
  const auto adapter = [&](const std::string& name) {
    Tensors all;
    base::Log quiet = base::Log::quiet();
    const snapshot::Pretrained opened = snapshot::open_pretrained((scratch / name).string(), quiet);
    for (const mesh::NamedTensor& tensor : opened.adapter->tensors) all[tensor.name] = tensor.tensor;
    return all;
  };
  findings.at_most("1c. and of the adapters, largest difference", 0, largest_difference(adapter("one-module"), adapter("ordinary")), 0);
}

// 1d. What the published code keeps: N dense copies of each matrix, with masked gradients, each a parameter with moments and a step count
// of its own. Written here once more, with the batches and draws of the product.
class DenseCopies {
 public:
  DenseCopies(const fs::path& base, const model::AdapterShape& adapter) {
    base::Log quiet = base::Log::quiet();
    model::AdapterShape ordinary = adapter;
    ordinary.kind = model::AdapterKind::bottleneck, ordinary.modules = 1;
    model::DecoderShape shape = snapshot::open_pretrained(base.string(), quiet).shape;
    model_ = model::make_decoder(shape, ordinary);
    layout_ = model_->layout();
    flat_ = at::zeros({layout_.elements});
    buffers_ = model_->make_buffers(at::kFloat);
  }

  // The values before the first step, by name of the parameter; those of modules stand for their copies, which begin at zero.
  void start(const Tensors& values) {
    for (const mesh::NamedTensor& one : layout_.views(flat_))
      if (values.contains(one.name)) one.tensor.copy_(values.at(one.name));
  }

  void train(train::Job& job, int64_t steps) {
    const model::AdapterShape shape = job.config.settings.adapter.shape();
    const std::vector<SplitMatrix> split = split_matrices(*job.engine.model, shape);
    const std::vector<bool> trained = trained_parameters();
    for (int64_t step = 1; step <= steps; ++step) {
      std::map<std::string, int64_t> drawn;
      const base::Random random = job.engine.random.for_index(static_cast<uint64_t>(step));
      for (const auto& [matrix, order] : split) {
        const int64_t n = drawn[matrix.name()] = model::drawn_module(random, matrix.name(), matrix.modules());
        for (const char* part : {".weight", ".bias"})
          if (Copy& copy = copy_of(matrix.name() + part, n); copy.value.defined()) view(matrix.name() + part).copy_(copy.value);
      }
      const at::Tensor gradients = gradients_of(job, step, random);
      for (size_t i = 0; i < trained.size(); ++i) {
        if (!trained[i]) continue;
        const model::Parameter& parameter = model_->parameters()[i];
        const std::string matrix = parameter.name.substr(0, parameter.name.rfind('.'));
        const at::Tensor value = layout_.view(flat_, {static_cast<int32_t>(i)});
        at::Tensor gradient = layout_.view(gradients, {static_cast<int32_t>(i)});
        if (const auto in_turn = drawn.find(matrix); in_turn != drawn.end()) {
          if (parameter.name.ends_with(".weight")) gradient = gradient * mask(split, matrix, in_turn->second).view(gradient.sizes());
          update(job, copy_of(parameter.name, in_turn->second), value, gradient, step, parameter.decays());
        } else {
          update(job, copies_[{parameter.name, 0}], value, gradient, step, parameter.decays());
        }
      }
    }
  }

  // Of all copies and other trained parameters, the largest difference to the job's.
  double largest_apart(train::Job& job) {
    double apart = 0;
    const std::vector<SplitMatrix> split = split_matrices(*job.engine.model, job.config.settings.adapter.shape());
    for (const auto& [matrix, order] : split)
      for (int64_t n = 0; n < matrix.modules(); ++n) {
        const Computed ours = computed(job, matrix, n);
        const auto difference = [&](const std::string& name, const at::Tensor& found) {
          const Copy& copy = copy_of(name, n);
          apart = std::max(apart, (copy.value.defined() ? found - copy.value : found).abs().max().item<double>());
        };
        difference(matrix.name() + ".weight", ours.weight), difference(matrix.name() + ".bias", ours.bias);
      }
    const std::vector<model::Parameter>& theirs = job.engine.model->parameters();
    for (size_t i = 0; i < theirs.size(); ++i)
      if (theirs[i].modules == 1 && theirs[i].role == model::Parameter::Role::adapter)
        apart =
            std::max(apart, (job.engine.store->weights().get({static_cast<int32_t>(i)}) - view(theirs[i].name)).abs().max().item<double>());
    return apart;
  }

 private:
  struct Copy {
    at::Tensor value, m, v;
    int64_t steps = 0;
  };
  Copy& copy_of(const std::string& name, int64_t module) {
    Copy& copy = copies_[{name, module}];
    if (!copy.value.defined()) copy.value = at::zeros_like(view(name));
    return copy;
  }
  at::Tensor view(const std::string& name) const {
    for (const mesh::NamedTensor& one : layout_.views(flat_))
      if (one.name == name) return one.tensor;
    return {};
  }
  std::vector<bool> trained_parameters() const {
    std::vector<bool> trained;
    for (const model::Parameter& one : model_->parameters()) trained.push_back(one.role == model::Parameter::Role::adapter);
    return trained;
  }
  static at::Tensor mask(const std::vector<SplitMatrix>& split, const std::string& name, int64_t module) {
    for (const auto& [matrix, order] : split) {
      if (matrix.name() != name) continue;
      const at::Tensor mask = at::zeros({static_cast<int64_t>(order.size())});
      int64_t at = 0;
      for (int64_t n = 0; n < module; ++n) at += matrix.module_elements(n);
      for (const int64_t end = at + matrix.module_elements(module); at < end; ++at)
        mask.mutable_data_ptr<float>()[order[static_cast<size_t>(at)]] = 1;
      return mask;
    }
    return {};
  }

  at::Tensor gradients_of(train::Job& job, int64_t step, const base::Random& random) {
    const data::BatchIndex index = train::batch_index(job, step);
    mesh::FlatGradients sink(layout_, at::empty({layout_.elements}), model_->uses());
    sink.begin(1, {});
    const model::FlatWeights weights(layout_, flat_);
    const std::unique_ptr<model::Objective> objective = model::make_next_token();
    const mesh::Axes alone;
    parallel::execute({.model = *model_,
                       .at = weights,
                       .buffers = buffers_,
                       .axes = alone,
                       .batch = job.batches->make(index),
                       .objective = *objective,
                       .into = &sink,
                       .weight = 1.0 / static_cast<double>(job.batches->counts(index).step_group_tokens),
                       .random = random});
    sink.finish();
    return sink.flat();
  }

  static void update(train::Job& job, Copy& copy, const at::Tensor& value, const at::Tensor& gradient, int64_t step, bool decays) {
    const optim::OptimOptions& o = job.config.settings.optim;
    const double rate = train::learning_rate_of(job, step, 1);
    if (!copy.m.defined()) copy.m = at::zeros_like(gradient), copy.v = at::zeros_like(gradient);
    const auto count = static_cast<double>(++copy.steps);
    copy.m.mul_(o.beta1).add_(gradient, 1 - o.beta1);
    copy.v.mul_(o.beta2).addcmul_(gradient, gradient, 1 - o.beta2);
    if (decays) value.mul_(1 - rate * o.weight_decay);
    const at::Tensor root = (copy.v / (1 - std::pow(o.beta2, count))).sqrt_().add_(o.eps);
    value.sub_(copy.m / (1 - std::pow(o.beta1, count)) / root * rate);
    if (copy.value.defined()) copy.value.copy_(value);
  }

  std::unique_ptr<model::Model> model_;
  mesh::FlatLayout layout_;
  at::Tensor flat_;
  model::Buffers buffers_;
  std::map<std::pair<std::string, int64_t>, Copy> copies_;
};

void dense_copies(const ProofOptions& options, const MarkovRuns& runs, const fs::path& base, Findings& findings) {
  constexpr int64_t kSteps = 50;
  const base::Recipe recipe = runs.recipe(base, kSteps,
                                          adapter_keys("mosa", {"model.adapter.consistency=0", "model.adapter.dropout=0", "eval.every=0",
                                                                "train.global_batch=8", "optim.max_grad_norm=0",
                                                                "optim.eps=1e-5"}),  // a gradient of rounding alone is no step
                                          options.seed);
  Tensors first;
  const train::RunHooks hooks{.at_begin =
                                  [&](train::Job& job) {
                                    const std::vector<model::Parameter>& all = job.engine.model->parameters();
                                    for (size_t i = 0; i < all.size(); ++i)
                                      first[all[i].name] = job.engine.store->weights().get({static_cast<int32_t>(i)}).clone();
                                  },
                              .at_end =
                                  [&](train::Job& job) {
                                    DenseCopies copies(base, job.config.settings.adapter.shape());
                                    copies.start(first);
                                    copies.train(job, kSteps);
                                    findings.at_most("1d. against N dense copies with masked gradients, 50 AdamW steps: largest difference",
                                                     0, copies.largest_apart(job), 1e-6);
                                  }};
  train_with(recipe, {}, hooks);
}

// 1e, 1f, and modules that are not drawn.
void same_everywhere(const ProofOptions& options, const MarkovRuns& runs, const fs::path& base, Findings& findings) {
  const fs::path scratch = options.scratch;
  const auto trained = [&](const std::string& name, int64_t steps, Assignments sets, int ranks = 1) {
    return train_layout({runs.recipe(base, steps, adapter_keys("mosa", sets), options.seed), ranks, scratch / name}).losses;
  };
  const std::vector<double> alone = trained("mosa-1", 12, {"snapshot.every=1", "snapshot.keep=20"});
  for (const auto& [ranks, sets] : std::vector<std::pair<int, Assignments>>{{2, {}}, {4, {}}, {4, {"memory.zero=3"}}})
    findings.at_most(
        fmt::format("1e. {} ranks{} against one: largest relative difference of losses", ranks, sets.empty() ? "" : " with ZeRO 3"), 0,
        largest_relative_difference(trained(fmt::format("mosa-{}-{}", ranks, sets.size()), 12, sets, ranks), alone), 1e-5);

  // What moved in each step, against what its passes draw.
  const auto adapter = [&](int64_t step) {
    Tensors all;
    const fs::path folder = fs::path(snapshot::step_folder(scratch / "mosa-1", step)) / "training";
    for (const mesh::NamedTensor& one : snapshot::read_snapshot_adapter(folder.string()).tensors) all[one.name] = one.tensor;
    return all;
  };
  double stray = 0, idle = 0, seen = 0;
  const train::RunHooks hooks{.at_end = [&](train::Job& job) {
    for (int64_t step = 2; step <= 12; ++step) {
      const Tensors before = adapter(step - 1), after = adapter(step);
      const base::Random random = job.engine.random.for_index(static_cast<uint64_t>(step));
      for (const model::Parameter& one : job.engine.model->parameters()) {
        if (one.modules == 1) continue;
        bool drawn = false;
        for (const uint64_t draw : {0, 1})
          drawn = drawn || model::drawn_module(train::random_of_pass(random, draw), one.module_of, one.modules) == one.module;
        const bool moved = !at::equal(before.at(one.name), after.at(one.name));
        stray += moved && !drawn, idle += drawn && !moved, ++seen;
      }
    }
  }};
  train_with(runs.recipe(base, 1, adapter_keys("mosa"), options.seed), {}, hooks);
  findings.at_least("modules and biases watched over 11 steps with decay and momentum", 0, seen, 1);
  findings.at_most("of these, that moved and no pass drew them", 0, stray, 0);
  findings.at_most("of these, that a pass drew and stood still", 0, idle, 0);

  base::Log quiet = base::Log::quiet();
  const snapshot::Pretrained opened = snapshot::open_pretrained((scratch / "mosa-1").string(), quiet);
  snapshot::write_adapter((scratch / "folded").string(), *opened.adapter, opened.shape, "base", base::real_disk());
  double folded = 0;
  Assignments plain{"model.adapter.from=" + (scratch / "folded").string(), "optim.learning_rate=0"};
  train_with(runs.recipe(base, 1, plain, options.seed), {},
             {.at_begin = [&](train::Job& job) { folded = train::evaluate_held_out(job).loss; }});
  const double merged = held_out_loss(scratch / "mosa-1");
  findings.at_most("1f. exported and loaded as an ordinary adapter: relative difference of the held-out loss", merged,
                   std::abs(folded - merged) / merged, 1e-6);
}

// One way to adapt, from one seed.
struct Adapted {
  double merged = 0, added_up = 0;
  std::vector<double> modules;
};

struct Arm {
  std::string name;
  Assignments keys;
  int64_t module = model::kModulesByPass;  // all passes compute with it, and the others are never trained
};

// So large a scale and rate that 300 steps fit the few sequences: a merged adapter that has hardly learned gains from being added up.
Assignments quick_keys(const std::string& kind, const Assignments& more = {}) {
  Assignments keys = adapter_keys(kind, {"model.adapter.scale=2", "optim.learning_rate=0.01"});
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

const std::vector<Arm>& arms() {
  static const std::vector<Arm> list{{"adapter", quick_keys("bottleneck")},
                                     {"fixed quarter mask", quick_keys("mosa", {"model.adapter.consistency=0"}), 0},
                                     {"MoSA", quick_keys("mosa")},
                                     {"MoSA without KL", quick_keys("mosa", {"model.adapter.consistency=0"})},
                                     {"adapter + KL", quick_keys("mosa", {"model.adapter.modules=1"})}};
  return list;
}

Adapted adapted(const MarkovRuns& runs, const fs::path& base, const Arm& arm, uint64_t seed, Findings* findings) {
  Assignments keys = arm.keys;
  keys.push_back("eval.every=0");
  Adapted found;
  const train::RunHooks hooks{.at_begin = [&](train::Job& job) { job.engine.options.module = arm.module; },
                              .at_end =
                                  [&](train::Job& job) {
                                    const int64_t modules = job.config.settings.adapter.shape().modules;
                                    found.merged = held_out_with(job, arm.module);
                                    if (modules == 1 || arm.module >= 0) return;
                                    found.added_up = held_out_with(job, model::kModulesAddedUp);
                                    for (int64_t n = 0; n < modules; ++n) found.modules.push_back(held_out_with(job, n));
                                    if (findings) modules_of(job, *findings);
                                  }};
  train_with(runs.recipe(base, 300, keys, seed), {}, hooks, data::Subset(0, kSequences));
  return found;
}

double deviation_of(const std::vector<double>& values) {
  const double mean = mean_of(values);
  double sum = 0;
  for (const double one : values) sum += (one - mean) * (one - mean);
  return std::sqrt(sum / static_cast<double>(values.size() - 1));
}

// 3 and 4. A decoder of one source of text, adapted to another with 100 sequences.
void merging(const ProofOptions& options, const MarkovRuns& runs, const fs::path& base, Findings& findings, base::Log& log) {
  const int seeds = options.full ? 5 : 3;
  std::map<std::string, std::vector<double>> losses;
  std::vector<double> added_up, single;
  std::mutex guard;
  const auto jobs = static_cast<int64_t>(arms().size()) * seeds;
  in_parallel(jobs, [&](int64_t job) {
    const Arm& arm = arms()[static_cast<size_t>(job) % arms().size()];
    const int64_t seed = job / std::ssize(arms());
    Findings* const checks = arm.name == "MoSA" && seed == 0 ? &findings : nullptr;  // of one job alone
    const Adapted found = adapted(runs, base, arm, options.seed + static_cast<uint64_t>(seed), checks);
    const std::lock_guard lock(guard);
    losses[arm.name].push_back(found.merged);
    if (arm.name == "MoSA") added_up.push_back(found.added_up), single.push_back(mean_of(found.modules));
  });
  const double merged = mean_of(losses.at("MoSA"));
  log.info("held-out loss, mean of {} seeds: merged {:.4f}, added up without 1/N {:.4f}, single modules {:.4f}", seeds, merged,
           mean_of(added_up), mean_of(single));
  findings.at_least(fmt::format("3. leaving out 1/N costs, nats, mean of {} seeds", seeds), merged, mean_of(added_up) - merged, 0.05);
  findings.at_least("3. single modules above the merged adapter, nats", merged, mean_of(single) - merged, 0);
  for (const Arm& arm : arms())
    log.info("3. reported, not asserted: {}: held-out loss {:.4f}, deviation over {} seeds {:.4f}", arm.name, mean_of(losses.at(arm.name)),
             seeds, deviation_of(losses.at(arm.name)));
  if (options.full)
    findings.at_most("4. deviation of the loss over seeds, MoSA to the ordinary adapter", deviation_of(losses.at("adapter")),
                     deviation_of(losses.at("MoSA")) / deviation_of(losses.at("adapter")), 1.2);
  else
    findings.skip("4. deviation of the loss over seeds, at most 1.2 times the ordinary adapter's", "needs five seeds: --full");
}

}  // namespace

void prove_mosa(const ProofOptions& options, Findings& findings, base::Log& log) {
  ProofOptions text = options;
  if (fs::is_directory(options.data)) text.data = "";  // pictures
  const MarkovRuns runs(text, log, {.layers = 3});
  const fs::path base = runs.base("base", 1000, {"optim.learning_rate=0.003"});
  one_module(text, runs, base, findings);
  dense_copies(text, runs, base, findings);
  same_everywhere(text, runs, base, findings);
  merging(text, runs, base, findings, log);
  mosa_of_pictures(options, log);
  findings.skip("H200. step time of a ViT-B/16, to the ordinary adapter's", "needs a GPU: --device cuda");
}

}  // namespace cairn::study
