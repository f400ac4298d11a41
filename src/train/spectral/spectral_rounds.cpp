// Sparse spectral training (arXiv 2405.15481) between steps. Layers are U diag(s) V^T (model/decoder/spectral_weight.h); r pairs of
// vectors train at a time, s trains always.
//
//   round, of T2 iterations (round_iterations):
//     iteration, of T3 steps (iteration_steps):
//       draw r pairs I by p_i = (1/k + s_i / sum s) / 2, without replacement      before its first step; the same on all ranks
//       vectors of I take the places of those that were active; their moments and their count of updates begin at zero
//       their learning rate rises over warmup_steps; s and its moments go along
//       after each update   s <- max(s, 0), u_i <- u_i / |u_i|, v_i <- v_i / |v_i|
//     W = U diag(s) V^T; U, s, V <- SVD(W); moments of s begin at zero            by one rank for each layer, which broadcasts them
//
// Where all pairs are active nothing is drawn, and moments stay until the round ends. Islands that step separately decompose what they have
// in common, on one of them.
#include "train/spectral/spectral_rounds.h"

#include <algorithm>
#include <map>
#include <set>

#include <ATen/core/IListRef.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/random.h"
#include "base/text.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "model/decoder/spectral_weight.h"
#include "model/model.h"
#include "optim/active_optimizer.h"
#include "parallel/plan.h"
#include "snapshot/spectral.h"
#include "train/active_parts.h"
#include "train/job.h"
#include "train/spectral/draw_pairs.h"
#include "train/spectral/unit_vectors.h"
#include "train/state/surgery.h"

namespace cairn::train {
namespace {

class SpectralRounds final : public BetweenSteps {
 public:
  SpectralRounds(Job& job, comm::World& world, std::vector<model::SpectralLayer> layers)
      : job_(job),
        world_(world),
        options_(job.config.settings.model.spectral),
        layers_(std::move(layers)),
        iterations_(round_iterations()),
        unit_(make_unit_vectors()) {
    int64_t pairs = 0;
    for (const model::SpectralLayer& one : layers_) {
      first_pair_.push_back(pairs);
      pairs += one.values;
    }
    pairs_ = at::zeros({pairs}, at::kLong);
    visited_ = at::zeros({pairs}, at::kLong);
    begin_round();
    job.engine.after_update = [this] { unit_.project(); };
    if (job.engine.model->config_json().empty()) return;
    std::vector<snapshot::SpectralName> names;
    for (const model::SpectralLayer& one : layers_) names.push_back({one.name, one.fan_in_fan_out});
    job.carried[snapshot::kSpectralFile] = snapshot::format_spectral(names);
  }

  void before_step(int64_t step) override {
    const int64_t steps = step - 1, iteration = steps / options_.iteration_steps, at = steps % options_.iteration_steps;
    iteration_ = iteration;
    if (at == 0) {
      if (iteration > 0 && iteration % iterations_ == 0) end_round();
      draw(iteration);
    }
    set_rates(at, steps % (options_.iteration_steps * iterations_));
  }

  mesh::NamedTensors state() override { return {{"spectral_pairs", pairs_}, {"spectral_visited", visited_}}; }

  sync::StepMetrics metrics() override {
    return {{"spectral_iteration", static_cast<double>(iteration_)},
            {"spectral_coverage", coverage()},
            {"spectral_orthogonality_error", orthogonality_error_},
            {"spectral_svd_s", svd_s_}};
  }

  std::string summary() override {
    return fmt::format(
        "spectral: {} rounds, {:.2f} of the pairs active in the last full one, |U U^T - I| at most {:.1e} before a decomposition, {:.2f} s "
        "in decompositions",
        rounds_, last_coverage_, orthogonality_error_, svd_s_);
  }

 private:
  bool all_active(const model::SpectralLayer& layer) const { return layer.u_frozen < 0; }
  const std::string& name_of(int32_t parameter) const { return job_.engine.model->parameters()[static_cast<size_t>(parameter)].name; }
  bool trains(const model::SpectralLayer& layer) const { return job_.engine.active->set().contains(name_of(layer.u)); }

  int64_t round_iterations() const {
    if (options_.round_iterations > 0) return options_.round_iterations;
    int64_t most = 1;
    for (const model::SpectralLayer& one : layers_) most = std::max(most, (one.values + one.rank - 1) / one.rank);
    return most;
  }

  UnitVectors make_unit_vectors() const {
    std::vector<size_t> matrices, values;
    for (const model::SpectralLayer& one : layers_) {
      matrices.push_back(static_cast<size_t>(one.u));
      matrices.push_back(static_cast<size_t>(one.v));
      values.push_back(static_cast<size_t>(one.s));
    }
    return UnitVectors(job_, matrices, values);
  }

  void begin_round() {
    for (size_t i = 0; i < layers_.size(); ++i)
      for (int64_t k = 0; k < layers_[i].values; ++k) pairs_.mutable_data_ptr<int64_t>()[first_pair_[i] + k] = k;
    visited_.zero_();
  }

