// What is exact about supernets: a network that is cut out is the active one; sorting channels changes nothing; any number of ranks gives
// the same weights; one reduction of all gradients is that of each; nothing outside of a subnet has a gradient.
#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include <ATen/core/grad_mode.h>
#include <fmt/format.h>

#include "base/error.h"
#include "base/files.h"
#include "base/log.h"
#include "base/metrics.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "comm/world.h"
#include "data/batches.h"
#include "kernels/aten.h"
#include "mesh/flat_gradients.h"
#include "model/classifier/batch_norm.h"
#include "model/decoder/decoder.h"
#include "model/losses/distillation.h"
#include "model/vision/conv_config.h"
#include "parallel/pass.h"
#include "proofs/deps_toy.h"
#include "snapshot/pretrained.h"
#include "study/claims.h"
#include "study/supernet/supernet_run.h"
#include "train/build.h"
#include "train/evaluate.h"
#include "train/job.h"
#include "train/supernet/calibrate.h"
#include "train/supernet/subnet_space.h"

namespace cairn::study {
namespace {

const Assignments kConvSubnet{"train.steps=24", "supernet.shrink_at=0.5", "supernet.ramp=0.25"};

base::Recipe decoder_supernet(const ProofOptions& options, const Assignments& sets) {
  ProofOptions text = options;
  if (std::filesystem::is_directory(options.data)) text.data = "";  // pictures
  Assignments all{"supernet.shrink_at=0.5", "supernet.ramp=0.25"};
  all.insert(all.end(), sets.begin(), sets.end());
  return small_decoder(text, all);
}

void on_local_ranks(int ranks, const std::function<void(comm::World&)>& act) {
  for (const std::exception_ptr& error : comm::LocalNetwork(ranks).run(act))
    if (error) std::rethrow_exception(error);
}

at::Tensor forward_logits(const model::Model& model, const model::Weights& weights, model::Buffers& buffers, const mesh::Batch& batch,
                          const model::Subnet* subnet) {
  const at::NoGradGuard no_grad;
  const mesh::Axes alone;
  model::Values values;
  for (const auto& [name, field] : batch.fields) values.put(name, field.tensor);
  for (const auto& block : model.blocks())
    block->forward(values, nullptr, {.weights = weights, .buffers = buffers, .axes = alone, .needs = {false, false}, .subnet = subnet});
  return values.get("logits").clone();
}

mesh::Batch first_held_out(const train::Job& job, int64_t count) {
  std::vector<int64_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(job.data.samples->held_out().first + i);
  return job.batches->fill(ids);
}

double largest_apart(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

// A convolutional network out of its directory, with the statistics in it.
struct OpenedConvNet {
  std::unique_ptr<model::Model> model;
  at::Tensor flat;
  model::Buffers buffers;

  explicit OpenedConvNet(const std::filesystem::path& folder) {
    const std::string config = (folder / "config.json").string();
    model = model::make_conv_net(model::parse_conv_config(base::read_file(config, 1 << 20), config));
    flat = at::empty({model->elements()});
    buffers = model->make_buffers(at::kFloat);
    mesh::NamedTensors into = model->layout().views(flat);
    for (const mesh::NamedTensor& one : model::running_buffers(buffers)) into.push_back(one);
    snapshot::WeightFiles::open(folder.string()).load_into(into, {});
  }
};

// (a) of pictures.
double exported_conv_net(const ProofOptions& options, base::Log& log) {
  const std::filesystem::path run = std::filesystem::path(options.scratch) / "conv-run",
                              out = std::filesystem::path(options.scratch) / "conv-net";
  train_layout({.recipe = with(small_pictures(options, kConvSubnet), {"snapshot.last=true"}), .out = run});
  double apart = 0;
  on_local_ranks(1, [&](comm::World& world) {
    const SupernetRun from{.run = run};
    const std::unique_ptr<train::Job> job = open_supernet(world, from);
    const train::SubnetSpace space = train::subnet_space(*job);
    for (uint64_t i = 0; i < 3; ++i) {
      const model::Subnet subnet = i == 0 ? space.smallest() : space.draw(base::Random(options.seed).for_index(i));
      const std::string name = format_subnet(subnet, space.shape);
      const std::filesystem::path folder = out / std::to_string(i);
      base::make_folder(out);
      log.info("{}", export_subnet(world, from, name, folder.string(), "fp32", world.log()));
      OpenedConvNet opened(folder);
      const mesh::Batch batch = first_held_out(*job, 64);
      const train::ScopedSubnet active(*job, subnet, job->config.settings.model.supernet.calibration_samples);
      const at::Tensor expected = forward_logits(*job->engine.model, job->engine.store->weights(), job->engine.buffers, batch, &subnet);
      const model::FlatWeights weights(opened.model->layout(), opened.flat);
      apart = std::max(apart, largest_apart(forward_logits(*opened.model, weights, opened.buffers, batch, nullptr), expected));
    }
  });
  return apart;
}

// (a) of a decoder: an ordinary directory.
double exported_decoder(const ProofOptions& options, base::Log& log) {
  const std::filesystem::path run = std::filesystem::path(options.scratch) / "decoder-run",
                              out = std::filesystem::path(options.scratch) / "decoders";
  base::Recipe recipe = decoder_supernet(options, {"train.steps=12", "snapshot.last=true"});
  const int64_t layers = recipe.read(model::model_schema()).layers, mlp = recipe.read(model::model_schema()).mlp;
  recipe = with(std::move(recipe),
                {fmt::format("supernet.depth=[{}, {}]", layers - 1, layers), fmt::format("supernet.mlp=[{}, {}]", mlp / 2, mlp)});
  train_layout({.recipe = recipe, .out = run});
  double apart = 0;
  on_local_ranks(1, [&](comm::World& world) {
    base::make_folder(out);
    const SupernetRun from{.run = run};
    const snapshot::Pretrained whole = snapshot::open_pretrained(run.string(), world.log());
    const train::Settings settings = supernet_settings(from);
    const std::unique_ptr<train::Job> job = open_supernet(world, from);
    const mesh::Batch batch = first_held_out(*job, 4);
    for (const std::string& text : {fmt::format("{}:{}", layers - 1, mlp / 2), fmt::format("{}:{}", layers, mlp / 2)}) {
      const std::filesystem::path folder = out / fmt::format("{}", text.front());
      log.info("{}", export_subnet(world, from, text, folder.string(), "fp32", world.log()));
      const snapshot::Pretrained opened = snapshot::open_pretrained(folder.string(), world.log());
      const auto alone = model::make_decoder(opened.shape);
      const model::FlatWeights weights(alone->layout(), at::empty({alone->elements()}));
      opened.load_into(weights.layout().views(weights.flat()));
      model::Buffers buffers = alone->make_buffers(at::kFloat);
      const model::Subnet subnet = parse_subnet(text, job->engine.model->elastic());
      apart = std::max(
          apart, largest_apart(forward_logits(*alone, weights, buffers, batch, nullptr),
                               forward_logits(*job->engine.model, job->engine.store->weights(), job->engine.buffers, batch, &subnet)));
    }
  });
  return apart;
}

// The network of points, on which (b) and (c) are judged: at the rate of these runs the first steps of a network of pictures multiply
// rounding by twenty each.
base::Recipe cube_supernet(const ProofOptions& options, const Assignments& sets) {
  constexpr int64_t kFewPoints = 6000, kFewTestPoints = 600;
  const std::filesystem::path points = std::filesystem::path(options.scratch) / "few-points";
  if (!base::path_exists(points)) write_cube_points(points, options.seed, kFewPoints, kFewTestPoints);
  return cube_recipe(options, points, sets);
}

// (b) With sorted channels and without: the step before the small networks begin, and one more of the whole network alone.
void sorted_channels(const ProofOptions& options, Findings& findings) {
  const std::filesystem::path folder = options.scratch;
  // 24 steps: channels are sorted before the seventh, whose small networks still weigh 0. The eighth is not compared.
  Assignments sets = kConvSubnet;
  sets.push_back("eval.every=7");
  const auto run = [&](const char* name, bool sorts) {
    Assignments all = sets;
    all.push_back(fmt::format("supernet.reorganise={}", sorts));
    all.push_back("snapshot.every=7");
    const base::Recipe recipe = cube_supernet(options, all);
    train_layout({.recipe = recipe, .out = folder / name});
    copy_up_to(folder / name, folder / (std::string(name) + "-7"), 7);
    Trained left;
    for (const base::MetricsRow& row : base::read_metrics(folder / name / "metrics.jsonl")) {
      if (row.number("step") <= 7) left.losses.push_back(row.number("loss"));
      if (row.number("step") == 7) left.norms.push_back(row.number("eval_loss"));
    }
    left.parameters = snapshot_tensors(folder / (std::string(name) + "-7"), "model");
    left.optimizer = snapshot_tensors(folder / (std::string(name) + "-7"), "optimizer");
    return left;
  };
  const Trained sorted = run("sorted", true), plain = run("unsorted", false);
  findings.at_most("6. (b) channels sorted after step 6: loss of the whole network in step 7, difference", plain.losses.at(6),
                   std::abs(sorted.losses.at(6) - plain.losses.at(6)), 1e-5);
  findings.at_most("6. (b) one more step with the momentum that moved along: held-out loss, difference", plain.norms.at(0),
                   std::abs(sorted.norms.at(0) - plain.norms.at(0)), 1e-5);
  double moved = 0, sums = 0;
  for (const auto& [name, tensor] : plain.optimizer) {
    if (!name.starts_with("momentum.")) continue;
    moved = std::max(moved, largest_apart(sorted.optimizer.at(name), tensor));
    const double size = tensor.abs().sum().item<double>();
    sums = std::max(sums, std::abs(sorted.optimizer.at(name).abs().sum().item<double>() - size) / std::max(size, 1e-12));
  }
  findings.at_least("6. (b) momentum buffers in another order: largest difference of an element", 0, moved, 1e-6);
  findings.at_most("6. (b) and the same values: largest relative difference of a buffer's sum of magnitudes", 0, sums, 1e-4);
}

// (c) Batch norms see the 16 samples of one rank of four, or of one micro-batch of four.
void any_ranks(const ProofOptions& options, Findings& findings, base::Log& log) {
  const std::filesystem::path folder = options.scratch;
  Assignments sets = kConvSubnet;
  sets.insert(sets.end(), {"train.steps=20", "snapshot.last=true"});
  const auto apart = [&](const std::string& name, const base::Recipe& recipe) {
    const Trained one = train_layout({.recipe = with(recipe, {"train.micro_batch=16"}), .out = folder / (name + "-1")});
    const Trained four = train_layout({.recipe = recipe, .ranks = 4, .out = folder / (name + "-4")});
    return largest_difference(one.parameters, four.parameters);
  };
  findings.at_most("6. (c) 1 and 4 ranks after 20 steps: largest difference of a weight", 0, apart("points", cube_supernet(options, sets)),
                   1e-5);
  log.info("6. (c) 1 and 4 ranks after 20 steps on pictures (reported): largest difference of a weight {:.1e}",
           apart("pictures", small_pictures(options, sets)));
  Assignments decoders{"train.steps=20", "snapshot.last=true"};
  base::Recipe recipe = decoder_supernet(options, decoders);
  const int64_t mlp = recipe.read(model::model_schema()).mlp;
  recipe = with(std::move(recipe), {fmt::format("supernet.mlp=[{}, {}, {}]", mlp / 4, mlp / 2, mlp)});
  const Trained alone = train_layout({.recipe = recipe, .out = folder / "decoder-1"});
  const Trained several = train_layout({.recipe = recipe, .ranks = 4, .out = folder / "decoder-4"});
  findings.at_most("6. (c) a decoder on 1 and 4 ranks: largest relative difference of a loss", 0,
                   largest_relative_difference(alone.losses, several.losses), 1e-5);
}

// (d) and (e): the gradients of a step's passes on 4 ranks, summed before or after they are reduced.
void gradients_of_passes(const ProofOptions& options, Findings& findings) {
  double apart = 0, outside = 0, inside = 0;
  on_local_ranks(4, [&](comm::World& world) {
    const std::unique_ptr<train::Job> job =
        train::build(world, small_pictures(options, kConvSubnet), {.out = {}, .cache = {}, .terminal = nullptr}, {});
    const train::SubnetSpace space = train::subnet_space(*job);
    train::Engine& engine = job->engine;
    const mesh::Batch batch = job->batches->make({1, 0});
    const mesh::FlatLayout layout = engine.model->layout();
    const auto distillation = model::make_distillation(1, model::Objective::Separates::samples);
    std::vector<model::Subnet> subnets{space.whole(), space.smallest(), space.draw(base::Random(3)), space.draw(base::Random(4))};
    const std::vector<double> weights{1, 0.7, 0.7, 0.7};
    // The whole network's logits, as the others read them.
    model::Buffers buffers = engine.model->make_buffers(at::kFloat);
    mesh::Batch taught = batch;
    {
      model::PassOptions statistics;
      statistics.batch_statistics = true;
      const mesh::Axes alone;
      model::Values values;
      const at::NoGradGuard no_grad;
      for (const auto& [name, field] : batch.fields) values.put(name, field.tensor);
      for (const auto& block : engine.model->blocks())
        block->forward(
            values, nullptr,
            {.weights = engine.store->weights(), .buffers = buffers, .axes = alone, .needs = {false, false}, .options = statistics});
      taught.fields[model::kTeacherLogits] = {values.get("logits").clone(), mesh::Field::Shape::whole};
    }
    const auto run = [&](mesh::FlatGradients& sink, size_t i, double weight) {
      const model::PassOptions of{.subnet = i == 0 ? nullptr : &subnets[i]};
      const model::Objective& objective = i == 0 ? *engine.objective : *distillation;
      parallel::execute({.model = *engine.model,
                         .at = engine.store->weights(),
                         .buffers = buffers,
                         .axes = engine.axes,
                         .batch = i == 0 ? batch : taught,
                         .objective = objective,
                         .into = &sink,
                         .weight = weight / 64,
                         .options = of});
    };
    const auto reduced = [&](const at::Tensor& gradient) {
      world.everyone().all_reduce(gradient, comm::Reduce::sum, {comm::Purpose::gradient, "proof"}).wait_host();
      return gradient;
    };
    const auto sink_of = [&] { return mesh::FlatGradients(layout, at::zeros({layout.elements}), engine.model->uses()); };
    mesh::FlatGradients together = sink_of();
    together.begin(4, nullptr, /*some_leave_out=*/true);
    at::Tensor one_by_one = at::zeros({layout.elements});
    for (size_t i = 0; i < subnets.size(); ++i) {
      run(together, i, weights[i]);
      mesh::FlatGradients alone = sink_of();
      alone.begin(1, nullptr, /*some_leave_out=*/true);
      run(alone, i, 1);
      alone.finish();
      for (const mesh::NamedTensor& piece : layout.views(alone.flat()))
        for (size_t k = 0; k < space.shape.layers.size(); ++k) {
          const model::ElasticLayer& layer = space.shape.layers[k];
          if (!piece.name.starts_with(layer.tensors)) continue;
          const auto middle = std::ranges::find(layer.of_middle, piece.name, &model::MiddleTensor::name);
          const int64_t active = !subnets[i].runs(layer) ? 0 : middle == layer.of_middle.end() ? -1 : subnets[i].width[k];
          if (active < 0) continue;
          const int64_t dim = middle == layer.of_middle.end() ? 0 : middle->dim;
          const at::Tensor rest = piece.tensor.narrow(dim, active, piece.tensor.size(dim) - active);
          if (world.rank() == 0) outside += static_cast<double>(rest.count_nonzero().item<int64_t>());
          if (world.rank() == 0) inside += static_cast<double>(piece.tensor.count_nonzero().item<int64_t>());
        }
      one_by_one += reduced(alone.flat()) * weights[i];
    }
    together.finish();
    const double largest = one_by_one.abs().max().item<double>();
    const double found = largest_apart(reduced(together.flat()), one_by_one) / largest;
    if (world.rank() == 0) apart = found;
  });
  findings.at_most("6. (d) one reduction of four weighted passes against four: largest difference, of the largest gradient", 0, apart,
                   1e-6);
  findings.at_most("6. (e) elements outside of the subnets whose gradient is not exactly 0", inside, outside, 0);
}

void refused_supernets(const ProofOptions& options, Findings& findings, base::Log& log) {
  double wrong = 0;
  const auto expect_refused = [&](const base::Recipe& recipe, int ranks, const std::string& message) {
    std::string found = "accepted";
    try {
      train_layout({.recipe = recipe, .ranks = ranks, .out = std::filesystem::path(options.scratch) / "refused"});
    } catch (const Error& error) {
      found = error.what();
      if (error.kind() == Error::Kind::bad_input && found.find(message) != std::string::npos) return;
    }
    ++wrong;
    log.info("expected \"{}\": {}", message, found);
  };
  struct Refused {
    Assignments sets;
    std::string message;
  };
  for (const Refused& one : {Refused{{"supernet.shrink_at=1"}, "supernet.shrink_at = 1: must be a fraction of the run"},
                             {{"supernet.shrink_at=0"}, "supernet.shrink_at = 0: must be a fraction of the run"},
                             {{"supernet.ramp=0.6"}, "supernet.ramp = 0.6: begins before the run does"},
                             {{"supernet.nets_per_step=1"}, "supernet.nets_per_step = 1"},
                             {{"model.cnn.widths=[3, 3]"}, "supernet.expand: 1 and 2 give the same 8 channels"},
                             {{"supernet.depth=[1, 4]"}, "the largest must be what the model has, and its stage 0 has 3 layers"}}) {
    Assignments all = kConvSubnet;
    all.insert(all.end(), one.sets.begin(), one.sets.end());
    expect_refused(small_pictures(options, all), 1, one.message);
  }
  base::Recipe recipe = decoder_supernet(options, {"train.steps=4", "mesh.pp=2"});
  const int64_t layers = recipe.read(model::model_schema()).layers;
  expect_refused(with(std::move(recipe), {fmt::format("supernet.depth=[1, {}]", layers)}), 2, "layers that may be left out must share one");
  findings.at_most(
      "6. shrinking outside of the run, a ramp that does not fit, one network only, widths that round to the same, layers that the model "
      "lacks, depths across pipeline stages: accepted, or refused without saying what is wrong",
      0, wrong, 0);
}

}  // namespace

void prove_deps_exactly(const ProofOptions& options, Findings& findings, base::Log& log) {
  findings.at_most("6. (a) an exported convolutional network against the active one: largest difference of a logit", 0,
                   exported_conv_net(options, log), 1e-6);
  findings.at_most("6. (a) an exported decoder against the active one: largest difference of a logit", 0, exported_decoder(options, log),
                   1e-6);
  findings.skip("6. (a) transformers opens an exported decoder", "needs Python: tools/check_supernets.py");
  findings.skip("6. (c) in double precision, to 1e-10",
                "the trainer computes in fp32; tests/parallel/picture_pass_test.cpp has passes in double");
  sorted_channels(options, findings);
  any_ranks(options, findings, log);
  gradients_of_passes(options, findings);
  refused_supernets(options, findings, log);
}

}  // namespace cairn::study
