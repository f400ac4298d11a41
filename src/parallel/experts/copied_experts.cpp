#include "parallel/experts/copied_experts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/clock.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "kernels/grouped_gemm.h"
#include "kernels/low_precision.h"
#include "model/model.h"
#include "model/named_parameters.h"
#include "parallel/expert_copies/reshard.h"
#include "parallel/layout/expert_split.h"

namespace cairn::parallel {
namespace {

constexpr int64_t kStepsBetweenChecks = 50;

int64_t experts_of(const model::Model& model) {
  for (const model::Parameter& one : model.parameters())
    if (const int64_t dim = expert_dim(one); dim >= 0) return one.shape[static_cast<size_t>(dim)];
  return 0;
}

int blocks_with_experts(const model::Model& model) {
  int blocks = 0;
  for (const auto& block : model.blocks()) {
    const std::vector<mesh::ParamId> ids = model::named_parameters(block->card());
    blocks += std::any_of(ids.begin(), ids.end(),
                          [&](const mesh::ParamId& id) { return expert_dim(model.parameters()[static_cast<size_t>(id.first)]) >= 0; });
  }
  return blocks;
}

}  // namespace

// Homes' weights, but copies where there are some.
class CopiedExperts::StepWeights final : public model::Weights {
 public:
  explicit StepWeights(CopiedExperts& of) : of_(of) {}
  at::Tensor get(mesh::ParamId id) const override {
    const auto found = of_.copied_.find(id.first);
    if (found == of_.copied_.end()) return of_.store_->weights().get(id);
    of_.fetch(id, found->second);
    return of_.wait_for(found->second);
  }
  const mesh::Placement& placement(mesh::ParamId id) const override {
    const auto found = of_.copied_.find(id.first);
    return found == of_.copied_.end() ? of_.store_->weights().placement(id) : found->second.placement;
  }
  void fetch(std::span<const mesh::ParamId> ids) const override {
    of_.store_->weights().fetch(ids);
    for (const mesh::ParamId& id : ids)
      if (const auto found = of_.copied_.find(id.first); found != of_.copied_.end()) of_.fetch(id, found->second);
  }
  void release(std::span<const mesh::ParamId> ids, std::span<const mesh::ParamId> next) const override {
    of_.store_->weights().release(ids, next);
    if (!of_.parts_.options.rematerialize) return;
    for (const mesh::ParamId& id : ids)
      if (const auto found = of_.copied_.find(id.first); found != of_.copied_.end() && std::ranges::count(next, id) == 0)
        of_.drop(found->second);
  }

 private:
  CopiedExperts& of_;
};

// Sends the gradients of copied experts home, and hands on all others. They arrive in the order in which they left.
class CopiedExperts::StepGradients final : public mesh::Gradients {
 public:
  explicit StepGradients(CopiedExperts& of) : of_(of) {}

  void outer(mesh::ParamId id, const at::Tensor& in, const at::Tensor& dout) override { into().outer(id, in, dout); }
  void outer_fp8(mesh::ParamId id, const kernels::Fp8Matrix& in, const kernels::Fp8Matrix& dout) override {
    into().outer_fp8(id, in, dout);
  }
  void outer_grouped(mesh::ParamId id, const at::Tensor& in, const at::Tensor& dout, const kernels::RowGroups& groups) override {
    if (!of_.copied_.contains(id.first)) return into().outer_grouped(id, in, dout, groups);
    const auto options = kernels::is_half_precision(in) ? in.options().dtype(at::kFloat) : in.options();
    const at::Tensor sum = at::empty({groups.size(), dout.size(1), in.size(1)}, options);
    kernels::grouped_linear_backward_weight(sum, dout, in, groups);
    send_home(id, sum);
  }
  void add(mesh::ParamId id, const at::Tensor& gradient) override {
    of_.copied_.contains(id.first) ? send_home(id, gradient.clone()) : into().add(id, gradient);
  }
  void add_sum(mesh::ParamId id, const at::Tensor& rows) override { into().add_sum(id, rows); }
  void add_rows(mesh::ParamId id, const at::Tensor& rows, const at::Tensor& values) override { into().add_rows(id, rows, values); }
  // Of copies too, on a rank without a home.
  bool wants(mesh::ParamId id) const override { return of_.copied_.contains(id.first) || into().wants(id); }
  bool accumulates_in_fp32(mesh::ParamId id) const override { return into().accumulates_in_fp32(id); }
  void expect_more(mesh::ParamId id, int64_t contributions) override { into().expect_more(id, contributions); }
  void skip(mesh::ParamId id) override { into().skip(id); }
  void hold(mesh::ParamId id) override { into().hold(id); }
  void reduce(mesh::ParamId id) override { into().reduce(id); }
  void end_pass() override {
    flush();
    into().end_pass();
  }

