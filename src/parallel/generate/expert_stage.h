// Decoding along ep: one rank's part of a pipeline stage whose experts lie on several ranks. A token in flight is a row of the residual
// stream. In the flow ep it stays on the rank of its sequence, and goes to its experts and back in every layer:
//
//   attention, router -- exchange: normed rows to their experts --> experts -- exchange: results back --> sum
//
// ExFlow (Yao et al. 2024, arXiv:2401.08383) gives every rank the KV cache of all sequences, so that a row can go on wherever its expert
// is. The way back is gone:
//
//   attention, router -- exchange: the row moves to its first expert's rank --> norm, expert, sum: the row is there now
//
//   KV cache    the keys and values that a rank appends go to all others in the background, awaited before the next token's attention
//   top_k > 1   the same exchange takes copies to the row's other experts; a second one brings their results to where the row is now
//   prompts     run on their home rank (the sequence's number mod ranks) in the flow ep
//
// Experts that follow each other on one rank (planner/experts/place_experts.h) make most moves unnecessary.
#pragma once
#include <cstddef>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "base/enum_names.h"
#include "mesh/axes.h"
#include "model/call.h"
#include "model/generate/cached_blocks.h"
#include "model/generate/decode_runner.h"
#include "parallel/generate/row_messages.h"

namespace cairn::model {
class RoutedBlock;
}

namespace cairn::parallel {

// How tokens that are generated reach the experts of other ranks.
enum class ExpertFlow { ep, exflow };
inline constexpr base::EnumName<ExpertFlow> kExpertFlowNames[] = {{ExpertFlow::ep, "ep"}, {ExpertFlow::exflow, "exflow"}};

// What the rows of this rank did.
struct ExpertTraffic {
  int64_t rows = 0;   // tokens times layers with experts, in decode steps
  int64_t moved = 0;  // of these, the ones that went to another rank (exflow), or have an expert on another one (ep)
  int64_t exchanges = 0;
};

class ExpertStage {
 public:
  // Borrows all references.
  struct Parts {
    const model::Model& model;
    const model::Weights& weights;
    model::Buffers& buffers;
    const mesh::Axes& axes;      // without ep
    size_t first = 0, last = 0;  // the blocks [first, last)
    int64_t rows = 0;            // sequences
    int64_t length_max = 0;
    bool together = false;  // adjacent sequences at the same position share a call of the attention
    ExpertFlow flow = ExpertFlow::ep;
    comm::Group& tokens;  // the ranks along ep
    comm::Group& cache;   // the same ranks: keys and values
  };
  explicit ExpertStage(const Parts& parts);

  // Rows on this rank: their numbers in the step, ascending, and their values [rows, width].
  struct Rows {
    std::vector<int64_t> numbers;
    at::Tensor values;
  };
  // Runs the stage on a step's rows, or on a prompt (consecutive positions of one sequence). All ranks along ep call it with the same
  // `step`. `here`: what the stage before gave on this rank; not read by the first stage. The model's last block gives logits, of a
  // prompt's last position only.
  Rows run(const std::vector<model::DecodeRow>& step, bool prompt, Rows here);
  // Copies the first positions of a sequence to another one.
  void copy(int64_t from, int64_t to, int64_t positions);
  // Waits for keys and values in flight.
  void finish() { settle(pending_.size()); }

  const ExpertTraffic& traffic() const { return traffic_; }

 private:
  // Keys and values of a block that are on their way to all ranks.
  struct Pending {
    size_t block;
    int64_t step;
    RowMessages messages;
  };

  int home(int64_t sequence) const;
  int64_t cache_row(int64_t sequence) const;
  model::Call call();
  at::Tensor run_block(size_t block, const at::Tensor& x, int64_t begin, int64_t row, int64_t batch);
  at::Tensor attend(size_t block, const std::vector<model::DecodeRow>& step, bool prompt, const Rows& here);
  void send_cache(size_t block, const std::vector<model::DecodeRow>& step, const Rows& here);
  void settle(size_t count);  // the first so many of pending_
  void settle_before(size_t block);
  void take_cache(size_t block, const at::Tensor& bytes);
  std::vector<std::string> cache_names(size_t block) const;
  Rows route(const model::RoutedBlock& layer, const std::string& name, bool prompt, const Rows& here);

  Parts parts_;
  int ranks_, me_;
  model::CachedBlocks blocks_;
  model::KvCache none_;
  std::deque<Pending> pending_;
  int64_t steps_ = 0;
  ExpertTraffic traffic_;
};

}  // namespace cairn::parallel
