#include "optim/swapped_optimizer.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include <c10/util/accumulate.h>
#include <fmt/format.h>

#include "base/check.h"
#include "kernels/aten.h"

namespace cairn::optim {
namespace {

class SwappedStateMemory final : public StateMemory {
 public:
  SwappedStateMemory(mesh::TensorSwapper& swapper, memory::TierKind home) : swapper_(swapper), home_(home) {}

  at::Tensor zeros(int64_t group, at::IntArrayRef sizes, const at::TensorOptions& options) override {
    return swapper_
        .make({.name = fmt::format("optimizer.{}.{}", group, requests_[group]++),
               .home = home_,
               .use = base::MemoryUse::optimizer,
               .io_class = memory::IoClass::states},
              c10::multiply_integers(sizes), options)
        .view(sizes);
  }

 private:
  mesh::TensorSwapper& swapper_;
  const memory::TierKind home_;
  std::map<int64_t, int64_t> requests_;  // by group
};

class SwappedOptimizer final : public Optimizer {
 public:
  SwappedOptimizer(std::unique_ptr<Optimizer> inner, const std::vector<ParameterPiece>& pieces, mesh::TensorSwapper& swapper, int64_t ahead)
      : inner_(std::move(inner)), swapper_(swapper), ahead_(ahead) {
    std::map<std::string, size_t> group_of;  // by parameter
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (groups_.empty() || pieces[i].group != pieces[i - 1].group) groups_.push_back({.first = static_cast<int64_t>(i)});
      Group& group = groups_.back();
      group.end = static_cast<int64_t>(i) + 1;
      add(group.changed, pieces[i].parameter);
      add(group.read, pieces[i].gradient);
      group_of[pieces[i].name] = groups_.size() - 1;
    }
    for (const mesh::NamedTensor& one : inner_->state())  // "exp_avg.model.norm.weight" belongs to model.norm.weight
      if (const auto found = group_of.find(one.name.substr(one.name.find('.') + 1)); found != group_of.end())
        add(groups_[found->second].changed, one.tensor);
  }

  void update(int64_t piece, const UpdateFacts& facts) override { update_several(piece, 1, facts); }

  void update_several(int64_t first, int64_t count, const UpdateFacts& facts) override {
    const int64_t end = first + count;
    size_t g = 0;
    while (g < groups_.size() && groups_[g].end <= first) ++g;
    for (; g < groups_.size() && groups_[g].first < end; ++g) {
      const Group& group = groups_[g];
      for (size_t next = g; next < groups_.size() && next <= g + static_cast<size_t>(ahead_) && groups_[next].first < end; ++next)
        if (!read_ahead(groups_[next])) break;
      {
        const auto read = swapper_.hold(group.read, mesh::TensorSwapper::Access::read);
        const auto changed = swapper_.hold(group.changed, mesh::TensorSwapper::Access::update);
        const int64_t from = std::max(first, group.first);
        inner_->update_several(from, std::min(end, group.end) - from, facts);
      }
      for (const at::Tensor& one : group.changed)
        if (g + 1 == groups_.size() || !uses(groups_[g + 1], one)) swapper_.write_back(one);
    }
  }

  mesh::NamedTensors state() override { return inner_->state(); }

 private:
  struct Group {
    int64_t first = 0, end = 0;             // pieces
    std::vector<at::Tensor> changed = {}, read = {};  // swapped; one for each storage
  };

  void add(std::vector<at::Tensor>& list, const at::Tensor& tensor) const {
    if (!swapper_.owns(tensor)) return;
    if (std::none_of(list.begin(), list.end(), [&](const at::Tensor& one) { return swapper_.same(one, tensor); })) list.push_back(tensor);
  }
  bool uses(const Group& group, const at::Tensor& tensor) const {
    return std::any_of(group.changed.begin(), group.changed.end(), [&](const at::Tensor& one) { return swapper_.same(one, tensor); });
  }
  bool read_ahead(const Group& group) {
    for (const std::vector<at::Tensor>* list : {&group.read, &group.changed})
      for (const at::Tensor& one : *list)
        if (!swapper_.prefetch(one)) return false;
    return true;
  }

  std::unique_ptr<Optimizer> inner_;
  mesh::TensorSwapper& swapper_;
  const int64_t ahead_;
  std::vector<Group> groups_;
};

}  // namespace

std::unique_ptr<StateMemory> swapped_state_memory(mesh::TensorSwapper& swapper, memory::TierKind home) {
  return std::make_unique<SwappedStateMemory>(swapper, home);
}

std::unique_ptr<Optimizer> swap_groups(std::unique_ptr<Optimizer> inner, const std::vector<ParameterPiece>& pieces,
                                       mesh::TensorSwapper& swapper, int64_t ahead) {
  return std::make_unique<SwappedOptimizer>(std::move(inner), pieces, swapper, ahead);
}

}  // namespace cairn::optim