  // The share of the pairs that were active in this round, as the mean over layers.
  double coverage() const {
    double sum = 0;
    for (size_t i = 0; i < layers_.size(); ++i)
      sum += visited_.narrow(0, first_pair_[i], layers_[i].values).to(at::kDouble).mean().item<double>();
    return sum / static_cast<double>(layers_.size());
  }

  void draw(int64_t iteration) {
    SurgeryInParts surgery(job_);
    const base::Random random = base::Random(static_cast<uint64_t>(job_.config.settings.train.seed)).for_purpose("spectral pairs");
    for (size_t i = 0; i < layers_.size(); ++i) {
      const model::SpectralLayer& layer = layers_[i];
      int64_t *const ids = pairs_.mutable_data_ptr<int64_t>() + first_pair_[i], *const visited =
                                                                                    visited_.mutable_data_ptr<int64_t>() + first_pair_[i];
      const at::Tensor values = whole_parameter(job_, static_cast<size_t>(layer.s)).to(at::kCPU).contiguous();
      if (!trains(layer)) continue;
      const auto n = static_cast<size_t>(layer.values);
      const std::vector<int64_t> drawn =
          draw_pairs(options_.sampling, {values.const_data_ptr<float>(), n}, {ids, n}, layer.rank, iteration % iterations_,
                     random.for_name(layer.name).for_index(static_cast<uint64_t>(iteration)));
      std::vector<int64_t> from = drawn;
      for (int64_t k = 0; k < layer.values; ++k)
        if (!std::binary_search(drawn.begin(), drawn.end(), k)) from.push_back(k);
      if (!all_active(layer)) surgery.apply(swaps(layer, from));
      std::vector<int64_t> ids_before(ids, ids + n), visited_before(visited, visited + n);
      for (size_t k = 0; k < n; ++k) {
        const auto source = static_cast<size_t>(from[k]);
        ids[k] = ids_before[source];
        visited[k] = static_cast<int64_t>(k) < layer.rank ? 1 : visited_before[source];
      }
    }
    surgery.finish();
  }

  optim::Surgery swaps(const model::SpectralLayer& layer, const std::vector<int64_t>& from) const {
    const auto joined = [&](std::vector<std::string> tensors, bool keeps_moments) {
      return optim::Rearrangement{.tensors = std::move(tensors), .dim = 0, .from = from, .keeps_moments = keeps_moments};
    };
    return {joined({name_of(layer.u), name_of(layer.u_frozen)}, false), joined({name_of(layer.v), name_of(layer.v_frozen)}, false),
            joined({name_of(layer.s)}, true)};
  }

  void set_rates(int64_t in_iteration, int64_t in_round) {
    optim::ActiveOptimizer& active = *job_.engine.active;
    const auto set = [&](int32_t parameter, double factor) {
      const std::string& name = name_of(parameter);
      if (active.set().members()[active.set().index(name)].learning_rate_factor != factor) active.set_learning_rate_factor(name, factor);
    };
    for (const model::SpectralLayer& layer : layers_) {
      if (!trains(layer)) continue;
      const int64_t age = all_active(layer) ? in_round : in_iteration;  // of the moments
      const double warm = age >= options_.warmup_steps ? 1 : static_cast<double>(age + 1) / static_cast<double>(options_.warmup_steps);
      set(layer.u, options_.vector_lr_scale * warm);
      set(layer.v, options_.vector_lr_scale * warm);
      if (active.set().contains(name_of(layer.s))) set(layer.s, options_.s_lr_scale);
    }
  }

  void end_round() {
    last_coverage_ = coverage();
    ++rounds_;
    begin_round();
    if (!options_.decompose) return;
    const double began = base::seconds(world_.wall().now());
    SurgeryInParts surgery(job_);
    double worst = 0;
    for (size_t i = 0; i < layers_.size(); ++i)
      if (trains(layers_[i])) worst = std::max(worst, decompose_again(i, surgery));
    surgery.finish();
    orthogonality_error_ = worst;
    svd_s_ += base::seconds(world_.wall().now()) - began;
  }

