#pragma once
#include <map>
#include <string>
#include <string_view>

namespace cairn::comm {
class Group;
}

namespace cairn::mesh {

// The communication groups of one rank, by mesh axis. Blocks find their collectives here and so never name a rank. Groups are borrowed
// from the world.
class Axes {
 public:
  void put(std::string axis, comm::Group& group) { groups_[std::move(axis)] = &group; }
  // The ranks along `axis` that have this rank's coordinates on all other axes; null where the axis has size 1.
  comm::Group* find(std::string_view axis) const {
    const auto found = groups_.find(axis);
    return found == groups_.end() ? nullptr : found->second;
  }

 private:
  std::map<std::string, comm::Group*, std::less<>> groups_;
};

}  // namespace cairn::mesh