  void flush() { arrive(0); }

 private:
  static constexpr size_t kInFlight = 2;

  void send_home(mesh::ParamId id, const at::Tensor& gradient) {
    const Copied& copied = of_.copied_.at(id.first);
    const Layer& layer = of_.layers_[copied.layer];
    in_flight_.push_back(
        {id, mesh::start_redistribute(of_.parts_.world, gradient, *copied.home, {comm::Purpose::gradient, layer.block}, "expert copies")});
    arrive(kInFlight);
  }

  void arrive(size_t most) {
    while (in_flight_.size() > most) {
      auto [id, moving] = std::move(in_flight_.front());
      in_flight_.pop_front();
      moving.ready.wait();
      into().add(id, moving.tensor);
    }
  }

  mesh::Gradients& into() const { return of_.store_->sink(); }

  CopiedExperts& of_;
  std::deque<std::pair<mesh::ParamId, mesh::Redistributed>> in_flight_;
};

CopiedExperts::CopiedExperts(Parts parts)
    : parts_(std::move(parts)),
      store_(&parts_.store),
      experts_(experts_of(parts_.model)),
      loads_(blocks_with_experts(parts_.model), static_cast<int>(experts_), static_cast<int>(parts_.options.window)) {
  along_ = {{{"ep", parts_.plan.mesh.extent("ep")}}, parts_.plan.mesh.peers(parts_.world.rank(), "ep"), {}};
  const std::vector<int> stages = rank_of_blocks(parts_.plan, parts_.model.blocks().size());
  for (size_t b = 0; b < parts_.model.blocks().size(); ++b) {
    const model::Card& card = parts_.model.blocks()[b]->card();
    Layer layer{.block = card.name, .stage = stages[b], .parameters = {}, .shapes = {}, .homes = {}, .table = {}};
    bool any = false;
    for (const mesh::ParamId& id : model::named_parameters(card)) {
      const model::Parameter& one = parts_.model.parameters()[static_cast<size_t>(id.first)];
      if (expert_dim(one) < 0) continue;
      any = true;
      layer.homes = std::get<mesh::Ragged>(placement_of(parts_.plan, one.name).on("ep"));
      if (!store_->shard().parameters[static_cast<size_t>(id.first)].here) continue;
      layer.parameters.push_back(id);
      layer.shapes.push_back(one.shape);
    }
    layer.table = layer.homes;
    if (any) layers_.push_back(std::move(layer));
  }
  counts_.assign(layers_.size() * (static_cast<size_t>(experts_) + parts_.nodes.size()), 0);
  weights_ = std::make_unique<StepWeights>(*this);
  sink_ = std::make_unique<StepGradients>(*this);
}

CopiedExperts::~CopiedExperts() = default;

const model::Weights& CopiedExperts::weights() const { return *weights_; }
mesh::Gradients& CopiedExperts::sink() { return *sink_; }

CopyBudget CopiedExperts::budget(std::span<const int64_t> load) const {
  const auto slots = static_cast<int>(parts_.options.memory_slots);
  if (parts_.options.overlap_degree > 0) return {static_cast<int>(parts_.options.overlap_degree), slots};
  const int64_t sum = std::accumulate(load.begin(), load.end(), int64_t{0});
  const auto busy = std::count_if(load.begin(), load.end(), [&](int64_t one) { return one * experts_ > sum; });
  return {static_cast<int>(busy), slots};
}

CopiedExperts::Copied CopiedExperts::copied(size_t layer, size_t parameter) {
  const Layer& of = layers_[layer];
  return {.layer = layer,
          .placement = {{{"ep", of.table}}},
          .spread = plans_.get(sparse_all_gather(along_, "ep", of.table, of.shapes[parameter])),
          .home = plans_.get(sparse_reduce_scatter(along_, "ep", of.table, of.shapes[parameter]))};
}

void CopiedExperts::begin() {
  add_counts();
  copied_.clear();
  copies_ = calibrated_ = held_bytes_ = 0;
  waited_ = {};
  const bool known = !loads_.history().empty();  // before, no expert is busier than another
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    const std::span<const int64_t> load = loads_.load(static_cast<int>(i));
    layer.settled = false;
    layer.table = known ? plan_copies(layer.homes, load, parts_.nodes, budget(load)) : layer.homes;
    copies_ += copies_in(layer.table);
    if (layer.table == layer.homes) continue;
    for (size_t k = 0; k < layer.parameters.size(); ++k) copied_.emplace(layer.parameters[k].first, copied(i, k));
  }
  if (steps_++ % kStepsBetweenChecks == 0) check_tables();
}

