#include "optim/bf16_optimizer.h"

#include <algorithm>

#include "base/check.h"
#include "base/random.h"
#include "kernels/aten.h"
#include "optim/needs.h"
#include "optim/options.h"

namespace cairn::optim {
namespace {

class Bf16Optimizer final : public Optimizer {
 public:
  Bf16Optimizer(const OptimOptions& options, std::vector<ParameterPiece> pieces, const base::Random& random, StateMemory* memory)
      : nearest_(options.rounding == Rounding::nearest),
        direct_(optimizer_needs(options.kind).updates_bf16),
        random_(random.for_purpose("rounding")) {
    int64_t largest = 0;
    for (const ParameterPiece& piece : pieces) {
      CAIRN_CHECK(piece.parameter.scalar_type() == at::kBFloat16 && piece.parameter.is_contiguous(), "{} is not kept in bf16", piece.name);
      largest = std::max(largest, piece.parameter.numel());
    }
    if (direct_) largest = 0;
    const at::Device device = pieces.empty() ? at::Device(at::kCPU) : pieces[0].parameter.device();
    const at::Tensor buffer = at::empty({largest}, at::TensorOptions().dtype(at::kFloat).device(device));
    for (ParameterPiece& piece : pieces) {
      if (direct_) break;
      kept_.push_back({piece});
      piece.parameter = kept_.back().wide = buffer.narrow(0, 0, piece.parameter.numel()).view(piece.parameter.sizes());
    }
    inner_ = make_optimizer(options, std::move(pieces), memory);
  }

  mesh::NamedTensors state() override { return inner_->state(); }

  void update(int64_t piece, const UpdateFacts& facts) override {
    if (direct_) return inner_->update(piece, rounded(facts));
    const Kept& one = kept_[static_cast<size_t>(piece)];
    one.wide.copy_(one.low.parameter);
    inner_->update(piece, facts);
    round_into(one.low, one.wide, rounded(facts));
  }

  // A rule that cannot update bf16 works in one fp32 buffer, so its pieces go one at a time.
  void update_several(int64_t first, int64_t count, const UpdateFacts& facts) override {
    if (direct_) return inner_->update_several(first, count, rounded(facts));
    Optimizer::update_several(first, count, facts);
  }
  at::Tensor step_scalars(const UpdateFacts& facts) override { return direct_ ? inner_->step_scalars(rounded(facts)) : at::Tensor(); }

 private:
  UpdateFacts rounded(UpdateFacts facts) const {
    facts.rounding = nearest_ ? nullptr : &random_;
    return facts;
  }

  struct Kept {
    ParameterPiece low;
    at::Tensor wide = {};  // fp32 copy; all pieces share one buffer
  };

  const bool nearest_;
  const bool direct_;  // the rule updates bf16 parameters itself
  base::Random random_;
  std::vector<Kept> kept_;  // empty where direct_
  std::unique_ptr<Optimizer> inner_;
};

}  // namespace

std::unique_ptr<Optimizer> make_bf16_optimizer(const OptimOptions& options, std::vector<ParameterPiece> pieces,
                                               const base::Random& random, StateMemory* memory) {
  return std::make_unique<Bf16Optimizer>(options, std::move(pieces), random, memory);
}

}  // namespace cairn::optim
