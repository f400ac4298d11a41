#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace cairn::comm {

using Key = std::array<uint8_t, 32>;  // 256-bit secret that the processes of a run share

Key fresh_key();
// A key for one purpose: HMAC-SHA256(key, use). It reveals neither `key` nor the keys of other uses.
Key derive(const Key& key, std::string_view use);

// Key files hold 64 hexadecimal digits. read_key refuses a file that others than its owner can read; write_key never overwrites a file.
Key read_key(const std::filesystem::path& file);
void write_key(const std::filesystem::path& file, const Key& key);

}  // namespace cairn::comm