// Starts the copies, unless they are there.
void CopiedExperts::fetch(mesh::ParamId id, Copied& one) {
  if (one.values.defined()) return;
  const mesh::Redistributed moving = mesh::start_redistribute(parts_.world, store_->weights().get(id).contiguous(), *one.spread,
                                                              {comm::Purpose::parameter, layers_[one.layer].block}, "expert copies");
  one.values = moving.tensor;
  one.ready = moving.ready;
  held_bytes_ += static_cast<int64_t>(one.values.nbytes());
  peak_bytes_ = std::max(peak_bytes_, held_bytes_);
}

const at::Tensor& CopiedExperts::wait_for(Copied& one) {
  const std::chrono::nanoseconds asked = parts_.world.clock().now();
  std::exchange(one.ready, {}).wait();
  waited_ += parts_.world.clock().now() - asked;
  return one.values;
}

// A copy that no pass has read was sent all the same.
void CopiedExperts::drop(Copied& one) {
  if (!one.values.defined()) return;
  std::exchange(one.ready, {}).wait();
  held_bytes_ -= static_cast<int64_t>(one.values.nbytes());
  one.values = at::Tensor();
}

// The first pass of a step decides for all of them: it computes the layer before any other pass does.
mesh::Ragged CopiedExperts::calibrate(std::string_view block, std::span<const int64_t> rows) {
  const size_t index = index_of(block);
  Layer& layer = layers_[index];
  if (!parts_.options.calibrate || std::exchange(layer.settled, true)) return layer.table;
  std::vector<int64_t> load(static_cast<size_t>(experts_), 0);
  for (size_t i = 0; i < rows.size(); ++i) load[i % load.size()] += rows[i];
  mesh::Ragged larger = parallel::calibrate(layer.table, rows, parts_.nodes, budget(load), parts_.costs);
  if (larger == layer.table) return layer.table;
  ++calibrated_;
  copies_ += copies_in(larger) - copies_in(layer.table);
  const mesh::Placement before{{{"ep", layer.table}}};
  layer.table = std::move(larger);
  for (size_t k = 0; k < layer.parameters.size(); ++k) {
    const mesh::ParamId id = layer.parameters[k];
    Copied one = copied(index, k);
    const auto held = copied_.find(id.first);
    const bool fetched = held != copied_.end() && held->second.values.defined();
    const at::Tensor values = fetched ? wait_for(held->second) : store_->weights().get(id).contiguous();
    const auto added =
        fetched ? plans_.get({.from = {along_, before}, .to = {along_, one.placement}, .shape = layer.shapes[k]}) : one.spread;
    const mesh::Redistributed moving =
        mesh::start_redistribute(parts_.world, values, *added, {comm::Purpose::parameter, layer.block}, "expert copies");
    if (fetched) drop(held->second);
    one.values = moving.tensor;
    one.ready = moving.ready.then([added, values] {});  // kept while they travel
    held_bytes_ += static_cast<int64_t>(one.values.nbytes());
    peak_bytes_ = std::max(peak_bytes_, held_bytes_);
    copied_.insert_or_assign(id.first, std::move(one));
  }
  return layer.table;
}

void CopiedExperts::end() {
  sink_->flush();
  for (auto& [id, one] : copied_) drop(one);
  copied_.clear();
  counts_summed_ = parts_.counters.all_reduce({counts_.data(), static_cast<int64_t>(counts_.size()), comm::Dtype::i64}, comm::Reduce::sum,
                                              {comm::Purpose::control, "tokens of experts"});
  counting_ = true;
}

size_t CopiedExperts::index_of(std::string_view block) const {
  const auto layer = std::find_if(layers_.begin(), layers_.end(), [&](const Layer& one) { return one.block == block; });
  CAIRN_CHECK(layer != layers_.end(), "{} has no experts", block);
  return static_cast<size_t>(layer - layers_.begin());
}

