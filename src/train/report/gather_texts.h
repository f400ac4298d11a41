#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace cairn::comm {
class Group;
}

namespace cairn::train {

// The texts of all ranks of a group, on every one of them. Collective.
std::vector<std::string> gather_texts(comm::Group& group, const std::string& own, std::string_view what);

}  // namespace cairn::train
