#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <string_view>

namespace cairn::comm {

using Key = std::array<uint8_t, 32>;  // a secret that the processes of a run share

Key fresh_key();
// A key for one use, from which neither this key nor those for other uses can be told.
Key derive(const Key& key, std::string_view use);

// A key lies in a file as 64 hexadecimal digits. One that others than its owner may read is refused, and none is ever written over.
Key read_key(const std::filesystem::path& file);
void write_key(const std::filesystem::path& file, const Key& key);

}  // namespace cairn::comm
