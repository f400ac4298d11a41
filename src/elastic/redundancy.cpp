// Saving: encoding, and the commit over all keepers. rebuild.cpp has the rest.
#include "elastic/redundancy.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "elastic/keeper_message.h"

namespace cairn::elastic {
namespace {

constexpr size_t kEarlyMax = 65536;  // messages of a rebuild that has not begun here

}  // namespace

void Redundancy::send(int site, const Message& head, std::span<const std::byte> payload) {
  Message own = head;
  own.epoch = epoch_;
  Bytes bytes(sizeof own + payload.size());
  std::memcpy(bytes.data(), &own, sizeof own);
  if (!payload.empty()) std::memcpy(bytes.data() + sizeof own, payload.data(), payload.size());
  sent_bytes_ += static_cast<int64_t>(payload.size());
  if (send_) send_(site, std::move(bytes));
}

void Redundancy::join(uint64_t epoch, int site, int sites, Send send, Tell tell) {
  epoch_ = epoch;
  site_ = site;
  sites_ = sites;
  send_ = std::move(send);
  tell_ = std::move(tell);
  rebuilds_.clear();
  early_.clear();
  drop_unfinished();
}

void Redundancy::drop_unfinished() {
  for (const auto& [id, vault] : vaults_)
    for (int i = 0; i < 2; ++i) {
      const Version& one = vault->versions[static_cast<size_t>(i)];
      if (one.state == Version::State::dirty || one.state == Version::State::filled) vault->drop(i);
    }
}

std::vector<const Vault*> Redundancy::vaults() const {
  std::vector<const Vault*> all;
  for (const auto& [id, vault] : vaults_) all.push_back(vault.get());
  return all;
}

Vault* Redundancy::find(const std::string& vault) {
  const auto found = vaults_.find(vault);
  return found == vaults_.end() ? nullptr : found->second.get();
}

Vault& Redundancy::lay_out(const VaultSpec& spec) {
  auto& vault = vaults_[spec.id];
  if (vault && (!vault->spec.same_layout(spec) || vault->spec.index != spec.index)) vault = nullptr;
  if (!vault) vault = std::make_unique<Vault>(spec);
  return *vault;
}

// The version, begun if this is the first that is heard of it. Null where it cannot be begun.
Version* Redundancy::open_version(Vault& vault, uint64_t serial, int64_t step, int* buffer) {
  *buffer = vault.find(serial);
  if (*buffer < 0) {
    if (faults_.overwrite_uncommitted)
      for (Version& one : vault.versions)
        if (one.state != Version::State::empty && one.serial < serial) one.state = Version::State::clean;
    if (vault.in_flight()) return nullptr;
    *buffer = vault.begin(serial, step);
  }
  return &vault.versions[static_cast<size_t>(*buffer)];
}

int Redundancy::begin(const std::string& id, uint64_t serial, int64_t step) {
  Vault* const vault = find(id);
  if (!vault) base::fail_input("keeper: no such layout");
  int buffer = -1;
  const Version* const version = open_version(*vault, serial, step, &buffer);
  if (!version) base::fail_input("keeper: the snapshot before this one is not finished");
  if (version->state != Version::State::dirty) base::fail_input("keeper: snapshot {} is complete", serial);
  return buffer;
}

bool Redundancy::in_flight(const std::string& id) const {
  const auto found = vaults_.find(id);
  return found != vaults_.end() && found->second->in_flight();
}

void Redundancy::filled(const std::string& id, uint64_t serial, int rank) {
  Vault* const vault = find(id);
  const int buffer = vault ? vault->find(serial) : -1;
  if (buffer < 0) base::fail_input("keeper: snapshot {} was not begun", serial);
  Version& version = vault->versions[static_cast<size_t>(buffer)];
  if (version.state != Version::State::dirty) return;
  version.filled_by.insert(rank);
  for (const Region& region : vault->spec.regions_of(vault->spec.index))
    if (!version.filled_by.contains(region.rank)) return;
  version.data_sums = block_sums(vault->data[static_cast<size_t>(buffer)].all());
  version.state = Version::State::filled;
  encode(*vault, buffer);
  check_ready(*vault, buffer);
}

// Sends every other node the block of which it keeps the parity. In turns, so that no node gets all blocks at once.
void Redundancy::encode(Vault& vault, int buffer) {
  const Version& version = vault.versions[static_cast<size_t>(buffer)];
  const ParityCode& code = vault.spec.code;
  const int64_t bytes = code.parity_bytes();
  for (int turn = 1; turn < code.nodes; ++turn) {
    const int holder = (vault.spec.index + turn) % code.nodes;
    for (const ParityCode::Term& term : code.terms(holder)) {
      if (term.node != vault.spec.index) continue;
      for (int64_t at = 0; at < bytes; at += kBlockBytes) {
        const int64_t length = std::min(kBlockBytes, bytes - at);
        Message head = Message::of(Message::Kind::block, vault.spec.id, version);
        head.offset = at;
        send(holder, head, vault.data[static_cast<size_t>(buffer)].part(term.offset + at, length));
      }
    }
  }
}

void Redundancy::arrived(int from, std::span<const std::byte> message) {
  Message head;
  if (message.size() < sizeof head) return;
  std::memcpy(&head, message.data(), sizeof head);
  const std::span<const std::byte> payload = message.subspan(sizeof head);
  if (head.magic != Message::kMagic || head.epoch != epoch_ || from < 0 || from >= sites_) return;
  switch (head.kind) {
    case Message::Kind::block:
      return take_block(from, head, payload);
    case Message::Kind::ready:
      return take_ready(from, head, payload);
    case Message::Kind::commit: {
      Vault* const vault = find(head.vault_id());
      const int buffer = vault ? vault->find(head.serial) : -1;
      if (from == 0 && buffer >= 0 && vault->versions[static_cast<size_t>(buffer)].whole()) commit(*vault, buffer);
      return;
    }
    case Message::Kind::chain:
    case Message::Kind::sums:
      if (!rebuilds_.contains(head.rebuild)) {
        if (early_.size() < kEarlyMax) early_.emplace_back(from, Bytes(message.begin(), message.end()));
        return;
      }
      return head.kind == Message::Kind::chain ? take_chain(head, payload) : take_sums(head, payload);
  }
}

void Redundancy::take_block(int from, const Message& head, std::span<const std::byte> payload) {
  Vault* const vault = find(head.vault_id());
  if (!vault) return;
  const auto length = static_cast<int64_t>(payload.size());
  const std::vector<ParityCode::Term> terms = vault->spec.code.terms(vault->spec.index);
  if (std::none_of(terms.begin(), terms.end(), [&](const ParityCode::Term& term) { return term.node == from; })) return;
  if (head.offset < 0 || length > vault->spec.code.parity_bytes() || head.offset > vault->spec.code.parity_bytes() - length) return;
  int buffer = -1;
  Version* const version = open_version(*vault, head.serial, head.step, &buffer);
  if (!version || version->whole()) return;
  int64_t& received = version->parity_from[from];
  if (received != head.offset) return;  // one was lost: this version stays unfinished
  xor_into(vault->parity[static_cast<size_t>(buffer)].part(head.offset, length), payload);
  received += length;
  check_ready(*vault, buffer);
}

void Redundancy::check_ready(Vault& vault, int buffer) {
  Version& version = vault.versions[static_cast<size_t>(buffer)];
  if (version.state != Version::State::filled) return;
  for (const ParityCode::Term& term : vault.spec.code.terms(vault.spec.index))
    if (version.parity_from[term.node] != vault.spec.code.parity_bytes()) return;
  version.parity_sums = block_sums(vault.parity[static_cast<size_t>(buffer)].all());
  version.state = Version::State::ready;
  version.ready_at.insert(vault.spec.index);
  for (int node = 0; node < vault.spec.code.nodes; ++node)
    if (node != vault.spec.index)
      send(node, Message::of(Message::Kind::ready, vault.spec.id, version), std::as_bytes(std::span(version.data_sums)));
  check_commit(vault, buffer);
}

void Redundancy::take_ready(int from, const Message& head, std::span<const std::byte> payload) {
  Vault* const vault = find(head.vault_id());
  if (!vault) return;
  int buffer = -1;
  Version* const version = open_version(*vault, head.serial, head.step, &buffer);
  if (!version) return;
  std::vector<uint64_t> sums(payload.size() / sizeof(uint64_t));
  if (!sums.empty()) std::memcpy(sums.data(), payload.data(), sums.size() * sizeof(uint64_t));
  version->sums_of[from] = std::move(sums);
  version->ready_at.insert(from);
  check_commit(*vault, buffer);
}

// Node 0 decides.
void Redundancy::check_commit(Vault& vault, int buffer) {
  const Version& version = vault.versions[static_cast<size_t>(buffer)];
  if (version.state != Version::State::ready) return;
  if (faults_.commit_alone) return commit(vault, buffer);
  if (vault.spec.index != 0 || static_cast<int>(version.ready_at.size()) < vault.spec.code.nodes) return;
  for (int node = 1; node < vault.spec.code.nodes; ++node) send(node, Message::of(Message::Kind::commit, vault.spec.id, version));
  commit(vault, buffer);
}

void Redundancy::commit(Vault& vault, int buffer) {
  vault.versions[static_cast<size_t>(buffer)].state = Version::State::clean;
  std::erase_if(vaults_, [&](const auto& one) { return one.second.get() != &vault; });  // of layouts before this one
  guests_.clear();
}

void Redundancy::adopt(const std::string& id, uint64_t serial) {
  std::erase_if(vaults_, [&](const auto& one) { return one.first != id || one.second->find(serial) < 0; });
  std::erase_if(guests_, [&](const auto& one) { return one->vault != id || one->serial != serial; });
  for (const auto& [name, vault] : vaults_)
    for (int i = 0; i < 2; ++i) {
      Version& one = vault->versions[static_cast<size_t>(i)];
      if (one.serial == serial && one.whole())
        one.state = Version::State::clean;
      else
        vault->drop(i);
    }
}

}  // namespace cairn::elastic
