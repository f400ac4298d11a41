// Rebuilding a node from the others, and finding what needs it.
#include <algorithm>
#include <cstring>
#include <set>

#include "base/check.h"
#include "elastic/keeper_message.h"
#include "elastic/redundancy.h"

namespace cairn::elastic {
namespace {

base::Json ranges_to_json(const Ranges& ranges) {
  base::Json json = base::Json::array();
  for (const auto& [begin, end] : ranges) json.push_back({begin, end});
  return json;
}

Ranges ranges_from(const base::Json& json, int64_t end_max) {
  Ranges ranges;
  for (const base::Json& one : json) {
    ranges.emplace_back(one.at(0).get<int64_t>(), one.at(1).get<int64_t>());
    if (ranges.back().first < 0 || ranges.back().first >= ranges.back().second || ranges.back().second > end_max)
      base::fail_input("keeper: bytes {} to {} of {}", ranges.back().first, ranges.back().second, end_max);
  }
  return ranges;
}

// The blocks whose checksum is another one now.
Ranges damaged(std::span<const std::byte> bytes, const std::vector<uint64_t>& expected) {
  Ranges ranges;
  const std::vector<uint64_t> now = block_sums(bytes);
  for (size_t i = 0; i < now.size(); ++i) {
    if (i < expected.size() && now[i] == expected[i]) continue;
    const auto begin = static_cast<int64_t>(i) * kBlockBytes;
    ranges.emplace_back(begin, std::min(begin + kBlockBytes, static_cast<int64_t>(bytes.size())));
  }
  return ranges;
}

}  // namespace

base::Json to_json(const RebuildOrder& order) {
  return {{"id", order.id},
          {"spec", to_json(order.spec)},
          {"serial", order.serial},
          {"step", order.step},
          {"target", order.target},
          {"sites", order.sites},
          {"in_place", order.in_place},
          {"data", ranges_to_json(order.data)},
          {"parity", ranges_to_json(order.parity)}};
}

RebuildOrder rebuild_order_from(const base::Json& json) {
  try {
    RebuildOrder order{.id = json.at("id").get<uint64_t>(),
                       .spec = vault_spec_from(json.at("spec")),
                       .serial = json.at("serial").get<uint64_t>(),
                       .step = json.at("step").get<int64_t>(),
                       .target = json.at("target").get<int>(),
                       .sites = json.at("sites").get<std::vector<int>>(),
                       .data = {},
                       .parity = {},
                       .in_place = json.at("in_place").get<bool>()};
    order.data = ranges_from(json.at("data"), order.spec.code.data_bytes);
    order.parity = ranges_from(json.at("parity"), order.spec.code.parity_bytes());
    if (static_cast<int>(order.sites.size()) != order.spec.code.nodes) base::fail_input("keeper: a rebuild without a place for each node");
    return order;
  } catch (const base::Json::exception& error) {
    base::fail_input("keeper: no order of a rebuild: {}", error.what());
  }
}

// One rebuild, as each keeper sees it. A stripe is named by the node that keeps its parity; the stripe of the lost node itself is its
// parity.
struct Redundancy::Rebuild {
  RebuildOrder order;
  std::map<int, std::vector<int>> chains = {};  // by stripe: the nodes in order
  std::map<int, Ranges> ranges = {};            // by stripe: what of it is rebuilt, from its begin
  Segment* data = nullptr;                      // of the target
  Segment* parity = nullptr;
  int64_t received = 0, expected = 0;
  std::optional<std::vector<uint64_t>> sums = {};  // that the data must have
  bool is_target = false, done = false;
  std::string failure = {};

