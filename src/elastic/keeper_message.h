// What keepers send each other: a fixed head, then bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "elastic/redundancy.h"

namespace cairn::elastic {

struct Redundancy::Message {
  static constexpr uint64_t kMagic = 0x3172657065656b63;  // "ckeeper1"
  enum class Kind : uint32_t {
    block,   // of the data of a node, for the parity of another
    ready,   // with the checksums of the data
    commit,  // by node 0
    chain,   // of a rebuild: a partial sum for position `position` of the chain of `stripe`; behind the last: for the target
    sums,    // of a rebuild: the checksums of the lost data, by a node that has them
  };

  uint64_t magic = kMagic, epoch = 0;
  Kind kind = Kind::block;
  int32_t stripe = 0, position = 0;
  int32_t padding = 0;
  uint64_t serial = 0, rebuild = 0;
  int64_t step = 0, offset = 0;
  char vault[24] = {};

  static Message of(Kind kind, const std::string& vault, const Version& version) {
    Message head;
    head.kind = kind;
    head.serial = version.serial;
    head.step = version.step;
    std::memcpy(head.vault, vault.data(), std::min(vault.size(), sizeof head.vault - 1));
    return head;
  }
  std::string vault_id() const { return {vault, ::strnlen(vault, sizeof vault)}; }
};

}  // namespace cairn::elastic
