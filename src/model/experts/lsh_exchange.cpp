#include "model/experts/lsh_exchange.h"

#include <map>
#include <string>
#include <utility>

#include "base/check.h"
#include "kernels/aten.h"
#include "model/call.h"
#include "model/saved.h"

namespace cairn::model {
namespace {

constexpr const char *kSavedOrder = "route.lsh_order", *kSavedCluster = "route.lsh_cluster", *kSavedStarts = "route.lsh_starts",
                     *kSavedGroups = "route.lsh_groups";

// What all routes of a run share.
class LshParts {
 public:
  LshParts(std::unique_ptr<ExpertExchange> exchange, int64_t embed, const LshOptions& with)
      : inside(std::move(exchange)), options(with), rotations_(lsh_rotations(embed, with)) {}

  at::Tensor rotations_on(const at::Device& device) const {
    if (device.is_cpu()) return rotations_;
    const auto found = copies_.find(device.index());
    return found != copies_.end() ? found->second : copies_.emplace(device.index(), rotations_.to(device)).first->second;
  }

  const std::unique_ptr<ExpertExchange> inside;
  const LshOptions options;
  mutable int64_t rows = 0, centroids = 0;  // of passes with gradients, since the metrics were taken

 private:
  const at::Tensor rotations_;
  mutable std::map<int, at::Tensor> copies_;  // by GPU
};

class LshRoute final : public ExpertRoute {
 public:
  LshRoute(const LshParts& parts, const ExpertRequest& request, const Call& call)
      : parts_(parts), block_(request.block), request_(request), call_(call) {
    request_.block = block_;
  }
  // With the clusters of a route that was saved.
  LshRoute(const LshParts& parts, const ExpertRequest& request, const Call& call, Saved& saved) : LshRoute(parts, request, call) {
    clusters_ = {saved.get(kSavedOrder), saved.get(kSavedCluster), saved.get(kSavedStarts), kernels::RowGroups(saved.get(kSavedGroups))};
    route_ = parts_.inside->resume(of_clusters(), saved, call_);
  }
  const kernels::RowGroups& local_groups() override {
    CAIRN_CHECK(route_, "{}: the rows that arrive are known after dispatch, since their number depends on the rows", block_);
    return route_->local_groups();
  }

  ExpertRows dispatch(const at::Tensor& rows) override {
    clusters_ = cluster_rows(lsh_keys(rows, parts_.rotations_on(rows.device()), parts_.options), request_.groups);
    rows_ = rows;
    centroids_ = centroids_of(rows, clusters_);
    parts_.rows += rows.size(0);
    parts_.centroids += clusters_.size();
    route_ = parts_.inside->begin(of_clusters(), call_);
    return route_->dispatch(centroids_);
  }

  ExpertRows combine(const at::Tensor& results) override {
    const ExpertRows returned = route_->combine(results);
    const at::Tensor restored = at::empty_like(rows_);
    return {.rows = restored,
            .ready = returned.ready.then([restored, got = returned.rows, rows = rows_, c = centroids_, clusters = clusters_,
                                          o = parts_.options] { restored.copy_(restore_rows(got, rows, c, clusters, o)); })};
  }

  ExpertRows combine_backward(const at::Tensor& gradient) override {
    gradient_ = parts_.options.residual ? gradient.clone() : at::empty({0}, gradient.options());  // callers reuse theirs
    return route_->combine_backward(centroid_gradients(gradient, clusters_));
  }

  ExpertRows dispatch_backward(const at::Tensor& gradient) override {
    const ExpertRows returned = route_->dispatch_backward(gradient);
    const at::Tensor of_rows = at::empty({clusters_.cluster.size(0), gradient.size(1)}, gradient.options());
    return {.rows = of_rows,
            .ready = returned.ready.then([of_rows, got = returned.rows, g = std::move(gradient_), clusters = clusters_,
                                          o = parts_.options] { of_rows.copy_(row_gradients(got, g, clusters, o)); })};
  }

  void save(Saved& into) override {
    into.put(kSavedOrder, clusters_.order);
    into.put(kSavedCluster, clusters_.cluster);
    into.put(kSavedStarts, clusters_.starts);
    into.put(kSavedGroups, clusters_.groups.counts());
    route_->save(into);
  }

 private:
  ExpertRequest of_clusters() const {
    ExpertRequest request = request_;
    request.groups = clusters_.groups;
    return request;
  }

  const LshParts& parts_;
  const std::string block_;
  ExpertRequest request_;
  const Call& call_;
  at::Tensor rows_, centroids_, gradient_;
  RowClusters clusters_;
  std::unique_ptr<ExpertRoute> route_;
};

class LshExchange final : public ExpertExchange {
 public:
  explicit LshExchange(std::unique_ptr<LshParts> parts) : parts_(std::move(parts)) {}

  std::unique_ptr<ExpertRoute> begin(const ExpertRequest& request, const Call& call) const override {
    if (!call.trains()) return parts_->inside->begin(request, call);
    return std::make_unique<LshRoute>(*parts_, request, call);
  }

  std::unique_ptr<ExpertRoute> resume(const ExpertRequest& request, Saved& saved, const Call& call) const override {
    if (!saved.has(kSavedOrder)) return parts_->inside->resume(request, saved, call);
    return std::make_unique<LshRoute>(*parts_, request, call, saved);
  }

  std::vector<std::pair<std::string, double>> take_metrics() override {
    std::vector<std::pair<std::string, double>> metrics = parts_->inside->take_metrics();
    const auto rows = static_cast<double>(std::exchange(parts_->rows, 0)),
               centroids = static_cast<double>(std::exchange(parts_->centroids, 0));
    if (rows > 0) metrics.emplace_back("expert_compression", centroids / rows);
    return metrics;
  }

 private:
  const std::unique_ptr<LshParts> parts_;
};

}  // namespace

std::unique_ptr<ExpertExchange> make_lsh_exchange(std::unique_ptr<ExpertExchange> inside, int64_t embed, const LshOptions& options) {
  return std::make_unique<LshExchange>(std::make_unique<LshParts>(std::move(inside), embed, options));
}

}  // namespace cairn::model
