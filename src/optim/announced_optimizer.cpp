#include "optim/announced_optimizer.h"

#include <string>
#include <utility>

#include "kernels/aten.h"

namespace cairn::optim {
namespace {

class AnnouncedOptimizer final : public Optimizer {
 public:
  AnnouncedOptimizer(std::unique_ptr<Optimizer> inner, const std::vector<ParameterPiece>& pieces, bool elementwise,
                     mesh::WriteBarrier& barrier)
      : inner_(std::move(inner)), barrier_(barrier), elementwise_(elementwise) {
    for (const ParameterPiece& piece : pieces) {
      names_.push_back(piece.name);
      written_.push_back({piece.parameter});
    }
    find_state();
  }

  void update(int64_t piece, const UpdateFacts& facts) override {
    if (barrier_.active()) announce(piece);
    inner_->update(piece, facts);
  }

  void update_several(int64_t first, int64_t count, const UpdateFacts& facts) override {
    if (!barrier_.active()) return inner_->update_several(first, count, facts);
    int64_t begin = first;
    for (int64_t piece = first; piece < first + count; ++piece) {
      if (elementwise_ && piece > begin && waits(piece)) {
        inner_->update_several(begin, piece - begin, facts);
        begin = piece;
      }
      announce(piece);
    }
    inner_->update_several(begin, first + count - begin, facts);
  }

  at::Tensor step_scalars(const UpdateFacts& facts) override { return inner_->step_scalars(facts); }
  mesh::NamedTensors state() override { return inner_->state(); }

 private:
  // State belongs to the piece whose name ends its own ("exp_avg.model.norm.weight"). What belongs to none may change with any.
  void find_state() {
    for (const mesh::NamedTensor& one : inner_->state()) {
      bool found = false;
      for (size_t i = 0; i < names_.size(); ++i) {
        if (!one.name.ends_with(names_[i])) continue;
        written_[i].push_back(one.tensor);
        found = true;
      }
      if (!found) shared_.push_back(one.tensor);
    }
  }

  void announce(int64_t piece) {
    for (const at::Tensor& tensor : shared_) barrier_.before_write(tensor);
    for (const at::Tensor& tensor : written_[static_cast<size_t>(piece)]) barrier_.before_write(tensor);
  }
  bool waits(int64_t piece) const {
    for (const at::Tensor& tensor : written_[static_cast<size_t>(piece)])
      if (barrier_.would_wait(tensor)) return true;
    return false;
  }

  std::unique_ptr<Optimizer> inner_;
  mesh::WriteBarrier& barrier_;
  const bool elementwise_;
  std::vector<std::string> names_;
  std::vector<std::vector<at::Tensor>> written_;  // by piece
  std::vector<at::Tensor> shared_;
};

}  // namespace

std::unique_ptr<Optimizer> announce_writes(std::unique_ptr<Optimizer> inner, const std::vector<ParameterPiece>& pieces, bool elementwise,
                                           mesh::WriteBarrier& barrier) {
  return std::make_unique<AnnouncedOptimizer>(std::move(inner), pieces, elementwise, barrier);
}

}  // namespace cairn::optim
