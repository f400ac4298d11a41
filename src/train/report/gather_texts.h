#pragma once
#include <string>
#include <string_view>
#include <vector>

namespace cairn::comm {
class Group;
}

namespace cairn::train {

// Gathers the texts of all ranks of a group on every rank. Collective. `what` names the messages in the ledger.
std::vector<std::string> gather_texts(comm::Group& group, const std::string& own, std::string_view what);

}  // namespace cairn::train
