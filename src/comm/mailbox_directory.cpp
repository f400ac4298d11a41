#include "comm/mailbox_directory.h"

#include <utility>

#include <fmt/format.h>

namespace cairn::comm {
namespace {

constexpr int kNamed = 8;  // nodes listed in a message

std::string describe(std::string_view node, const Directory::Member& member) {
  switch (member.fate) {
    case Directory::Fate::left:
      return fmt::format("node {} of rank {} has left", node, member.rank);
    case Directory::Fate::lost:
      return fmt::format("node {} was lost with rank {}: {}", node, member.rank, member.why);
    case Directory::Fate::disputed:
      return fmt::format("node {} cannot be reached: {}", node, member.why);
    case Directory::Fate::present:
      break;
  }
  return fmt::format("node {} was on rank {}", node, member.rank);
}

}  // namespace

void Directory::join(const std::string& node, int rank) {
  Member& member = members_[node];
  if (member.rank >= 0 && member.rank != rank && member.fate == Fate::present) {
    member.why = fmt::format("ranks {} and {} both announced it, give one another name", member.rank, rank);
    member.fate = Fate::disputed;
  } else if (member.fate != Fate::disputed) {
    member = {rank, Fate::present};
  }
}

void Directory::leave(const std::string& node, int rank) {
  const auto found = members_.find(node);
  if (found != members_.end() && found->second.rank == rank && found->second.fate == Fate::present) found->second.fate = Fate::left;
}

std::vector<std::string> Directory::lose(int rank, const std::string& why, int culprit) {
  std::vector<std::string> names;
  for (auto& [node, member] : members_) {
    if (member.rank != rank || member.fate != Fate::present) continue;
    member.fate = Fate::lost;
    member.why = why;
    member.culprit = culprit;
    names.push_back(node);
  }
  return names;
}

void Directory::begin_epoch() { before_ = std::exchange(members_, {}); }

const Directory::Member* Directory::find(std::string_view node) const {
  const auto found = members_.find(node);
  return found == members_.end() ? nullptr : &found->second;
}

std::map<std::string, int> Directory::present() const {
  std::map<std::string, int> nodes;
  for (const auto& [node, member] : members_) {
    if (member.fate == Fate::present) nodes.emplace(node, member.rank);
  }
  return nodes;
}

std::optional<Error> Directory::trouble(std::string_view node) const {
  const Member* member = find(node);
  if (!member || member->fate == Fate::present) return std::nullopt;
  Error error(member->fate == Fate::disputed ? Error::Kind::bad_input : Error::Kind::lost_peer, describe(node, *member));
  return error.about_peer(member->culprit >= 0 ? member->culprit : member->rank);
}

std::string Directory::unknown(std::string_view node, uint64_t epoch) const {
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
