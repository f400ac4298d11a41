// MASHA (Beznosikov et al. 2021, arXiv 2110.03313, "Distributed Methods with Compressed Communication for Solving Variational
// Inequalities").
//
// The problem: find z with F(z) = 0, F = mean of F_m over devices m. The method is extragradient with a reference point w at which all
// devices know F(w). Devices send compressed differences against w; these vanish at the solution, and so does the compression error.
//
//   zbar     = tau z + (1 - tau) w                                   tau = 1 - `refresh`
//   z_half   = prox(zbar - gamma F(w))                               the look-ahead point; gamma: `step`
//   z        <- prox(zbar - gamma F(w) - gamma mean over m of Q(F_m(z_half) - F_m(w)))
//   w        <- z with probability 1 - tau (one shared coin), else w
//
// Only a new w costs a full vector (all-reduce of F(w)). Q is randk in MASHA1, unbiased and stateless. In MASHA2 it is topk with error
// feedback: a device sends Q(e_m + message) and keeps the rest in e_m; so do the owners on the way back (exchange.h). A stochastic problem
// evaluates both terms of a difference on the same batch. If a value is not finite the iteration is undone and gamma is halved.
#include "sync/masha/masha.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "base/check.h"
#include "base/did_you_mean.h"
#include "comm/group.h"
#include "comm/sparsify.h"
#include "kernels/aten.h"
#include "mesh/write_barrier.h"

