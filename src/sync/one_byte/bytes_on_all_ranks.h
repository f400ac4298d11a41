#pragma once
#include <cstddef>
#include <string_view>
#include <vector>

namespace cairn::comm {
class Group;
}

namespace cairn::sync {

// The bytes of the group's first rank, of any number, become those of all ranks. Collective.
void bytes_on_all_ranks(comm::Group& group, std::vector<std::byte>& bytes, std::string_view what);

}  // namespace cairn::sync