void CopiedExperts::leaving(std::string_view block, const std::vector<int64_t>& rows) {
  CAIRN_CHECK(static_cast<int64_t>(rows.size()) == experts_, "{}: counts of {} experts", block, rows.size());
  const size_t first = index_of(block) * static_cast<size_t>(experts_);
  for (size_t e = 0; e < rows.size(); ++e) counts_[first + e] += rows[e];
}

void CopiedExperts::arriving(std::string_view block, int64_t rows) {
  const size_t ranks = parts_.nodes.size(), me = static_cast<size_t>(parts_.plan.mesh.coordinate(parts_.world.rank(), "ep"));
  counts_[layers_.size() * static_cast<size_t>(experts_) + index_of(block) * ranks + me] += rows;
}

void CopiedExperts::add_counts() {
  if (!std::exchange(counting_, false)) return;
  std::exchange(counts_summed_, {}).wait_host();
  const auto tokens = static_cast<std::ptrdiff_t>(layers_.size()) * experts_;
  std::vector<int64_t> of_experts(counts_.begin(), counts_.begin() + tokens);
  imbalance_ = imbalance_of({counts_.begin() + tokens, counts_.end()});
  home_imbalance_ = imbalance_at_home(of_experts);
  loads_.add(std::move(of_experts));
  std::fill(counts_.begin(), counts_.end(), 0);
}

// `rows`: by layer and rank.
double CopiedExperts::imbalance_of(const std::vector<int64_t>& rows) const {
  double worst = 0;
  const size_t ranks = parts_.nodes.size();
  for (size_t first = 0; first < rows.size(); first += ranks) {
    const auto begin = rows.begin() + static_cast<std::ptrdiff_t>(first), end = begin + static_cast<std::ptrdiff_t>(ranks);
    if (const int64_t sum = std::accumulate(begin, end, int64_t{0}); sum > 0)
      worst = std::max(worst, static_cast<double>(*std::max_element(begin, end)) * static_cast<double>(ranks) / static_cast<double>(sum));
  }
  return worst;
}

double CopiedExperts::imbalance_at_home(const std::vector<int64_t>& counts) const {
  std::vector<int64_t> rows(layers_.size() * parts_.nodes.size(), 0);
  for (size_t i = 0; i < counts.size(); ++i) {
    const size_t layer = i / static_cast<size_t>(experts_), expert = i % static_cast<size_t>(experts_);
    rows[layer * parts_.nodes.size() + static_cast<size_t>(layers_[layer].homes.owners[expert].front())] += counts[i];
  }
  return imbalance_of(rows);
}

std::vector<mesh::Ragged> CopiedExperts::homes() const {
  std::vector<mesh::Ragged> all;
  for (const Layer& layer : layers_) all.push_back(layer.homes);
  return all;
}

std::vector<std::string> CopiedExperts::blocks() const {
  std::vector<std::string> all;
  for (const Layer& layer : layers_) all.push_back(layer.block);
  return all;
}

// The layers of each pipeline stage by themselves, so that no rank gets more experts than another one of its stage.
std::vector<mesh::Ragged> CopiedExperts::planned_homes() {
  add_counts();
  std::vector<mesh::Ragged> all = homes();
  if (loads_.history().empty()) return all;
  std::map<int, std::vector<size_t>> stages;
  for (size_t i = 0; i < layers_.size(); ++i) stages[layers_[i].stage].push_back(i);
  for (const auto& [stage, indices] : stages) {
    std::vector<mesh::Ragged> before;
    std::vector<std::vector<int64_t>> load;
    int overlap = 0;
    for (const size_t i : indices) {
      const std::span<const int64_t> of_layer = loads_.load(static_cast<int>(i));
      before.push_back(all[i]);
      load.emplace_back(of_layer.begin(), of_layer.end());
      overlap = std::max(overlap, budget(of_layer).overlap);
    }
    std::vector<mesh::Ragged> after = reshard(before, load, parts_.nodes, overlap);
    for (size_t k = 0; k < indices.size(); ++k) all[indices[k]] = std::move(after[k]);
  }
  return all;
}

void CopiedExperts::moved(ParameterStore& store, const std::vector<mesh::Ragged>& homes) {
  CAIRN_CHECK(homes.size() == layers_.size() && copied_.empty(), "{} tables of homes for {} layers", homes.size(), layers_.size());
  store_ = &store;
  for (size_t i = 0; i < homes.size(); ++i) layers_[i].homes = layers_[i].table = homes[i];
}

