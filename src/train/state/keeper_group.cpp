#include "train/state/keeper_group.h"

#include <algorithm>
#include <map>
#include <poll.h>
#include <set>

#include <fmt/ranges.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/text.h"
#include "comm/group.h"
#include "comm/net/key.h"
#include "train/report/gather_texts.h"

namespace cairn::train {
namespace {

constexpr auto kKeeperLimit = std::chrono::seconds(60);  // for one that may be reading all of its memory
constexpr auto kStallLimit = std::chrono::seconds(20);   // of a rebuild in which nothing arrives
constexpr auto kGlance = std::chrono::milliseconds(2);

std::string hex_of(const comm::Key& key) {
  std::string hex;
  for (const uint8_t byte : key) hex += fmt::format("{:02x}", byte);
  return hex;
}

// Texts of one rank, for all.
std::string from_rank(comm::Group& group, int rank, const std::string& own) {
  return gather_texts(group, group.rank() == rank ? own : "", "keepers")[static_cast<size_t>(rank)];
}

}  // namespace

bool KeeperGroup::leads() const { return nodes_[static_cast<size_t>(site_)].ranks.front() == group_.rank(); }

int KeeperGroup::site_of(int rank) const {
  for (size_t site = 0; site < nodes_.size(); ++site)
    if (std::count(nodes_[site].ranks.begin(), nodes_[site].ranks.end(), rank) > 0) return static_cast<int>(site);
  CAIRN_CHECK(false, "rank {} has no keeper", rank);
}

bool KeeperGroup::share_a_machine() const {
  std::set<std::string> machines;
  for (const Node& node : nodes_) machines.insert(node.machine);
  return machines.size() < nodes_.size();
}

std::string KeeperGroup::agree(const std::string& trouble) const {
  int64_t any = trouble.empty() ? 0 : 1;
  group_.all_reduce({&any, 1, comm::Dtype::i64}, comm::Reduce::max, {comm::Purpose::control, "keepers"}).wait_host();
  if (any == 0) return {};
  for (const std::string& one : gather_texts(group_, trouble, "keepers"))
    if (!one.empty()) return one;
  return {};
}

// Returns why there is no answer.
std::string KeeperGroup::ask(const base::Json& request, std::optional<base::Json>* answer) {
  try {
    std::optional<elastic::Packet> packet = keeper_.ask(request, kKeeperLimit);
    if (!packet) return "the keeper of a node is gone";
    if (answer) *answer = std::move(packet->body);
    return {};
  } catch (const Error& error) {
    return error.what();
  }
}

int KeeperGroup::rank() const { return group_.rank(); }

std::string KeeperGroup::meet(double rate, std::chrono::nanoseconds limit) {
  nodes_.clear();
  if (std::string trouble = name_ranks(limit); !trouble.empty()) return trouble;
  if (std::string trouble = connect(rate); !trouble.empty()) return trouble;
  return read_statuses();
}

std::string KeeperGroup::name_ranks(std::chrono::nanoseconds limit) {
  std::string own;
  try {
    if (!keeper_.alive()) keeper_.reconnect();
    if (const std::optional<elastic::Packet> status = keeper_.ask({{"op", "status"}}, limit))
      own = status->body.at("keeper").get<std::string>() + "\n" + status->body.at("machine").get<std::string>();
  } catch (const Error&) {  // counts as none
  }
  const std::vector<std::string> all = gather_texts(group_, own, "keepers");
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) return fmt::format("rank {} has no keeper", rank);
    const std::string keeper = all[rank].substr(0, all[rank].find('\n')), machine = all[rank].substr(keeper.size() + 1);
    auto node = std::find_if(nodes_.begin(), nodes_.end(), [&](const Node& one) { return one.keeper == keeper; });
    if (node == nodes_.end()) node = nodes_.insert(nodes_.end(), Node{keeper, machine, {}, {}});
    node->ranks.push_back(static_cast<int>(rank));
  }
  site_ = site_of(group_.rank());
  return {};
}