  // Returns the largest element of |U U^T - I| before.
  double decompose_again(size_t index, SurgeryInParts& surgery) {
    const model::SpectralLayer& layer = layers_[index];
    const bool frozen = !all_active(layer);
    std::vector<size_t> parameters{static_cast<size_t>(layer.u), static_cast<size_t>(layer.v), static_cast<size_t>(layer.s)};
    if (frozen) parameters.insert(parameters.end(), {static_cast<size_t>(layer.u_frozen), static_cast<size_t>(layer.v_frozen)});
    comm::Group* const own = surgery.holders(parameters);
    if (!own) return 0;
    const std::vector<at::Tensor> whole = surgery.whole(parameters);
    comm::Group& all = with_other_islands(*own);
    const int owner = static_cast<int>(index % static_cast<size_t>(own->size()));
    const int64_t k = layer.values, of_u = k * layer.out, of_v = k * layer.in;
    const at::Tensor message = at::zeros({of_u + of_v + k + 2}, at::TensorOptions().dtype(at::kFloat).device(job_.config.device));
    const at::Tensor u = message.narrow(0, 0, of_u).view({k, layer.out}), v = message.narrow(0, of_u, of_v).view({k, layer.in}),
                     s = message.narrow(0, of_u + of_v, k), report = message.narrow(0, of_u + of_v + k, 2);
    if (all.rank() == owner) {
      const auto joined = [&](size_t active, size_t rest) {
        const std::vector<at::Tensor> parts = frozen ? std::vector{whole[active], whole[rest]} : std::vector{whole[active]};
        return at::cat(parts).to(at::kFloat);
      };
      const model::SpectralFactors before{.u = joined(0, 3), .s = whole[2].to(at::kFloat), .v = joined(1, 4)};
      const at::Tensor error = at::mm(before.u, before.u.t()).sub_(identity(k, before.u)).abs_().max();
      const model::SpectralFactors after = model::decompose(model::spectral_product(before));
      if (after.s.defined()) {
        u.copy_(after.u), v.copy_(after.v), s.copy_(after.s);
        report[0].fill_(1);
      }
      report[1].copy_(error);
    }
    if (all.size() > 1) all.broadcast(message, owner, {comm::Purpose::state, layer.name}).wait();
    const at::Tensor said = report.to(at::kCPU);
    if (said[0].item<float>() == 0) {
      if (world_.rank() == 0 || all.rank() == owner)
        world_.log().warn("{}: no singular value decomposition, because it has values that are not finite: its vectors stay", layer.name);
      return 0;
    }
    const auto set = [&](int32_t parameter, const at::Tensor& values) { return optim::NewValues{name_of(parameter), values}; };
    const auto zero = [&](int32_t parameter) { return optim::ZeroMoments{name_of(parameter)}; };
    surgery.apply({set(layer.u, u.narrow(0, 0, layer.rank)), set(layer.v, v.narrow(0, 0, layer.rank)), set(layer.s, s), zero(layer.u),
                   zero(layer.v), zero(layer.s)});
    if (frozen)
      surgery.apply(
          {set(layer.u_frozen, u.narrow(0, layer.rank, k - layer.rank)), set(layer.v_frozen, v.narrow(0, layer.rank, k - layer.rank))});
    return said[1].item<float>();
  }

  static at::Tensor identity(int64_t k, const at::Tensor& like) {
    const at::Tensor eye = at::zeros({k, k}, like.options());
    eye.diagonal().fill_(1);
    return eye;
  }

  // The same ranks of all islands, which must go on with the same vectors. Those of the first island come first.
  comm::Group& with_other_islands(comm::Group& own) const {
    if (!parallel::islands_step_separately(job_.config.plan)) return own;
    std::set<int> ranks;
    for (const int rank : own.ranks())
      for (const int peer : job_.config.plan.mesh.peers(rank, "island")) ranks.insert(peer);
    return world_.group({ranks.begin(), ranks.end()}, "surgery");
  }

  Job& job_;
  comm::World& world_;
  const model::SpectralOptions options_;
  const std::vector<model::SpectralLayer> layers_;
  const int64_t iterations_;  // of a round
  UnitVectors unit_;
  std::vector<int64_t> first_pair_;  // by layer, in the tensors below
  at::Tensor pairs_;                 // by place: the number that the pair has had since the last decomposition
  at::Tensor visited_;               // by place: 1 if the pair was active in this round
  int64_t iteration_ = 0, rounds_ = 0;
  double last_coverage_ = 0, orthogonality_error_ = 0, svd_s_ = 0;
};

// "12.5 % of the parameters train, with 1.2 MiB of optimizer state where ordinary weights have 9.8 MiB".
std::string share_of_training(const Job& job, const std::vector<model::SpectralLayer>& layers) {
  int64_t trained = 0, all = 0;
  for (const model::SpectralLayer& one : layers) {
    trained += one.values + one.rank * (one.in + one.out);
    all += one.in * one.out;
  }
  return fmt::format(
      "spectral: {} layers, rank {}: {:.1f} % of their {} weights train at a time, {} of optimizer state (AdamW) in the place of {}",
      layers.size(), job.config.settings.model.spectral.rank, 100.0 * static_cast<double>(trained) / static_cast<double>(all),
      base::human_count(static_cast<double>(all)), base::human_bytes(8 * trained), base::human_bytes(8 * all));
}

}  // namespace

std::unique_ptr<BetweenSteps> make_spectral_rounds(Job& job, comm::World& world) {
  const model::SpectralOptions& options = job.config.settings.model.spectral;
  if (!options.any()) return nullptr;
  std::vector<model::SpectralLayer> layers = model::spectral_layers(*job.engine.model);
  if (layers.empty())
    base::fail_input("model.spectral.rank = {}: model.kind = {} has no linear layers that can be spectral. Leave it out.", options.rank,
                     job.config.settings.model.kind);
  if (world.rank() == 0) {
    world.log().info("{}", share_of_training(job, layers));
    if (!options.enhanced)
      world.log().warn(
          "model.spectral.enhanced = false: gradients of vectors are true derivatives, and those with small singular values hardly learn");
  }
  return std::make_unique<SpectralRounds>(job, world, std::move(layers));
}

}  // namespace cairn::train