mesh::NamedTensors CopiedExperts::state() {
  add_counts();
  const auto layers = static_cast<int64_t>(layers_.size());
  const at::Tensor loads = at::full({parts_.options.window, layers, experts_}, -1, at::kLong);  // -1: the step is not there
  auto* next = loads.mutable_data_ptr<int64_t>();
  for (const std::vector<int64_t>& step : loads_.history()) next = std::copy(step.begin(), step.end(), next);
  const at::Tensor homes = at::empty({layers, experts_}, at::kLong);
  for (size_t i = 0; i < layers_.size(); ++i)
    for (size_t e = 0; e < static_cast<size_t>(experts_); ++e)
      homes.mutable_data_ptr<int64_t>()[i * static_cast<size_t>(experts_) + e] = layers_[i].homes.owners[e].front();
  return {{"loads", loads}, {"homes", homes}, {"ranks", at::full({1}, static_cast<int64_t>(parts_.nodes.size()), at::kLong)}};
}

std::vector<mesh::Ragged> CopiedExperts::restore(const mesh::NamedTensors& saved) {
  const auto find = [&](std::string_view name) {
    const auto found = std::find_if(saved.begin(), saved.end(), [&](const mesh::NamedTensor& one) { return one.name == name; });
    return found == saved.end() || found->tensor.scalar_type() != at::kLong ? at::Tensor() : found->tensor.contiguous();
  };
  const auto layers = static_cast<int64_t>(layers_.size());
  const size_t line = layers_.size() * static_cast<size_t>(experts_);
  loads_ = LoadWindow(static_cast<int>(layers), static_cast<int>(experts_), static_cast<int>(parts_.options.window));
  if (const at::Tensor loads = find("loads"); loads.defined() && loads.dim() == 3 && loads.size(1) == layers && loads.size(2) == experts_)
    for (int64_t step = 0; step < loads.size(0); ++step) {
      const auto* counts = loads.const_data_ptr<int64_t>() + step * static_cast<int64_t>(line);
      if (std::all_of(counts, counts + line, [](int64_t one) { return one >= 0; })) loads_.add({counts, counts + line});
    }
  const at::Tensor homes = find("homes"), ranks = find("ranks");
  const auto extent = static_cast<int64_t>(parts_.nodes.size());
  if (!homes.defined() || homes.sizes() != at::IntArrayRef({layers, experts_})) return {};
  if (!ranks.defined() || ranks.numel() != 1 || ranks.item<int64_t>() != extent) return {};
  std::vector<mesh::Ragged> all = this->homes();
  for (size_t i = 0; i < line; ++i) {
    const int64_t home = homes.const_data_ptr<int64_t>()[i];
    if (home < 0 || home >= extent) return {};
    all[i / static_cast<size_t>(experts_)].owners[i % static_cast<size_t>(experts_)] = {static_cast<int>(home)};
  }
  return all;
}

std::vector<std::pair<std::string, double>> CopiedExperts::metrics() const {
  std::vector<std::pair<std::string, double>> all{{"expert_copies", static_cast<double>(copies_)},
                                                  {"expert_imbalance", imbalance_},
                                                  {"expert_home_imbalance", home_imbalance_},
                                                  {"expert_copy_bytes", static_cast<double>(peak_bytes_)},
                                                  {"expert_copy_wait_s", std::chrono::duration<double>(waited_).count()}};
  if (parts_.options.calibrate) all.emplace_back("expert_calibrated", static_cast<double>(calibrated_));
  return all;
}

// All ranks must have made the same tables, or their messages would not meet.
void CopiedExperts::check_tables() const {
  std::vector<mesh::Ragged> tables;
  for (const Layer& layer : layers_) tables.push_back(layer.table);
  const auto hash = static_cast<int64_t>(plan_hash(tables) >> 1);
  std::vector<int64_t> both{hash, -hash};
  parts_.counters.all_reduce({both.data(), 2, comm::Dtype::i64}, comm::Reduce::max, {comm::Purpose::control, "tables of experts"})
      .wait_host();
  CAIRN_CHECK(both[0] == -both[1], "rank {} has planned other copies of experts than another rank", parts_.world.rank());
}

}  // namespace cairn::parallel
