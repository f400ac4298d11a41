// What the writers of files share: complete writes, and the error of a disk.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/files/disk.h"

namespace cairn::base {

// Writes all of it, however short the single writes are. Returns what is left: nothing, or there is an error in errno.
std::span<const std::byte> write_all(const Disk& disk, int file, std::span<const std::byte> bytes);

// Throws Kind::disk, with what the user can do about it.
[[noreturn]] void fail_disk(std::string_view doing, const std::filesystem::path& path, int error, int64_t bytes_missing, const Disk& disk);

}  // namespace cairn::base
