#include "parallel/pipeline/routing.h"

#include <algorithm>
#include <numeric>
#include <string>

#include "base/check.h"
#include "comm/group.h"
#include "comm/work.h"
#include "kernels/aten.h"
#include "parallel/plan.h"

namespace cairn::parallel {
namespace {

constexpr int64_t kMaxFieldDims = 8;

// The tensors of a batch, in the order in which they are sent.
std::vector<std::pair<std::string, at::Tensor*>> tensors_of(mesh::Batch& batch) {
  std::vector<std::pair<std::string, at::Tensor*>> all{{"sample ids", &batch.ids}};
  if (batch.weights.defined()) all.emplace_back("sample weights", &batch.weights);
  for (auto& [name, field] : batch.fields) all.emplace_back(name, &field.tensor);
  return all;
}

void send(comm::Group& all, mesh::Batch batch, int to, std::vector<comm::Work>& sent) {
  const auto tensors = tensors_of(batch);
  const at::Tensor shapes = at::zeros({static_cast<int64_t>(tensors.size()), kMaxFieldDims}, at::kLong);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const at::Tensor& tensor = *tensors[i].second;
    CAIRN_CHECK(tensor.dim() <= kMaxFieldDims, "{} has {} dims", tensors[i].first, tensor.dim());
    std::copy(tensor.sizes().begin(), tensor.sizes().end(), shapes[static_cast<int64_t>(i)].mutable_data_ptr<int64_t>());
  }
  sent.push_back(all.send(shapes, to, {comm::Purpose::control, "shapes of a batch"}));
  for (const auto& [name, tensor] : tensors) sent.push_back(all.send(tensor->contiguous(), to, {comm::Purpose::activation, name}));
}

// `like`: a batch of this rank, whose tensors have the same names and numbers of dims.
mesh::Batch receive(comm::Group& all, mesh::Batch like, int from) {
  const auto tensors = tensors_of(like);
  const at::Tensor shapes = at::empty({static_cast<int64_t>(tensors.size()), kMaxFieldDims}, at::kLong);
  all.recv(shapes, from, {comm::Purpose::control, "shapes of a batch"}).wait_host();
  std::vector<comm::Work> pending;
  for (size_t i = 0; i < tensors.size(); ++i) {
    at::Tensor& tensor = *tensors[i].second;
    const auto* sizes = shapes[static_cast<int64_t>(i)].const_data_ptr<int64_t>();
    tensor = at::empty(std::vector<int64_t>(sizes, sizes + tensor.dim()), tensor.options());
    pending.push_back(all.recv(tensor, from, {comm::Purpose::activation, tensors[i].first}));
  }
  for (const comm::Work& one : pending) one.wait();
  return like;
}

}  // namespace

Routes::Routes(const base::Random& step, int replicas, int micro_batches, int stages) : stages_(stages) {
  const base::Random random = step.for_purpose("routes");
  for (int m = 0; m < micro_batches; ++m)
    for (int border = 0; border + 1 < stages; ++border) {
      const base::Random draw = random.for_index(static_cast<uint64_t>(m)).for_index(static_cast<uint64_t>(border));
      std::vector<int> to(static_cast<size_t>(replicas)), back(to.size());
      std::iota(to.begin(), to.end(), 0);
      for (size_t i = to.size() - 1; i > 0; --i) std::swap(to[i], to[draw.below(i, i + 1)]);  // Fisher and Yates
      for (size_t i = 0; i < to.size(); ++i) back[static_cast<size_t>(to[i])] = static_cast<int>(i);
      after_.push_back(std::move(to));
      before_.push_back(std::move(back));
    }
}

int Routes::replica_at(int micro_batch, int replica, int from, int to) const {
  if (stages_ == 0) return replica;
  const auto border = [&](int stage) { return static_cast<size_t>(micro_batch * (stages_ - 1) + stage); };
  for (; from < to; ++from) replica = after_[border(from)][static_cast<size_t>(replica)];
  for (; from > to; --from) replica = before_[border(from - 1)][static_cast<size_t>(replica)];
  return replica;
}

PipelineTopology single_pipeline(comm::Group& along) {
  std::vector<int> places(static_cast<size_t>(along.size()));
  std::iota(places.begin(), places.end(), 0);
  return {.all = along, .places = std::move(places), .along = along.rank(), .ranks = along.size()};
}

PipelineTopology island_pipelines(const Plan& plan, comm::Group& all, int rank) {
  const int replicas = plan.mesh.extent("island"), ranks = plan.mesh.extent("pp");
  CAIRN_CHECK(all.size() == replicas * ranks, "{} ranks for {} pipelines of {}", all.size(), replicas, ranks);
  std::vector<int> places(static_cast<size_t>(all.size()));
  for (int i = 0; i < all.size(); ++i) {
    const int one = all.ranks()[static_cast<size_t>(i)];
    places[static_cast<size_t>(plan.mesh.coordinate(one, "island") * ranks + plan.mesh.coordinate(one, "pp"))] = i;
  }
  return {.all = all,
          .places = std::move(places),
          .replica = plan.mesh.coordinate(rank, "island"),
          .along = plan.mesh.coordinate(rank, "pp"),
          .replicas = replicas,
          .ranks = ranks};
}

std::map<std::pair<int, int>, mesh::Batch> exchange_routed_batches(const PipelineTopology& at, const Routes& routes,
                                                                   const std::vector<int>& stages, const std::vector<mesh::Batch>& own) {
  // All sends are started before anything is received. Both sides of a pair go by stage, then micro-batch.
  std::vector<comm::Work> sent;
  std::map<std::pair<int, int>, mesh::Batch> routed;
  for (const int stage : stages)
    for (size_t m = 0; m < own.size(); ++m)
      if (const int to = routes.replica_at(static_cast<int>(m), at.replica, 0, stage); to != at.replica)
        send(at.all, own[m], at.place(to, at.along), sent);
  for (const int stage : stages)
    for (size_t m = 0; m < own.size(); ++m)
      if (const int from = routes.replica_at(static_cast<int>(m), at.replica, stage, 0); from != at.replica)
        routed.emplace(std::pair(stage, static_cast<int>(m)), receive(at.all, own[m], at.place(from, at.along)));
  for (const comm::Work& one : sent) one.wait();
  return routed;
}

}  // namespace cairn::parallel