  int lost() const { return order.spec.index; }
  // Where the lost node's part of a stripe begins in its data.
  int64_t origin(int stripe) const {
    for (const ParityCode::Term& term : order.spec.code.terms(stripe))
      if (term.node == lost()) return term.offset;
    return 0;
  }
  void plan() {
    const ParityCode& code = order.spec.code;
    for (int stripe = 0; stripe < code.nodes; ++stripe) {
      Ranges wanted;
      std::vector<int> chain;
      const std::vector<ParityCode::Term> terms = code.terms(stripe);
      if (stripe == lost()) {
        wanted = order.parity;
      } else {
        if (std::none_of(terms.begin(), terms.end(), [&](const auto& term) { return term.node == lost(); })) continue;
        for (const auto& [begin, end] : order.data) {
          const int64_t from = std::max<int64_t>(0, begin - origin(stripe)), to = std::min(code.parity_bytes(), end - origin(stripe));
          if (from < to) wanted.emplace_back(from, to);
        }
      }
      for (const ParityCode::Term& term : terms)
        if (term.node != lost()) chain.push_back(term.node);
      if (stripe != lost()) chain.push_back(stripe);
      if (wanted.empty() || chain.empty()) continue;
      for (const auto& [begin, end] : wanted) expected += end - begin;
      chains[stripe] = std::move(chain);
      ranges[stripe] = std::move(wanted);
    }
  }
};

const Segment* Redundancy::data_of(const std::string& id, int node, uint64_t serial) const {
  const auto found = vaults_.find(id);
  if (found != vaults_.end() && found->second->spec.index == node) {
    const int buffer = found->second->find(serial);
    if (buffer >= 0 && found->second->versions[static_cast<size_t>(buffer)].whole())
      return &found->second->data[static_cast<size_t>(buffer)];
  }
  for (const auto& guest : guests_)
    if (guest->vault == id && guest->node == node && guest->serial == serial) return &guest->data;
  return nullptr;
}

std::vector<Redundancy::GuestData> Redundancy::guests() const {
  std::vector<GuestData> all;
  for (const auto& guest : guests_)
    if (guest->serial > 0) all.push_back({guest->vault, guest->node, guest->serial});
  return all;
}

Redundancy::Damage Redundancy::verify(const std::string& id, uint64_t serial) {
  Vault* const vault = find(id);
  const int buffer = vault ? vault->find(serial) : -1;
  if (buffer < 0) return {};
  const Version& version = vault->versions[static_cast<size_t>(buffer)];
  return {damaged(vault->data[static_cast<size_t>(buffer)].all(), version.data_sums),
          damaged(vault->parity[static_cast<size_t>(buffer)].all(), version.parity_sums)};
}

void Redundancy::rebuild(const RebuildOrder& order) {
  auto& slot = rebuilds_[order.id];
  if (slot) return;
  slot = std::make_shared<Rebuild>();
  Rebuild& one = *slot;
  one.order = order;
  one.is_target = order.target == site_;
  one.plan();
  if (one.is_target) prepare_target(one);
  start_chains(one);
  std::vector<std::pair<int, Bytes>> early;
  early.swap(early_);
  for (const auto& [from, message] : early) arrived(from, message);
  if (one.is_target) finish(one);
}

// The target gets memory for what is rebuilt: the buffer itself, a buffer of a new vault, or, where it has a place of its own in that
// layout, a guest's.
void Redundancy::prepare_target(Rebuild& one) {
  const RebuildOrder& order = one.order;
  Vault* vault = find(order.spec.id);
  if (!vault) vault = (vaults_[order.spec.id] = std::make_unique<Vault>(order.spec)).get();
  if (vault->spec.index != one.lost()) {
    std::erase_if(guests_, [&](const auto& guest) { return guest->vault == order.spec.id && guest->node == one.lost(); });
    guests_.push_back(std::make_unique<Guest>());
    *guests_.back() = {order.spec.id, one.lost(), 0, Segment("cairn-guest", order.spec.code.data_bytes)};
    one.data = &guests_.back()->data;
    return;
  }
  int buffer = vault->find(order.serial);
  if (order.in_place) {
    CAIRN_CHECK(buffer >= 0, "a repair of a version that is not here");
    one.sums = vault->versions[static_cast<size_t>(buffer)].data_sums;
  } else {
    if (buffer < 0) buffer = vault->versions[0].serial <= vault->versions[1].serial ? 0 : 1;
    vault->versions[static_cast<size_t>(buffer)] = {.state = Version::State::dirty, .serial = order.serial, .step = order.step};
  }
  one.data = &vault->data[static_cast<size_t>(buffer)];
  one.parity = &vault->parity[static_cast<size_t>(buffer)];
}

void Redundancy::start_chains(Rebuild& one) {
  const RebuildOrder& order = one.order;
  Vault* const vault = find(order.spec.id);
  const int buffer = vault ? vault->find(order.serial) : -1;
  if (buffer < 0 || vault->spec.index == one.lost()) return;
  const Version& version = vault->versions[static_cast<size_t>(buffer)];
  // The first survivor says what checksums the data must have.
  int first = 0;
  while (first < order.spec.code.nodes && (first == one.lost() || order.sites[static_cast<size_t>(first)] < 0)) ++first;
  if (first == vault->spec.index && !order.in_place) {
    const auto known = version.sums_of.find(one.lost());
    Message head = Message::of(Message::Kind::sums, order.spec.id, version);
    head.rebuild = order.id;
    const std::vector<uint64_t> sums = known == version.sums_of.end() ? std::vector<uint64_t>{} : known->second;
    if (one.is_target)
      take_sums(head, std::as_bytes(std::span(sums)));
    else
      send(order.target, head, std::as_bytes(std::span(sums)));
  }
  for (const auto& [stripe, chain] : one.chains) {
    if (chain.front() != vault->spec.index) continue;
    for (const auto& [begin, end] : one.ranges.at(stripe))
      for (int64_t at = begin; at < end; at += kBlockBytes)
        pass_on(one, stripe, 0, at, Bytes(static_cast<size_t>(std::min(kBlockBytes, end - at))));
  }
}

// Adds what this node has of a stripe, and sends the sum to the next one.
void Redundancy::pass_on(Rebuild& one, int stripe, size_t position, int64_t offset, Bytes sum) {
  const RebuildOrder& order = one.order;
  Vault* const vault = find(order.spec.id);
  const int buffer = vault ? vault->find(order.serial) : -1;
  const std::vector<int>& chain = one.chains.at(stripe);
  const auto length = static_cast<int64_t>(sum.size());
  if (buffer < 0 || position >= chain.size() || chain[position] != vault->spec.index) return;
  if (vault->spec.index == stripe) {
    xor_into(sum, vault->parity[static_cast<size_t>(buffer)].part(offset, length));
  } else {
    for (const ParityCode::Term& term : order.spec.code.terms(stripe))
      if (term.node == vault->spec.index) xor_into(sum, vault->data[static_cast<size_t>(buffer)].part(term.offset + offset, length));
  }
  const bool last = position + 1 == chain.size();
  const int to = last ? order.target : order.sites[static_cast<size_t>(chain[position + 1])];
  if (last && one.is_target) return store(one, stripe, offset, sum);
  Message head = Message::of(Message::Kind::chain, order.spec.id, vault->versions[static_cast<size_t>(buffer)]);
  head.rebuild = order.id;
  head.stripe = stripe;
  head.position = static_cast<int32_t>(position + 1);
  head.offset = offset;
  send(to, head, sum);
}

void Redundancy::take_chain(const Message& head, std::span<const std::byte> payload) {
  Rebuild& one = *rebuilds_.at(head.rebuild);
  const auto chain = one.chains.find(head.stripe);
  const auto length = static_cast<int64_t>(payload.size());
  if (chain == one.chains.end() || head.offset < 0 || head.offset > one.order.spec.code.parity_bytes() - length) return;
  if (static_cast<size_t>(head.position) >= chain->second.size()) {
    if (!one.is_target) return;
    store(one, head.stripe, head.offset, payload);
    return finish(one);
  }
  pass_on(one, head.stripe, static_cast<size_t>(head.position), head.offset, Bytes(payload.begin(), payload.end()));
  if (one.is_target) finish(one);
}

void Redundancy::store(Rebuild& one, int stripe, int64_t offset, std::span<const std::byte> bytes) {
  const auto length = static_cast<int64_t>(bytes.size());
  Segment* const into = stripe == one.lost() ? one.parity : one.data;
  const int64_t begin = stripe == one.lost() ? offset : one.origin(stripe) + offset;
  if (!into) return;
  std::memcpy(into->part(begin, length).data(), bytes.data(), bytes.size());
  one.received += length;
}

void Redundancy::take_sums(const Message& head, std::span<const std::byte> payload) {
  Rebuild& one = *rebuilds_.at(head.rebuild);
  std::vector<uint64_t> sums(payload.size() / sizeof(uint64_t));
  if (!sums.empty()) std::memcpy(sums.data(), payload.data(), sums.size() * sizeof(uint64_t));
  one.sums = std::move(sums);
  if (one.is_target) finish(one);
}

// All bytes are here: are they those that were lost?
void Redundancy::finish(Rebuild& one) {
  if (one.done || !one.failure.empty() || one.received < one.expected || !one.sums) return;
  const Ranges wrong = one.sums->empty() ? Ranges{} : damaged(one.data->all(), *one.sums);
  if (!wrong.empty()) {
    one.failure = fmt::format("bytes {} to {} of node {} were rebuilt to another checksum than they had", wrong.front().first,
                              wrong.front().second, one.lost());
    return;
  }
  Vault* const vault = find(one.order.spec.id);
  if (vault->spec.index == one.lost()) {
    const int buffer = vault->find(one.order.serial);
    Version& version = vault->versions[static_cast<size_t>(buffer)];
    if (!one.order.in_place) {
      version.data_sums = block_sums(one.data->all());
      version.parity_sums = block_sums(one.parity->all());
      version.state = Version::State::ready;
    } else if (!damaged(one.parity->all(), version.parity_sums).empty()) {
      one.failure = fmt::format("the parity of node {} was rebuilt to another checksum than it had", one.lost());
      return;
    }
  } else {
    for (const auto& guest : guests_)
      if (guest->vault == one.order.spec.id && guest->node == one.lost()) guest->serial = one.order.serial;
  }
  one.done = true;
  if (tell_) tell_(fmt::format("{} bytes of node {} were rebuilt from parity", one.received, one.lost()));
}

RebuildProgress Redundancy::progress(uint64_t id) const {
  const auto found = rebuilds_.find(id);
  if (found == rebuilds_.end()) return {};
  const Rebuild& one = *found->second;
  return {true, one.done, one.failure, one.received, one.expected};
}

}  // namespace cairn::elastic