std::string KeeperGroup::connect(double rate) {
  base::Json secret = {{"key", ""}, {"epoch", 0}};
  if (group_.rank() == 0) secret = {{"key", hex_of(comm::fresh_key())}, {"epoch", base::checksum(base::random_name())}};
  secret = base::parse_json(from_rank(group_, 0, base::compact(secret)));
  base::Json request = {{"op", "open"}, {"site", site_}, {"sites", sites()}, {"key", secret["key"]}, {"epoch", secret["epoch"]},
                        {"rate", rate}, {"endpoint", ""}};
  std::optional<base::Json> opened;
  std::string trouble = site_ == 0 && leads() ? ask(request, &opened) : "";
  if (trouble = agree(trouble); !trouble.empty()) return trouble;
  const int first = nodes_.front().ranks.front();
  const std::string own =
      opened ? fmt::format("{}:{}", (*opened)["address"].get<std::string>(), (*opened)["port"].get<int>()) : std::string();
  request["endpoint"] = from_rank(group_, first, own);
  return agree(site_ > 0 && leads() ? ask(request) : "");
}

std::string KeeperGroup::read_statuses() {
  std::optional<base::Json> status;
  const std::string trouble = leads() ? ask({{"op", "status"}}, &status) : "";
  if (std::string any = agree(trouble); !any.empty()) return any;
  const std::vector<std::string> all = gather_texts(group_, status ? base::compact(*status) : "", "keepers");
  last_serial_ = 0;
  for (Node& node : nodes_) {
    node.status = base::parse_json(all[static_cast<size_t>(node.ranks.front())]);
    for (const base::Json& vault : node.status.at("vaults"))
      for (const base::Json& version : vault.at("versions")) last_serial_ = std::max(last_serial_, version.at("serial").get<uint64_t>());
  }
  return {};
}

KeeperGroup::Newest KeeperGroup::newest() const {
  std::map<std::pair<uint64_t, std::string>, MemoryVersion> versions;
  const auto entry = [&](const base::Json& spec, uint64_t serial, int64_t step) -> MemoryVersion& {
    MemoryVersion& one = versions[{serial, spec.at("id").get<std::string>()}];
    if (one.sites.empty()) {
      one = {elastic::vault_spec_from(spec), serial, step, {}};
      one.sites.assign(static_cast<size_t>(one.spec.code.nodes), -1);
    }
    return one;
  };
  for (int site = 0; site < sites(); ++site)
    for (const base::Json& vault : nodes_[static_cast<size_t>(site)].status.at("vaults"))
      for (const base::Json& one : vault.at("versions"))
        if (one.at("whole").get<bool>())
          entry(vault.at("spec"), one.at("serial").get<uint64_t>(), one.at("step").get<int64_t>())
              .sites[vault.at("spec").at("index").get<size_t>()] = site;
  for (int site = 0; site < sites(); ++site)
    for (const base::Json& guest : nodes_[static_cast<size_t>(site)].status.at("guests"))
      if (const auto found = versions.find({guest.at(2).get<uint64_t>(), guest.at(0).get<std::string>()}); found != versions.end())
        if (int& where = found->second.sites.at(guest.at(1).get<size_t>()); where < 0) where = site;
  Newest result;
  result.any = !versions.empty();
  for (auto one = versions.rbegin(); one != versions.rend(); ++one) {
    MemoryVersion& version = one->second;
    const auto missing = std::count(version.sites.begin(), version.sites.end(), -1);
    if (missing <= (version.spec.code.protects() ? 1 : 0)) {
      result.version = version;
      result.beyond.clear();
      return result;
    }
    if (!result.beyond.empty()) continue;
    std::vector<size_t> lost;
    for (size_t node = 0; node < version.sites.size(); ++node)
      if (version.sites[node] < 0) lost.push_back(node);
    result.beyond =
        fmt::format("the snapshot of step {} in memory: {} {} of {} {} lost; snapshot.memory.parity = {} covers {}", version.step,
                    lost.size() == 1 ? "node" : "nodes", fmt::join(lost, ", "), version.spec.code.nodes, lost.size() == 1 ? "is" : "are",
                    elastic::word_of(version.spec.code.kind), version.spec.code.protects() ? "one" : "none");
  }
  return result;
}

