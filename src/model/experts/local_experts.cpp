// The route of rows on a rank that holds all experts: nothing moves, so every call hands back what it was given.
#include "model/experts/exchange.h"
#include "model/saved.h"

namespace cairn::model {
namespace {

class LocalRoute final : public ExpertRoute {
 public:
  explicit LocalRoute(kernels::RowGroups groups) : groups_(std::move(groups)) {}
  const kernels::RowGroups& local_groups() override { return groups_; }
  ExpertRows dispatch(const at::Tensor& rows) override { return {.rows = rows}; }
  ExpertRows combine(const at::Tensor& results) override { return {.rows = results}; }
  ExpertRows combine_backward(const at::Tensor& gradient) override { return {.rows = gradient}; }
  ExpertRows dispatch_backward(const at::Tensor& gradient) override { return {.rows = gradient}; }
  void save(Saved&) override {}

 private:
  kernels::RowGroups groups_;
};

class LocalExperts final : public ExpertExchange {
 public:
  std::unique_ptr<ExpertRoute> begin(const ExpertRequest& request, const Call&) const override {
    return std::make_unique<LocalRoute>(request.groups);
  }
  std::unique_ptr<ExpertRoute> resume(const ExpertRequest& request, Saved&, const Call&) const override {
    return std::make_unique<LocalRoute>(request.groups);
  }
};

}  // namespace

const ExpertExchange& local_experts() {
  static const LocalExperts one;
  return one;
}

}  // namespace cairn::model
