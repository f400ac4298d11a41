#include "parallel/experts/copied_experts.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "comm/group.h"
#include "comm/world.h"
#include "kernels/aten.h"
#include "kernels/grouped_gemm.h"
#include "kernels/low_precision.h"
#include "model/model.h"
#include "model/named_parameters.h"
#include "parallel/expert_copies/token_routes.h"
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
  explicit StepWeights(const CopiedExperts& of) : of_(of) {}
  at::Tensor get(mesh::ParamId id) const override {
    const auto found = of_.copied_.find(id.first);
    if (found == of_.copied_.end()) return of_.parts_.store.weights().get(id);
    std::exchange(found->second.ready, {}).wait();
    return found->second.values;
  }
  const mesh::Placement& placement(mesh::ParamId id) const override {
    const auto found = of_.copied_.find(id.first);
    return found == of_.copied_.end() ? of_.parts_.store.weights().placement(id) : found->second.placement;
  }
  void fetch(std::span<const mesh::ParamId> ids) const override { of_.parts_.store.weights().fetch(ids); }
  void release(std::span<const mesh::ParamId> ids, std::span<const mesh::ParamId> next) const override {
    of_.parts_.store.weights().release(ids, next);
  }

 private:
  const CopiedExperts& of_;
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
  bool wants(mesh::ParamId id) const override { return into().wants(id); }
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

  mesh::Gradients& into() const { return of_.parts_.store.sink(); }

  CopiedExperts& of_;
  std::deque<std::pair<mesh::ParamId, mesh::Redistributed>> in_flight_;
};

CopiedExperts::CopiedExperts(Parts parts)
    : parts_(std::move(parts)),
      experts_(experts_of(parts_.model)),
      loads_(blocks_with_experts(parts_.model), static_cast<int>(experts_), static_cast<int>(parts_.options.window)) {
  along_ = {{{"ep", parts_.plan.mesh.extent("ep")}}, parts_.plan.mesh.peers(parts_.world.rank(), "ep"), {}};
  for (const auto& block : parts_.model.blocks()) {
    Layer layer{.block = block->card().name, .parameters = {}, .shapes = {}, .homes = {}, .table = {}};
    bool any = false;
    for (const mesh::ParamId& id : model::named_parameters(block->card())) {
      const model::Parameter& one = parts_.model.parameters()[static_cast<size_t>(id.first)];
      if (expert_dim(one) < 0) continue;
      any = true;
      layer.homes = std::get<mesh::Ragged>(placement_of(parts_.plan, one.name).on("ep"));
      if (!parts_.store.shard().parameters[static_cast<size_t>(id.first)].here) continue;
      layer.parameters.push_back(id);
      layer.shapes.push_back(one.shape);
    }
    layer.table = layer.homes;
    if (any) layers_.push_back(std::move(layer));
  }
  counts_.assign(layers_.size() * static_cast<size_t>(experts_), 0);
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

void CopiedExperts::begin() {
  add_counts();
  copied_.clear();
  copies_ = 0;
  const bool known = !loads_.history().empty();  // before, no expert is busier than another
  for (size_t i = 0; i < layers_.size(); ++i) {
    Layer& layer = layers_[i];
    const std::span<const int64_t> load = loads_.load(static_cast<int>(i));
    layer.table = known ? plan_copies(layer.homes, load, parts_.nodes, budget(load)) : layer.homes;
    copies_ += copies_in(layer.table);
  }
  if (steps_++ % kStepsBetweenChecks == 0) check_tables();
  for (size_t i = 0; i < layers_.size(); ++i) {
    const Layer& layer = layers_[i];
    if (layer.table == layer.homes) continue;
    for (size_t k = 0; k < layer.parameters.size(); ++k) {
      const mesh::ParamId id = layer.parameters[k];
      Copied one{.layer = i,
                 .placement = {{{"ep", layer.table}}},
                 .values = {},
                 .spread = plans_.get(sparse_all_gather(along_, "ep", layer.table, layer.shapes[k])),
                 .home = plans_.get(sparse_reduce_scatter(along_, "ep", layer.table, layer.shapes[k])),
                 .ready = {}};
      const mesh::Redistributed moving = mesh::start_redistribute(parts_.world, parts_.store.weights().get(id).contiguous(), *one.spread,
                                                                  {comm::Purpose::parameter, layer.block}, "expert copies");
      one.values = moving.tensor;
      one.ready = moving.ready;
      copied_.emplace(id.first, std::move(one));
    }
  }
}

void CopiedExperts::end() {
  sink_->flush();
  // A copy that no pass has read was sent all the same.
  for (auto& [id, one] : copied_) std::exchange(one.ready, {}).wait();
  copied_.clear();
  counts_summed_ = parts_.counters.all_reduce({counts_.data(), static_cast<int64_t>(counts_.size()), comm::Dtype::i64}, comm::Reduce::sum,
                                              {comm::Purpose::control, "tokens of experts"});
  counting_ = true;
}

void CopiedExperts::count(std::string_view block, const std::vector<int64_t>& tokens) {
  const auto layer = std::find_if(layers_.begin(), layers_.end(), [&](const Layer& one) { return one.block == block; });
  CAIRN_CHECK(layer != layers_.end() && static_cast<int64_t>(tokens.size()) == experts_, "{}: counts of {} experts", block, tokens.size());
  const auto first = (layer - layers_.begin()) * experts_;
  for (int64_t e = 0; e < experts_; ++e) counts_[static_cast<size_t>(first + e)] += tokens[static_cast<size_t>(e)];
}

void CopiedExperts::add_counts() {
  if (!std::exchange(counting_, false)) return;
  std::exchange(counts_summed_, {}).wait_host();
  imbalance_ = imbalance_of(counts_);
  loads_.add(std::exchange(counts_, std::vector<int64_t>(counts_.size(), 0)));
}

// Of the worst layer, as if each expert's tokens were divided evenly over its holders.
double CopiedExperts::imbalance_of(const std::vector<int64_t>& counts) const {
  double worst = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    std::vector<double> ranks(parts_.nodes.size(), 0);
    double sum = 0;
    for (size_t e = 0; e < static_cast<size_t>(experts_); ++e) {
      const std::vector<int>& holders = layers_[i].table.owners[e];
      const auto tokens = static_cast<double>(counts[i * static_cast<size_t>(experts_) + e]);
      for (const int holder : holders) ranks[static_cast<size_t>(holder)] += tokens / static_cast<double>(holders.size());
      sum += tokens;
    }
    if (sum > 0) worst = std::max(worst, *std::max_element(ranks.begin(), ranks.end()) * static_cast<double>(ranks.size()) / sum);
  }
  return worst;
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