// What has to be rebuilt: first a lost node, then what is damaged in others.
std::vector<elastic::RebuildOrder> KeeperGroup::orders_for(const MemoryVersion& version, const std::vector<std::string>& damage) {
  std::vector<elastic::RebuildOrder> orders;
  const auto order_for = [&](int node) {
    elastic::RebuildOrder order;
    order.id = ++orders_;
    order.spec = version.spec;
    order.spec.index = node;
    order.serial = version.serial;
    order.step = version.step;
    order.sites = version.sites;
    return order;
  };
  const auto index_at = [&](int site) {  // of the layout; -1: the keeper has no place in it
    for (const base::Json& vault : nodes_[static_cast<size_t>(site)].status.at("vaults"))
      if (vault.at("spec").at("id") == version.spec.id) return vault.at("spec").at("index").get<int>();
    return -1;
  };
  for (int node = 0; node < version.spec.code.nodes; ++node) {
    if (version.sites[static_cast<size_t>(node)] >= 0) continue;
    elastic::RebuildOrder order = order_for(node);
    order.target = -1;
    for (int site = 0; site < sites() && order.target < 0; ++site)
      if (index_at(site) == node) order.target = site;
    for (int site = 0; site < sites() && order.target < 0; ++site)
      if (index_at(site) < 0) order.target = site;
    const bool replaced = order.target >= 0;
    if (!replaced) order.target = version.sites[static_cast<size_t>((node + 1) % version.spec.code.nodes)];
    order.data = {{0, version.spec.code.data_bytes}};
    if (replaced) order.parity = {{0, version.spec.code.parity_bytes()}};
    orders.push_back(std::move(order));
  }
  for (int site = 0; site < sites(); ++site) {
    const std::string& found = damage[static_cast<size_t>(nodes_[static_cast<size_t>(site)].ranks.front())];
    if (found.empty()) continue;
    const base::Json json = base::parse_json(found);
    elastic::RebuildOrder order = order_for(index_at(site));
    order.target = site;
    order.in_place = true;
    order.data = json.at("data").get<elastic::Ranges>();
    order.parity = json.at("parity").get<elastic::Ranges>();
    orders.push_back(std::move(order));
  }
  return orders;
}

std::string KeeperGroup::repair(MemoryVersion& version, std::vector<std::string>& said) {
  std::optional<base::Json> found;
  const bool has = std::any_of(version.sites.begin(), version.sites.end(), [&](int site) { return site == site_; });
  std::string trouble = leads() && has ? ask({{"op", "verify"}, {"vault", version.spec.id}, {"serial", version.serial}}, &found) : "";
  if (trouble = agree(trouble); !trouble.empty()) return trouble;
  const bool damaged = found && (!found->at("data").empty() || !found->at("parity").empty());
  const std::vector<std::string> damage = gather_texts(group_, damaged ? base::compact(*found) : "", "damage in memory");
  for (elastic::RebuildOrder& order : orders_for(version, damage)) {
    order.sites = version.sites;  // with what was rebuilt so far
    const std::string what = order.in_place ? fmt::format("node {} has {} damaged blocks in its memory", order.spec.index,
                                                          order.data.size() + order.parity.size())
                                            : fmt::format("node {} is lost", order.spec.index);
    if (!version.spec.code.protects()) return what + ", and snapshot.memory.parity covers nothing";
    if (trouble = rebuild(order); !trouble.empty()) return fmt::format("{}, and cannot be rebuilt: {}", what, trouble);
    version.sites[static_cast<size_t>(order.spec.index)] = order.target;
    said.push_back(fmt::format("{}: rebuilt from parity on the machine of rank {}", what, ranks_at(order.target).front()));
  }
  return {};
}

std::string KeeperGroup::rebuild(const elastic::RebuildOrder& order) {
  std::string trouble = agree(leads() ? ask({{"op", "rebuild"}, {"order", to_json(order)}}) : "");
  if (!trouble.empty()) return trouble;
  const base::RealClock clock;
  std::chrono::nanoseconds moved{0};
  int64_t received = -1;
  while (leads() && site_ == order.target) {
    std::optional<base::Json> now;
    if (trouble = ask({{"op", "progress"}, {"id", order.id}}, &now); !trouble.empty()) break;
    if (trouble = (*now)["failure"].get<std::string>(); !trouble.empty() || (*now)["done"].get<bool>()) break;
    if (std::exchange(received, (*now)["received"].get<int64_t>()) != (*now)["received"].get<int64_t>()) moved = clock.now();
    if (clock.now() - moved > kStallLimit) {
      trouble =
          fmt::format("{} of {} bytes came, and then no more for {} s", received, (*now)["expected"].get<int64_t>(), kStallLimit.count());
      break;
    }
    ::poll(nullptr, 0, static_cast<int>(kGlance.count()));
  }
  return agree(trouble);
}

std::string KeeperGroup::adopt(const MemoryVersion* version) {
  return agree(leads() ? ask({{"op", "adopt"}, {"vault", version ? version->spec.id : ""}, {"serial", version ? version->serial : 0}})
                       : "");
}

}  // namespace cairn::train