namespace cairn::sync {
namespace {

constexpr int64_t kMaxUndone = 3;  // in a row
constexpr double kSquaresDecay = 0.9, kSquaresFloor = 0.1;

void check_compression(const Compression& compression, const char* key, const std::string& rule) {
  const std::vector<std::string> known{"none", "randk", "topk"};
  if (std::find(known.begin(), known.end(), compression.kind) == known.end()) base::fail_unknown("compressor", compression.kind, known);
  if (!(compression.density > 0 && compression.density <= 1))
    base::fail_input("{}.density = {}: must be above 0 and at most 1", key, compression.density);
  if (rule == "masha1" && compression.kind == "topk") base::fail_input("{}.kind = \"topk\": top-k is biased; use masha2", key);
  if (rule == "masha2" && compression.kind == "randk")
    base::fail_input("{}.kind = \"randk\": scaled up it is not contractive, and its residual grows; use masha1, or topk", key);
}

Compression normalised(Compression compression) {
  if (compression.kind == "none") compression.density = 1;
  return compression;
}

}  // namespace

void check(const MashaOptions& options, int devices) {
  if (options.kind != "masha1" && options.kind != "masha2") base::fail_unknown("saddle rule", options.kind, {"masha1", "masha2"});
  check_compression(options.up, "up", options.kind);
  check_compression(options.down, "down", options.kind);
  if (options.up.common && options.down.kind != "none")
    base::fail_input("down.kind = \"{}\" with up.indices = \"common\": their mean is known to all already; use none", options.down.kind);
  if (!(options.step > 0)) base::fail_input("step = {}: must be above 0", options.step);
  if (!(options.refresh >= 0 && options.refresh <= 1)) base::fail_input("refresh = {}: must be above 0 and at most 1", options.refresh);
  if (options.refresh_batches < 1) base::fail_input("refresh_batches = {}: must be at least 1", options.refresh_batches);
  if (!(options.participate <= 1) || options.participate * devices < 1)
    base::fail_input("participate = {}: of {} devices at least one must take part, and no more than all", options.participate, devices);
}

Masha::Masha(const MashaOptions& options, const Setting& setting, const at::Tensor& start)
    : options_(options),
      problem_(setting.problem),
      peers_(&setting.peers),
      random_(setting.random.for_purpose("masha")),
      prox_(setting.prox),
      barrier_(setting.barrier) {
  check(options, setting.peers.size());
  options_.up = normalised(options.up), options_.down = normalised(options.down);
  refresh_probability_ = options.refresh > 0 ? options.refresh : options_.up.density;
  players_ = problem_.players();
  check_players(players_, problem_.elements());
  CAIRN_CHECK(start.is_contiguous() && start.numel() == problem_.elements() && start.is_cpu() &&
                  (start.scalar_type() == at::kFloat || start.scalar_type() == at::kDouble),
              "a start of {} elements for a problem of {}", start.numel(), problem_.elements());
  point_ = start.detach().clone().view({-1});
  reference_ = point_.clone();
  mean_ = at::zeros_like(point_);
  if (!problem_.stochastic()) own_ = at::zeros_like(point_);
  if (options_.average) average_ = at::zeros_like(point_);
  if (options_.adam) squares_ = at::zeros_like(point_);
  counters_ = at::zeros({4}, at::kLong);
  step_ = at::full({1}, options_.step, at::kDouble);
  begin(*peers_);
  if (!setting.later) first_reference();
}

void Masha::begin(comm::Group& peers) {
  peers_ = &peers;
  mesh::before_write(barrier_, mean_);
  mean_.zero_();  // with other devices the problem is another one: do not compare |F(w)| with the old one
  exchange_ = options_.kind == "masha1" ? make_random_exchange(options_.up, options_.down, peers, problem_.elements(), random_)
                                        : make_largest_exchange(options_.up, options_.down, peers, problem_.elements());
}

void Masha::first_reference() {
  if (!refresh()) throw Error(Error::Kind::diverged, "MASHA: the problem's value at the starting point is not finite on every device");
}

int64_t Masha::device() const { return peers_->ranks()[static_cast<size_t>(peers_->rank())]; }

at::Tensor Masha::own_value(const BatchKey& first, int64_t batches) const {
  at::Tensor sum = value_at(problem_, reference_, first);
  for (int64_t i = 1; i < batches; ++i) sum.add_(value_at(problem_, reference_, {first.iteration, first.device, first.part + i}));
  return batches > 1 ? sum.div_(static_cast<double>(batches)) : sum;
}

// Batch part 0 of an iteration is for its difference, so those of the reference begin at 1.
bool Masha::refresh() {
  mesh::before_write(barrier_, reference_);
  reference_.copy_(point_);
  const at::Tensor own = own_value({iteration(), device(), 1}, problem_.stochastic() ? options_.refresh_batches : 1);
  if (!problem_.stochastic()) own_ = own;
  at::Tensor mean = own.to(at::kFloat, /*non_blocking=*/false, /*copy=*/true);
  peers_->all_reduce(mean, comm::Reduce::sum, {comm::Purpose::state, "F at the reference"}).wait_host();
  mean = mean.to(point_.scalar_type()).div_(static_cast<double>(peers_->size()));
  if (!at::isfinite(mean).all().item<bool>()) return false;
  const double before = mean_.norm().item<double>();
  mean_ = mean;
  int64_t& refreshes = counters_.mutable_data_ptr<int64_t>()[1];
  if (options_.halve_above > 0 && refreshes > 0 && before > 0 && mean_.norm().item<double>() > options_.halve_above * before) halve();
  if (options_.adam) {
    at::Tensor plain = mean_.clone();  // without the players' scales, which would cancel out
    for (const Player& player : players_) plain.slice(0, player.begin, player.end).div_(player.scale);
    mesh::before_write(barrier_, squares_);
    squares_.mul_(kSquaresDecay).add_(plain.square(), 1 - kSquaresDecay);
  }
  ++refreshes;
  return true;
}

at::Tensor Masha::scaled(const at::Tensor& direction) const {
  if (!options_.adam) return direction;
  const double seen = 1 - std::pow(kSquaresDecay, static_cast<double>(refreshes()));
  // An element with F(w) = 0 so far may still move: its scale is bounded by that of all elements.
  const double typical = std::sqrt(squares_.mean().item<double>() / seen);
  return direction / ((squares_ / seen).sqrt() + std::max(kSquaresFloor * typical, 1e-20));
}

std::vector<bool> Masha::takes_part() const {
  const int64_t devices = peers_->size();
  std::vector<bool> chosen(static_cast<size_t>(devices), options_.participate == 1);
  if (options_.participate < 1)
    for (const int64_t rank : comm::random_indices(random_.for_purpose("takes part").for_index(static_cast<uint64_t>(iteration())), devices,
                                                   comm::kept_count(devices, options_.participate)))
      chosen[static_cast<size_t>(rank)] = true;
  return chosen;
}

void Masha::apply_prox(const at::Tensor& x) const {
  if (prox_) prox_(x, step());
}

MashaFacts Masha::iterate() {
  if (refreshes() == 0) first_reference();
  const double tau = 1 - refresh_probability_, gamma = step();
  int64_t* counters = counters_.mutable_data_ptr<int64_t>();
  MashaFacts facts{.iteration = iteration(), .step = gamma};
  const at::Tensor old_point = point_, old_reference = reference_.clone(), old_own = own_, old_mean = mean_;

  const at::Tensor mixed = point_ * tau + reference_ * (1 - tau);
  const at::Tensor without = mixed - scaled(mean_) * gamma;  // without this iteration's difference
  const at::Tensor ahead = prox_ ? without.clone() : without;
  apply_prox(ahead);

  const std::vector<bool> part = takes_part();
  const auto wire = at::TensorOptions().dtype(at::kFloat);
  at::Tensor message = at::empty(point_.sizes(), wire);
  if (part[static_cast<size_t>(peers_->rank())]) {
    const BatchKey key{iteration(), device(), 0};
    const at::Tensor difference = value_at(problem_, ahead, key) - (problem_.stochastic() ? value_at(problem_, reference_, key) : own_);
    facts.difference = difference.norm().item<double>();
    message = (difference * gamma).to(at::kFloat);
  }
  const at::Tensor mean = at::empty(point_.sizes(), wire);
  before_residuals_change();
  const MashaExchange::Sent sent = exchange_->exchange(iteration(), message, part, mean);
  facts.error_ratio = sent.error_ratio;
  bool finite = sent.finite;
  if (finite) {
    point_ = without - scaled(mean.to(point_.scalar_type()));
    apply_prox(point_);
    // One coin for all devices: a function of the iteration, not drawn from a device's own generator.
    facts.refreshed = random_.for_purpose("refresh").uniform(static_cast<uint64_t>(iteration())) < refresh_probability_;
    if (facts.refreshed && !refresh()) {
      finite = false;
      exchange_->rescale(0);  // the residual belongs to the point that is undone
    }
  }
  if (finite) {
    counters[2] = 0;
    if (options_.average) mesh::before_write(barrier_, average_);
    if (options_.average) average_.add_(ahead - average_, 1.0 / static_cast<double>(iteration() + 1));
  } else {
    point_ = old_point, own_ = old_own, mean_ = old_mean;
    mesh::before_write(barrier_, reference_);
    reference_.copy_(old_reference);
    undo(facts);
  }
  ++counters[0];
  facts.residual = mean_.norm().item<double>();
  for (const Player& player : players_) facts.player_residuals.push_back(mean_.slice(0, player.begin, player.end).norm().item<double>());
  return facts;
}

void Masha::undo(MashaFacts& facts) {
  facts.undone = true, facts.refreshed = false;
  int64_t& in_a_row = counters_.mutable_data_ptr<int64_t>()[2];
  if (++in_a_row >= kMaxUndone)
    throw Error(Error::Kind::diverged,
                fmt::format("MASHA: {} iterations in a row were not finite, at last with step {:g}: use a smaller step", in_a_row, step()));
  halve();
}

at::Tensor Masha::average() const { return options_.average && iteration() > 0 ? average_ : point_; }

double Masha::step() const { return std::ldexp(step_.item<double>(), -static_cast<int>(counters_.const_data_ptr<int64_t>()[3])); }

// Residuals contain the factor gamma.
void Masha::set_step(double step) {
  const double before = step_.item<double>();
  if (step == before) return;
  before_residuals_change();
  exchange_->rescale(step / before);
  step_.fill_(step);
}

void Masha::before_residuals_change() {
  for (const mesh::NamedTensor& one : exchange_->state()) mesh::before_write(barrier_, one.tensor);
}

void Masha::halve() {
  before_residuals_change();
  exchange_->rescale(0.5);
  ++counters_.mutable_data_ptr<int64_t>()[3];
}

void Masha::regroup(comm::Group& peers) {
  std::vector<int64_t> mine{iteration(), refreshes()}, all(static_cast<size_t>(peers.size()) * 2);
  peers
      .all_gather({all.data(), static_cast<int64_t>(all.size()), comm::Dtype::i64}, {mine.data(), 2, comm::Dtype::i64},
                  {comm::Purpose::control, "how far devices got"})
      .wait_host();
  int furthest = 0;
  for (int rank = 1; rank < peers.size(); ++rank)
    if (all[static_cast<size_t>(rank) * 2] > all[static_cast<size_t>(furthest) * 2]) furthest = rank;
  mesh::before_writing_all(barrier_);
  point_ = point_.clone();
  std::vector<at::Tensor> shared{point_, step_, counters_};
  if (options_.average) shared.push_back(average_);
  if (options_.adam) shared.push_back(squares_);
  for (const at::Tensor& tensor : shared)
    peers.broadcast(tensor, furthest, {comm::Purpose::state, "state of the furthest device"}).wait_host();
  check(options_, peers.size());
  begin(peers);
  first_reference();
}

mesh::NamedTensors Masha::state() {
  point_ = point_.contiguous();
  const std::string here = fmt::format("masha.device.{}.", device());
  mesh::NamedTensors all{{"masha.point", point_},
                         {"masha.reference", reference_},
                         {"masha.mean", mean_},
                         {"masha.counters", counters_},
                         {"masha.step", step_}};
  if (own_.defined()) all.push_back({here + "own", own_});
  if (options_.average) all.push_back({"masha.average", average_});
  if (options_.adam) all.push_back({"masha.squares", squares_});
  for (mesh::NamedTensor& tensor : exchange_->state()) all.push_back(std::move(tensor));
  return all;
}

}  // namespace cairn::sync
