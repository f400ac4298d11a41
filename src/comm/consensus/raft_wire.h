// Messages and states of Raft as bytes.
#pragma once
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "comm/consensus/raft.h"

namespace cairn::comm {

std::vector<std::byte> encode(const RaftMessage& message);
std::vector<std::byte> encode(const RaftState& state);

// Nothing if the bytes are not exactly one message, or state: they come from other machines and from disks.
std::optional<RaftMessage> decode_raft_message(std::span<const std::byte> bytes);
std::optional<RaftState> decode_raft_state(std::span<const std::byte> bytes);

}  // namespace cairn::comm
