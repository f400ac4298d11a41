#include "comm/mailbox/directory.h"

#include <utility>

#include <fmt/format.h>

namespace cairn::comm {
namespace {

constexpr int kNamed = 8;  // nodes listed in an error

std::string describe(std::string_view node, const NodeDirectory::Member& member) {
  switch (member.status) {
    case NodeDirectory::Status::left:
      return fmt::format("node {} of rank {} has left", node, member.rank);
    case NodeDirectory::Status::lost:
      return fmt::format("node {} was lost with rank {}: {}", node, member.rank, member.why);
    case NodeDirectory::Status::disputed:
      return fmt::format("node {} cannot be reached: {}", node, member.why);
    case NodeDirectory::Status::present:
      break;
  }
  return fmt::format("node {} was on rank {}", node, member.rank);
}

}  // namespace

void NodeDirectory::join(const std::string& node, int rank) {
  Member& member = members_[node];
  if (member.rank >= 0 && member.rank != rank && member.status == Status::present) {
    member.why = fmt::format("ranks {} and {} both announced it. Give one another name.", member.rank, rank);
    member.status = Status::disputed;
  } else if (member.status != Status::disputed) {
    member = {rank, Status::present};
  }
}

void NodeDirectory::leave(const std::string& node, int rank) {
  const auto found = members_.find(node);
  if (found != members_.end() && found->second.rank == rank && found->second.status == Status::present) found->second.status = Status::left;
}

std::vector<std::string> NodeDirectory::lose(int rank, const std::string& why, int culprit) {
  std::vector<std::string> names;
  for (auto& [node, member] : members_) {
    if (member.rank != rank || member.status != Status::present) continue;
    member.status = Status::lost;
    member.why = why;
    member.culprit = culprit;
    names.push_back(node);
  }
  return names;
}

void NodeDirectory::begin_epoch() { before_ = std::exchange(members_, {}); }

const NodeDirectory::Member* NodeDirectory::find(std::string_view node) const {
  const auto found = members_.find(node);
  return found == members_.end() ? nullptr : &found->second;
}

std::map<std::string, int> NodeDirectory::present() const {
  std::map<std::string, int> nodes;
  for (const auto& [node, member] : members_) {
    if (member.status == Status::present) nodes.emplace(node, member.rank);
  }
  return nodes;
}

std::optional<Error> NodeDirectory::trouble(std::string_view node) const {
  const Member* member = find(node);
  if (!member || member->status == Status::present) return std::nullopt;
  Error error(member->status == Status::disputed ? Error::Kind::bad_input : Error::Kind::lost_peer, describe(node, *member));
  return error.about_peer(member->culprit >= 0 ? member->culprit : member->rank);
}

std::string NodeDirectory::unknown(std::string_view node, uint64_t epoch) const {
  std::string text = fmt::format("no node {} has announced itself in epoch {}", node, epoch);
  if (const auto past = before_.find(node); past != before_.end()) text += fmt::format(" (before it, {})", describe(node, past->second));
  std::string known;
  int named = 0;
  for (const auto& [name, rank] : present()) {
    if (++named <= kNamed) known += (named > 1 ? ", " : "") + name;
  }
  if (named > kNamed) known += fmt::format(" and {} more", named - kNamed);
  return text + "; known are " + (named > 0 ? known : "none");
}

}  // namespace cairn::comm
