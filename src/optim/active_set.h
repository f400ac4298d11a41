#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "mesh/box.h"
#include "mesh/named_tensor.h"

namespace cairn::optim {

// Which trained parameters of a model the next updates change, and which of their elements. What is frozen stands still: its values, its
// moments and its decay; and it counts its own updates, so that the bias corrections of Adam go on where they were.
//
// It holds all trained parameters of the model, with equal values on all ranks that step together: they decide the same. A plain value, which
// snapshots save. `updates` is always the number of updates of the run before the change.
class ActiveSet {
 public:
  struct Member {
    std::string name;
    std::vector<int64_t> shape = {};
    bool active = true;                 // some of it moves
    bool by_element = false;            // elements may be frozen one by one (track_elements)
    std::vector<mesh::Box> boxes = {};  // the elements that move, disjoint; empty: all of them
    double learning_rate_factor = 1;    // of this parameter
    int64_t missed = 0;                 // updates of the run that do not count for it
    int64_t since = 0;                  // the update after which `active` and `boxes` became what they are
    bool operator==(const Member&) const = default;
  };

  ActiveSet() = default;
  explicit ActiveSet(std::vector<Member> members);

  const std::vector<Member>& members() const { return members_; }
  size_t index(std::string_view name) const;  // refuses a name that is no trained parameter
  bool contains(std::string_view name) const { return places_.contains(name); }
  // Everything moves, at one rate, and has taken every update.
  bool trivial() const;

  // Allows boxes for this parameter. Before the first update, as its elements then count their updates one by one.
  void track_elements(std::string_view name) { at(name).by_element = true; }

  void freeze(std::string_view name, int64_t updates);
  void activate(std::string_view name, int64_t updates);
  // These elements move and the others are frozen.
  void activate(std::string_view name, std::vector<mesh::Box> boxes, int64_t updates);
  void set_learning_rate_factor(std::string_view name, double factor) { at(name).learning_rate_factor = factor; }
  // The next update is the first one of this parameter. Its moments are zeroed by whoever calls this (surgery.h).
  void restart(std::string_view name, int64_t updates);

  // The number of the update `step` of the run, counted by this parameter.
  int64_t own_step(size_t member, int64_t step) const { return step - members_[member].missed; }

  // Grows with every change.
  int64_t version() const { return version_; }

  // For snapshots; nothing where the set is trivial. `restore` takes what `state` gave.
  mesh::NamedTensors state() const;
  void restore(const mesh::NamedTensors& state);

 private:
  Member& at(std::string_view name);
  void begin(Member& member, int64_t updates);  // closes the interval since the last change

  std::vector<Member> members_;
  std::map<std::string, size_t, std::less<>> places_;
  int64_t version_ = 0;
};

}  // namespace cairn::optim
