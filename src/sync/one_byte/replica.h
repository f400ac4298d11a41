#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/enum_names.h"
#include "base/random.h"
#include "kernels/perturb.h"
#include "model/call.h"
#include "sync/one_byte/message.h"
#include "sync/one_byte/sharded_direction.h"
#include "sync/variational_problem.h"

namespace cairn::mesh {
class WriteBarrier;
}

namespace cairn::sync {

// How slopes are divided before they are applied: by their number, or by its square root.
enum class SlopeScale { mean, sqrt };
inline constexpr base::EnumName<SlopeScale> kSlopeScaleNames[] = {{SlopeScale::mean, "mean"}, {SlopeScale::sqrt, "sqrt"}};
inline constexpr base::EnumName<kernels::Noise> kNoiseNames[] = {{kernels::Noise::normal, "normal"},
                                                                 {kernels::Noise::rademacher, "rademacher"}};

struct OneByteOptions {
  int64_t samples_per_round = 30;
  double eps = 1e-3;  // how far the weights are perturbed to measure a slope
  kernels::Noise noise = kernels::Noise::normal;
  SlopeCode code = SlopeCode::log8;  // the others are for comparison
  bool unbiased = false;             // log8 rounds stochastically, without bias
  SlopeScale scale = SlopeScale::mean;
  double weight_decay = 0;  // of matrices
  int64_t hash_every = 64;  // rounds between two comparisons of all machines' weights
};
void check(const OneByteOptions& options);

// The mean loss at these weights on the batch that the key names, summed in fp32 or better and deterministic given the key. It need not be
// differentiable: only its value is used.
using LossAt = std::function<double(const model::Weights& at, const BatchKey& batch)>;

// A finite-difference slope of the loss along the random direction of (round, machine, sample).
struct Slope {
  float slope = 0;
  double above = 0, below = 0;  // the losses at + eps and - eps
};

// One machine's copy of the weights. Directions are functions of run, machine, round, sample and parameter name, so a slope is all that a
// message needs: machines that apply the same rounds to the same start hold bitwise identical weights. The update is in replica.cpp.
class OneByteReplica {
 public:
  // The part of a parameter that this rank updates.
  struct Piece {
    at::Tensor value = {};  // undefined: none
    int64_t begin = 0;      // of its elements in the local tensor (ZeRO)
  };
  // Borrowed. Weights are on one device, fp32 or bf16.
  struct Model {
    const model::Weights& weights;
    std::vector<std::string> names;  // by parameter
    std::vector<bool> trained;
    std::vector<Piece> pieces = {};              // by parameter; empty: all of get(i), which must be a view of what is kept
    std::vector<ShardedParameter> sharded = {};  // by parameter; empty: get(i) is whole
    mesh::WriteBarrier* barrier = nullptr;       // told before weights change; null: nobody asks
  };

  OneByteReplica(const OneByteOptions& options, uint64_t run, Model model);

  // Evaluates the loss on both sides of the weights. The weights do not change: each parameter is perturbed into temporary memory when the
  // model reads it.
  Slope measure(const LossAt& loss, uint32_t round, uint32_t machine, int64_t sample) const;
  // Applies all slopes of a round: machines in ascending order, then samples, summed in fp32.
  void apply(const RoundRecord& record);

  uint64_t hash() const;                        // of the trained weights that this rank updates
  std::vector<uint64_t> tensor_hashes() const;  // by parameter; 0 if it is not trained
  // Machines with the same fingerprint draw the same directions, decode slopes identically and train the same parameters in the same way.
  uint64_t fingerprint() const;

  const OneByteOptions& options() const { return options_; }
  const Model& model() const { return model_; }
  SlopeCode code() const { return code_; }
  uint64_t run() const { return run_; }
  Piece piece(size_t parameter) const;
  ShardedParameter sharded(size_t parameter) const;
  base::Random direction(uint32_t round, uint32_t machine, int64_t sample, int64_t parameter) const;

 private:
  OneByteOptions options_;
  uint64_t run_;
  Model model_;
  SlopeCode code_;
  kernels::Noise noise_;
};

}  // namespace cairn::sync
