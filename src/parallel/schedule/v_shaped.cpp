// Schedules in the shape of a V: rank r of p runs stage r on the way down (leg `down`) and stage 2p-1-r on the way back up (leg `back`), so
// that the last stage is on the first rank and a micro-batch's loss is where its input was.
//
// ZBV (zero bubble, Qi et al., arXiv:2401.10241). Backward is cut into input gradients, which the stage before waits for, and weight
// gradients, which nobody waits for. Input gradients go first; weight gradients are done where a rank would otherwise idle.
// DualPipeV (DeepSeek's DualPipe cut in half). In the long middle every rank pairs the forward of one leg with the backward of the other,
// so that the messages of one overlap with the computation of the other.
//
// The loops below follow the phases of these papers; registry.cpp draws both.
#include <algorithm>
#include <array>
#include <deque>
#include <utility>

#include "base/check.h"
#include "parallel/schedule/generators.h"

namespace cairn::parallel {
namespace {

enum Leg { down = 0, back = 1 };

// Writes one rank's list; each kind of action takes the micro-batches of a stage in order.
class RankWriter {
 public:
  RankWriter(int ranks, int rank) : stages_{rank, 2 * ranks - 1 - rank} {}

  void forward(Leg leg) { actions_.push_back({ActionKind::forward, stages_[leg], forwards_[leg]++}); }
  void backward(Leg leg) { actions_.push_back({ActionKind::backward, stages_[leg], backwards_[leg]++}); }

  void backward_input(Leg leg) {
    open_[leg].push_back({sequence_++, backwards_[leg]});
    actions_.push_back({ActionKind::backward_input, stages_[leg], backwards_[leg]++});
  }

  void backward_weight(Leg leg) {
    CAIRN_CHECK(!open_[leg].empty(), "no weight gradient of stage {} is open", stages_[leg]);
    actions_.push_back({ActionKind::backward_weight, stages_[leg], open_[leg].front().micro_batch});
    open_[leg].pop_front();
  }

  // Of either stage, the one whose input gradient came first.
  void oldest_backward_weight() {
    const bool from_back = open_[down].empty() || (!open_[back].empty() && open_[back].front().sequence < open_[down].front().sequence);
    backward_weight(from_back ? back : down);
  }

  int forwards(Leg leg) const { return forwards_[leg]; }
  bool weight_open(Leg leg) const { return !open_[leg].empty(); }
  std::vector<Action> take() { return std::move(actions_); }

 private:
  // An input gradient whose weight gradient is still to come.
  struct Open {
    int sequence, micro_batch;
  };

  std::array<int, 2> stages_;
  std::array<int, 2> forwards_{}, backwards_{};
  std::array<std::deque<Open>, 2> open_;
  int sequence_ = 0;
  std::vector<Action> actions_;
};

// 2p-1 micro-batches fill the V. With fewer, the order is that of 2p-1 without the actions of the missing ones. With p or fewer it is
// faster to leave out the middle, so that all input gradients come before the weight gradients of leg `down`.
std::vector<Action> zero_bubble_v_rank(int ranks, int rank, int micro_batches) {
  const int filled = micro_batches <= ranks ? micro_batches : std::max(micro_batches, 2 * ranks - 1);
  RankWriter w(ranks, rank);
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) w.forward(down);
  for (int i = 0; i < rank; ++i) {
    w.forward(back);
    w.forward(down);
  }
  const auto back_through = [&] {
    w.forward(back);
    w.backward_input(back);
    w.backward_weight(back);
  };
  for (int i = 0; i < ranks - rank; ++i) back_through();
  while (w.forwards(back) < filled) {
    if (w.forwards(down) < filled) w.forward(down);
    w.backward_input(down);
    w.backward_weight(down);
    back_through();
  }
  // Cool-down: input gradients go up the V without waiting, weight gradients fill the gaps.
  for (int i = 0; i < rank; ++i) {
    w.backward_input(down);
    w.backward_input(back);
  }
  for (int i = 0; i < ranks - rank; ++i) {
    w.backward_input(down);
    w.backward_weight(down);
  }
  for (const Leg leg : {back, down})
    while (w.weight_open(leg)) w.backward_weight(leg);
  std::vector<Action> actions = w.take();
  std::erase_if(actions, [&](const Action& action) { return action.micro_batch >= micro_batches; });
  return actions;
}

std::vector<Action> dual_pipe_v_rank(int ranks, int rank, int micro_batches) {
  const int below = ranks - rank - 1;  // ranks further down the V
  RankWriter w(ranks, rank);
  for (int i = 0; i < 2 * below; ++i) w.forward(down);
  for (int i = 0; i <= rank; ++i) {
    w.forward(down);
    w.forward(back);
  }
  for (int i = 0; i < below; ++i) {
    w.backward_input(back);
    w.backward_weight(back);
    w.forward(back);
  }
  // The long middle: each forward of one leg beside a backward of the other.
  for (int i = 0; i < micro_batches - 2 * ranks + rank + 1; ++i) {
    w.forward(down);
    w.backward(back);
    w.forward(back);
    w.backward(down);
  }
  for (int i = 0; i < below; ++i) {
    w.backward(back);
    w.forward(back);
    w.backward(down);
  }
  // In the second half of what remains, weight gradients are postponed to the end, where the rank would idle.
  for (int i = 0; i < 2 * (rank + 1); ++i) {
    const Leg leg = i % 2 == 0 ? back : down;
    i <= rank ? w.backward(leg) : w.backward_input(leg);
  }
  for (int i = 0; i < below; ++i) {
    w.oldest_backward_weight();
    w.backward_input(down);
  }
  for (int i = 0; i <= rank; ++i) w.oldest_backward_weight();
  return w.take();
}

}  // namespace

// With equal times for forward, input gradient and weight gradient and at least 2p-1 micro-batches, no rank waits between its first action
// and its last; each keeps as many activations as rank 0 of 1F1B.
RankActions zero_bubble_v_actions(const PipelineSize& size) {
  RankActions all;
  for (int rank = 0; rank < size.ranks; ++rank) all.push_back(zero_bubble_v_rank(size.ranks, rank, size.micro_batches));
  return all;
}

RankActions dual_pipe_v_actions(const PipelineSize& size) {
  RankActions all;
  for (int rank = 0; rank < size.ranks; ++rank) all.push_back(dual_pipe_v_rank(size.ranks, rank, size.micro_batches));
  return all;
}

}  // namespace cairn::parallel
