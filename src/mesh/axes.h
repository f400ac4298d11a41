#pragma once
#include <map>
#include <string>
#include <string_view>

namespace cairn::comm {
class Group;
}

namespace cairn::mesh {

// The groups of one rank by mesh axis: what a block asks for its collectives, so that it never mentions ranks. Borrowed from the world.
class Axes {
 public:
  void put(std::string axis, comm::Group& group) { groups_[std::move(axis)] = &group; }
  // The ranks along `axis` that share this rank's other coordinates; null where the axis has size 1.
  comm::Group* find(std::string_view axis) const {
    const auto found = groups_.find(axis);
    return found == groups_.end() ? nullptr : found->second;
  }

 private:
  std::map<std::string, comm::Group*, std::less<>> groups_;
};

}  // namespace cairn::mesh
