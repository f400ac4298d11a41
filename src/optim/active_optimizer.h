#pragma once
#include <memory>
#include <string>
#include <vector>

#include "mesh/fragment.h"
#include "optim/active_set.h"
#include "optim/optimizer.h"

namespace cairn::optim {

// A rule of which an ActiveSet says what it changes. Pieces that are frozen are left out. Of a piece with boxes, everything is put back
// afterwards that lies outside of them, so that the rule itself knows nothing of this; it must work element by element. Neighbours with
// the same count and rate are still updated together, and while the set is trivial this costs nothing.
//
// Its state is that of the rule, and for parameters whose elements are tracked "missed.<name>": the updates that do not count, by element.
class ActiveOptimizer final : public Optimizer {
 public:
  // `fragments`: by piece, what of its parameter it is; one for each piece, or none where no elements are tracked. Elements are tracked
  // that `set` says are.
  ActiveOptimizer(std::unique_ptr<Optimizer> inner, std::vector<ParameterPiece> pieces, std::vector<mesh::Fragment> fragments,
                  ActiveSet set);

  const ActiveSet& set() const { return set_; }
  // From now on elements of this parameter may be frozen. Before the first update.
  void track_elements(std::string_view name);

  // As those of ActiveSet, with `updates` of the run before the change.
  void freeze(std::string_view name, int64_t updates);
  void activate(std::string_view name, int64_t updates);
  void activate(std::string_view name, std::vector<mesh::Box> boxes, int64_t updates);
  void set_learning_rate_factor(std::string_view name, double factor) { set_.set_learning_rate_factor(name, factor); }
  void restart(std::string_view name, int64_t updates);
  // Elements have moved, and their counts with them.
  void changed_by_surgery();
  // The set of a snapshot, or one that was kept.
  void replace_set(ActiveSet set);

  void update(int64_t piece, const UpdateFacts& facts) override { update_several(piece, 1, facts); }
  void update_several(int64_t first, int64_t count, const UpdateFacts& facts) override;
  at::Tensor step_scalars(const UpdateFacts& facts) override;
  mesh::NamedTensors state() override;

 private:
  struct Piece {
    ParameterPiece piece;
    size_t member = 0;
    mesh::Fragment fragment = {};
    at::Tensor missed = {};         // int32, by element; undefined: its elements are not tracked
    std::vector<at::Tensor> state;  // of the rule, with an element for each of the piece's
    // What moves, by the count of updates that it missed; made again when the set has changed.
    struct Group {
      int64_t missed = 0;
      at::Tensor mask = {};  // bool, flat; undefined: all elements
    };
    std::vector<Group> groups = {};
    int64_t version = -1;
  };
  struct Turn;  // how the next update treats a piece

  void find_state();
  at::Tensor mask_of(const Piece& piece) const;               // of the elements that move; undefined: all
  void count_missed(std::string_view name, int64_t updates);  // of elements that were frozen since the last change
  void make_groups(Piece& piece) const;
  void update_by_element(int64_t index, const UpdateFacts& facts);

  std::unique_ptr<Optimizer> inner_;
  std::vector<Piece> pieces_;
  ActiveSet set_;
};

}  // namespace cairn::optim
