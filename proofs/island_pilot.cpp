#include "proofs/island_pilot.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <mutex>
#include <numbers>
#include <numeric>

#include <ATen/Parallel.h>
#include <ATen/core/IListRef.h>

#include "base/clock.h"
#include "base/random.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "optim/clip.h"
#include "optim/optimizer.h"
#include "optim/options.h"

namespace cairn::study {
namespace {

constexpr int64_t kHidden = 64, kBatch = 16, kWarmup = 50;
constexpr int64_t kTrain = 60'000, kTest = 4'000;

at::Tensor normals(const base::Random& random, const std::vector<int64_t>& shape) {
  at::Tensor values = at::empty(shape, at::kFloat);
  random.fill_normal({values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel())});
  return values;
}

// Images [count, pixels, pixels] of classes [count].
at::Tensor gratings(const base::Random& random, const at::Tensor& classes) {
  constexpr double kPeriod = 5;  // pixels
  const int64_t count = classes.numel();
  at::Tensor phases = at::empty({count, 1, 1}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) phases.mutable_data_ptr<float>()[i] = static_cast<float>(random.uniform(static_cast<uint64_t>(i)));
  const at::Tensor turn = classes.to(at::kFloat).view({count, 1, 1}) * (std::numbers::pi / Mixture::kClasses);
  const at::Tensor along = at::arange(Mixture::kPixels, at::kFloat);
  const at::Tensor way = along.view({1, 1, -1}) * turn.cos() + along.view({1, -1, 1}) * turn.sin();
  return (2 * std::numbers::pi * (way / kPeriod + phases)).sin();
}

Mixture::Examples drawn(const base::Random& random, const at::Tensor& means, int64_t count, bool as_images) {
  std::vector<int64_t> modes(static_cast<size_t>(count));
  const base::Random mode = random.for_purpose("mode");
  for (size_t i = 0; i < modes.size(); ++i)
    modes[i] = static_cast<int64_t>(mode.below(i, static_cast<uint64_t>(Mixture::kClasses * Mixture::kModes)));
  const at::Tensor which = at::tensor(modes, at::kLong);
  const at::Tensor y = which.div(Mixture::kModes, "floor");
  const base::Random noise = random.for_purpose("noise");
  if (as_images) return {gratings(random.for_purpose("phase"), y) + normals(noise, {count, Mixture::kPixels, Mixture::kPixels}), y};
  return {means.index_select(0, which) + normals(noise, {count, Mixture::kFeatures}), y};
}

// Gamma(shape, 1) by Marsaglia and Tsang, for Dirichlet shares.
double gamma_of(const base::Random& random, double shape) {
  if (shape < 1) return gamma_of(random.for_purpose("above"), shape + 1) * std::pow(random.uniform(1'000'000), 1 / shape);
  const double d = shape - 1.0 / 3, c = 1 / std::sqrt(9 * d);
  const base::Random z = random.for_purpose("normal"), u = random.for_purpose("uniform");
  for (uint64_t i = 0;; ++i) {
    const double x = z.normal(i), v = std::pow(1 + c * x, 3);
    if (v > 0 && std::log(u.uniform(i) + 1e-300) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v;
  }
}

double rate_at(const PilotRun& run, int64_t step) {
  if (run.constant_rate) return run.rate;
  const auto s = static_cast<double>(step);
  if (step <= kWarmup) return run.rate * s / kWarmup;
  const double p = (s - kWarmup) / static_cast<double>(run.steps - kWarmup);
  return run.rate * (0.1 + 0.9 * 0.5 * (1 + std::cos(std::numbers::pi * p)));
}

// Mixtures are costly next to a run.
const Mixture& mixture_of(const PilotRun& run) {
  static std::mutex lock;
  static std::map<std::pair<uint64_t, bool>, std::unique_ptr<Mixture>> known;
  const std::lock_guard guard(lock);
  std::unique_ptr<Mixture>& mixture = known[{run.seed, run.vit.has_value()}];
  if (!mixture) mixture = std::make_unique<Mixture>(run.seed, kTrain, kTest, run.vit.has_value(), run.vit.value_or(at::kCPU));
  return *mixture;
}

std::unique_ptr<PilotModel> model_of(const PilotRun& run, uint64_t seed) {
  if (run.vit) return make_small_vit(seed, *run.vit);
  return std::make_unique<Perceptron>(seed);
}

}  // namespace

Mixture::Mixture(uint64_t seed, int64_t train, int64_t test, bool as_images, const at::Device& device) {
  const base::Random random = base::Random(seed).for_purpose("mixture");
  const at::Tensor means = 0.75 * normals(random.for_purpose("means"), {kClasses * kModes, kFeatures});
  const auto examples = [&](const char* name, int64_t count) {
    const Examples drawn_here = drawn(random.for_purpose(name), means, count, as_images);
    return Examples{drawn_here.x.to(device), drawn_here.y.to(device)};
  };
  train_ = examples("train", train);
  test_ = examples("test", test);
}

Mixture::Examples Mixture::pick(const std::vector<int64_t>& which) const {
  const at::Tensor rows = at::tensor(which, at::kLong).to(train_.y.device());
  return {train_.x.index_select(0, rows), train_.y.index_select(0, rows)};
}

std::vector<std::vector<int64_t>> Mixture::dealt(int islands, double alpha, int64_t each, uint64_t seed) const {
  const base::Random random = base::Random(seed).for_purpose("dealt");
  const int64_t count = train_.y.numel();
  std::vector<int64_t> order(static_cast<size_t>(count));
  std::iota(order.begin(), order.end(), int64_t{0});
  for (auto i = static_cast<uint64_t>(count) - 1; i > 0; --i) std::swap(order[i], order[random.below(i, i + 1)]);
  std::vector<std::vector<int64_t>> hands(static_cast<size_t>(islands));
  if (alpha == 0) {
    for (size_t i = 0; i < order.size(); ++i) hands[i % hands.size()].push_back(order[i]);
    return hands;
  }
  std::vector<std::vector<int64_t>> of_class(static_cast<size_t>(kClasses));
  const at::Tensor classes = train_.y.cpu();
  const int64_t* y = classes.const_data_ptr<int64_t>();
  for (const int64_t i : order) of_class[static_cast<size_t>(y[i])].push_back(i);
  // Each class is divided among the islands by shares of its own.
  const size_t of_each = static_cast<size_t>(each) * hands.size() / of_class.size();
  for (size_t c = 0; c < of_class.size(); ++c) {
    std::vector<double> shares;
    for (size_t k = 0; k < hands.size(); ++k) shares.push_back(gamma_of(random.for_purpose("shares").for_index(k).for_index(c), alpha));
    const double total = std::accumulate(shares.begin(), shares.end(), 0.0);
    double sum = 0;
    size_t at = 0;
    for (size_t k = 0; k < hands.size(); ++k) {
      sum += shares[k];
      const auto end = static_cast<size_t>(sum / total * static_cast<double>(of_each) + 0.5);
      for (; at < end; ++at) hands[k].push_back(of_class[c][at % of_class[c].size()]);
    }
  }
  for (std::vector<int64_t>& hand : hands)
    if (hand.empty()) hand.push_back(order[0]);
  return hands;
}

void PilotModel::add(const std::string& name, const at::Tensor& start) {
  parameters_.push_back({name, start});
  gradients_.push_back({name, at::zeros_like(start)});
  whole_.push_back({name, start.numel()});
}

at::Tensor PilotModel::squares() const {
  at::Tensor sum = at::zeros({}, gradients_.front().tensor.options());
  for (const mesh::NamedTensor& one : gradients_) sum += one.tensor.square().sum();
  return sum;
}

PilotModel::Score PilotModel::score(const Mixture::Examples& batch) const {
  const at::Tensor found = scores(batch.x), logs = at::log_softmax(found, 1);
  return {-logs.gather(1, batch.y.unsqueeze(1)).mean().item<double>(), found.argmax(1).eq(batch.y).to(at::kDouble).mean().item<double>()};
}

at::Tensor PilotModel::flat() const {
  std::vector<at::Tensor> all;
  for (const mesh::NamedTensor& one : parameters_) all.push_back(one.tensor.view({-1}));
  return at::cat(all);
}

void PilotModel::put(const at::Tensor& flat) {
  int64_t at = 0;
  for (const mesh::NamedTensor& one : parameters_) {
    one.tensor.view({-1}).copy_(flat.narrow(0, at, one.tensor.numel()));
    at += one.tensor.numel();
  }
}

Perceptron::Perceptron(uint64_t seed) {
  const base::Random random = base::Random(seed).for_purpose("perceptron");
  const std::vector<std::pair<int64_t, int64_t>> shapes{{Mixture::kFeatures, kHidden}, {kHidden, kHidden}, {kHidden, Mixture::kClasses}};
  for (size_t layer = 0; layer < shapes.size(); ++layer) {
    const auto& [in, out] = shapes[layer];
    const std::string name = "layers." + std::to_string(layer);
    add(name + ".weight", normals(random.for_index(layer), {in, out}) * std::sqrt(2.0 / static_cast<double>(in)));
    add(name + ".bias", at::zeros({out}, at::kFloat));
  }
}

void Perceptron::learn(const Mixture::Examples& batch) {
  std::vector<at::Tensor> inputs{batch.x};
  at::Tensor out;
  for (size_t layer = 0; layer < 3; ++layer) {
    out = at::mm(inputs.back(), parameters_[2 * layer].tensor) + parameters_[2 * layer + 1].tensor;
    if (layer < 2) inputs.push_back(out.clamp_min(0));
  }
  at::Tensor up = at::log_softmax(out, 1).exp();
  up.scatter_add_(1, batch.y.unsqueeze(1), at::full({batch.y.numel(), 1}, -1.0, at::kFloat));
  up.div_(static_cast<double>(batch.y.numel()));
  for (size_t layer = 3; layer-- > 0;) {
    gradients_[2 * layer].tensor.copy_(at::mm(inputs[layer].t(), up));
    gradients_[2 * layer + 1].tensor.copy_(up.sum(0));
    if (layer > 0) up = at::mm(up, parameters_[2 * layer].tensor.t()) * inputs[layer].gt(0);
  }
}

at::Tensor Perceptron::scores(const at::Tensor& x) const {
  at::Tensor out = x;
  for (size_t layer = 0; layer < 3; ++layer) {
    out = at::mm(out, parameters_[2 * layer].tensor) + parameters_[2 * layer + 1].tensor;
    if (layer < 2) out = out.clamp_min(0);
  }
  return out;
}

namespace {

// One island of a run, on one rank.
void train_island(const PilotRun& run, const Mixture& mixture, const std::vector<int64_t>& hand, comm::World& world, PilotEnd& end) {
  const auto me = static_cast<size_t>(world.rank());
  const std::unique_ptr<PilotModel> own = model_of(run, run.same_start ? run.seed : run.seed * 1000 + me + 1),
                                    judged = model_of(run, run.seed);
  PilotModel& model = *own;
  std::vector<optim::ParameterPiece> pieces;
  for (size_t i = 0; i < model.parameters().size(); ++i)
    pieces.push_back(
        {model.parameters()[i].name, model.parameters()[i].tensor, model.gradients()[i].tensor, model.parameters()[i].tensor.dim() == 2});
  const auto optimizer = optim::make_optimizer({.beta2 = run.beta2, .weight_decay = run.weight_decay}, pieces);
  const sync::SyncOptions& options = run.sync;
  const sync::Replica replica{.replica_group = run.alone ? world.alone() : world.everyone(),
                              .model_group = world.alone(),
                              .parameters = model.parameters(),
                              .gradients = model.gradients(),
                              .model = model.whole(),
                              .steps = run.steps,
                              .seed = run.seed};
  const auto rule = run.reference ? run.reference(replica) : sync::make_sync(options, replica);
  rule->begin(0);
  const bool every_step = !run.reference && options.kind == "all_reduce";
  const base::Random draw = base::Random(run.seed).for_purpose("batches").for_index(me);
  const auto model_now = [&] {
    const std::vector<at::Tensor> global_parameters = rule->global_parameters();
    if (global_parameters.empty()) return model.flat().clone();
    std::vector<at::Tensor> flat;
    for (const at::Tensor& one : global_parameters) flat.push_back(one.view({-1}));
    return at::cat(flat).clone();
  };
  const double begun = base::seconds(world.clock().now());
  int64_t sent = 0;
  for (int64_t step = 1; step <= run.steps; ++step) {
    std::vector<int64_t> which(kBatch);
    for (size_t i = 0; i < which.size(); ++i) which[i] = hand[draw.below(static_cast<uint64_t>(step) * kBatch + i, hand.size())];
    model.learn(mixture.pick(which));
    // Gradients come one after the other, and messages get on meanwhile.
    for (auto i = std::ssize(model.gradients()); i-- > 0;) {
      const double of_one_s = run.step_s / static_cast<double>(model.gradients().size());
      if (run.step_s > 0) world.timer(world.clock().now() + std::chrono::nanoseconds(static_cast<int64_t>(of_one_s * 1e9))).wait();
      rule->gradient_ready(i);
    }
    sync::StepFacts facts{.step = step, .tokens = kBatch, .learning_rate = rate_at(run, step)};
    const double before = base::seconds(world.clock().now());
    rule->after_backward(facts).wait();
    if (every_step && !run.alone)
      for (const mesh::NamedTensor& one : model.gradients()) one.tensor.div_(world.size());
    const optim::Clip clip = optim::clip(model.squares(), 1.0, 1.0);
    optimizer->update_several(0, std::ssize(pieces), {.step = step, .learning_rate = facts.learning_rate, .gradient_factor = &clip.factor});
    rule->after_step(facts).wait();
    end.stalls[me] += base::seconds(world.clock().now()) - before;
    const int64_t all = world.ledger().total().bytes;
    end.bytes[me].push_back(all - sent);
    sent = all;
    if (run.loss_every > 0 && (step % run.loss_every == 0 || step == run.steps)) {
      judged->put(model_now());
      end.losses[me].emplace_back(static_cast<double>(step), judged->score(mixture.test()).loss);
    }
    if (run.after) run.after(world, *rule, step);
  }
  end.seconds[me] = base::seconds(world.clock().now()) - begun;
  end.before_finish[me] = model.flat().clone();
  if (run.finish && !run.alone) rule->finish();
  end.own[me] = model.flat().clone();
  end.global_parameters[me] = model_now();
}

}  // namespace

PilotEnd run_pilot(const PilotRun& run) {
  at::set_num_threads(1);  // islands are threads already
  const Mixture& mixture = mixture_of(run);
  const auto hands = mixture.dealt(run.islands, run.dirichlet, run.each, run.seed);
  const auto n = static_cast<size_t>(run.islands);
  PilotEnd end;
  end.own.resize(n), end.global_parameters.resize(n), end.before_finish.resize(n), end.losses.resize(n), end.bytes.resize(n);
  end.seconds.resize(n), end.stalls.resize(n);
  comm::LocalOptions local{.seed = run.seed, .link = run.link};
  local.world = [&](int) {
    comm::WorldOptions world;
    world.before_collective = run.before_collective;
    return world;
  };
  comm::LocalNetwork network(run.islands, local);
  end.errors = network.run([&](comm::World& world) { train_island(run, mixture, hands[static_cast<size_t>(world.rank())], world, end); });
  end.ledger = network.ledger();
  if (!run.after)
    for (const std::exception_ptr& error : end.errors)
      if (error) std::rethrow_exception(error);
  return end;
}

PilotModel::Score score_of(const PilotRun& run, const at::Tensor& flat) {
  const std::unique_ptr<PilotModel> model = model_of(run, run.seed);
  model->put(flat);
  return model->score(mixture_of(run).test());
}

at::Tensor mean_of(const std::vector<at::Tensor>& all) {
  at::Tensor sum = at::zeros_like(all.front());
  for (const at::Tensor& one : all) sum += one;
  return sum / static_cast<double>(all.size());
}

sync::SyncOptions diloco(int64_t every, double lr, double momentum) {
  sync::SyncOptions options{.kind = "diloco"};
  options.outer = {.every = every, .outer_lr = lr, .outer_momentum = momentum, .outer_warmup = 0};
  return options;
}

sync::SyncOptions streaming(int64_t every, double lr, double momentum, int64_t delay, double blend, const std::string& wire) {
  sync::SyncOptions options = diloco(every, lr, momentum);
  options.kind = "streaming_diloco";
  options.exchange.wire = wire;
  options.outer.fragment_layers = 1;
  options.outer.delay = delay;
  options.outer.blend = blend;
  return options;
}

}  // namespace cairn::study
