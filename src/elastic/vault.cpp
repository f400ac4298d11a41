#include "elastic/vault.h"

#include <algorithm>

#include "base/check.h"
#include "base/checksum.h"

namespace cairn::elastic {

std::vector<Region> VaultSpec::regions_of(int node) const {
  std::vector<Region> own;
  for (const Region& region : regions)
    if (region.node == node) own.push_back(region);
  return own;
}

bool VaultSpec::same_layout(const VaultSpec& other) const {
  return code.kind == other.code.kind && code.nodes == other.code.nodes && code.data_bytes == other.code.data_bytes &&
         regions == other.regions;
}

base::Json to_json(const VaultSpec& spec) {
  base::Json json = {{"id", spec.id},
                     {"index", spec.index},
                     {"parity", word_of(spec.code.kind)},
                     {"nodes", spec.code.nodes},
                     {"bytes", spec.code.data_bytes},
                     {"regions", base::Json::array()}};
  for (const Region& one : spec.regions) json["regions"].push_back({one.rank, one.node, one.offset, one.bytes});
  return json;
}

VaultSpec vault_spec_from(const base::Json& json) {
  try {
    VaultSpec spec{
        .id = json.at("id").get<std::string>(),
        .index = json.at("index").get<int>(),
        .code = {parity_kind_from(json.at("parity").get<std::string>()), json.at("nodes").get<int>(), json.at("bytes").get<int64_t>()}};
    for (const base::Json& one : json.at("regions"))
      spec.regions.push_back({one.at(0).get<int>(), one.at(1).get<int>(), one.at(2).get<int64_t>(), one.at(3).get<int64_t>()});
    const auto fits = [&](const Region& one) {
      return one.node >= 0 && one.node < spec.code.nodes && one.offset >= 0 && one.bytes >= 0 && one.bytes <= spec.code.data_bytes &&
             one.offset <= spec.code.data_bytes - one.bytes;
    };
    if (spec.code.nodes < 1 || spec.index < 0 || spec.index >= spec.code.nodes || spec.code.data_bytes < 1 ||
        padded_bytes(spec.code.kind, spec.code.nodes, spec.code.data_bytes) != spec.code.data_bytes ||
        !std::all_of(spec.regions.begin(), spec.regions.end(), fits))
      base::fail_input("keeper: a layout that does not fit together");
    return spec;
  } catch (const base::Json::exception& error) {
    base::fail_input("keeper: a layout that is none: {}", error.what());
  }
}

std::vector<uint64_t> block_sums(std::span<const std::byte> bytes) {
  std::vector<uint64_t> sums;
  for (size_t at = 0; at < bytes.size(); at += kBlockBytes)
    sums.push_back(base::checksum(bytes.subspan(at, std::min<size_t>(kBlockBytes, bytes.size() - at))));
  return sums;
}

const char* word_of(Version::State state) {
  switch (state) {
    case Version::State::empty:
      return "empty";
    case Version::State::dirty:
      return "dirty";
    case Version::State::filled:
      return "filled";
    case Version::State::ready:
      return "ready";
    case Version::State::clean:
      return "clean";
  }
  return "?";
}

Vault::Vault(VaultSpec given) : spec(std::move(given)) {
  for (int i = 0; i < 2; ++i) {
    data[static_cast<size_t>(i)] = Segment("cairn-data", spec.code.data_bytes);
    parity[static_cast<size_t>(i)] = Segment("cairn-parity", spec.code.parity_bytes());
  }
}

int Vault::find(uint64_t serial) const {
  for (int i = 0; i < 2; ++i) {
    const Version& one = versions[static_cast<size_t>(i)];
    if (one.state != Version::State::empty && one.serial == serial) return i;
  }
  return -1;
}

bool Vault::in_flight() const {
  return std::any_of(versions.begin(), versions.end(),
                     [](const Version& one) { return one.state != Version::State::empty && one.state != Version::State::clean; });
}

int Vault::begin(uint64_t serial, int64_t step) {
  if (in_flight()) base::fail_input("keeper: snapshot {} is begun before the one before it is finished", serial);
  const int buffer = versions[0].serial <= versions[1].serial ? 0 : 1;
  versions[static_cast<size_t>(buffer)] = {.state = Version::State::dirty, .serial = serial, .step = step};
  std::span<std::byte> kept = parity[static_cast<size_t>(buffer)].all();
  std::fill(kept.begin(), kept.end(), std::byte{});
  return buffer;
}

}  // namespace cairn::elastic
