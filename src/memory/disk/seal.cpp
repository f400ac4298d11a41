#include "memory/disk/seal.h"

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "memory/buffer_pool.h"

namespace cairn::memory {
namespace {

constexpr uint64_t kMagic = 0x314c4145536e7243;  // "CrnSEAL1"

struct SealOnDisk {
  uint64_t magic = kMagic;
  Seal seal;
  uint64_t reserved = 0;
  uint64_t own_checksum = 0;  // of what is before it
};
static_assert(sizeof(SealOnDisk) == kSealBytes);

uint64_t checksum_of(const SealOnDisk& seal) {
  return base::checksum(std::as_bytes(std::span(&seal, 1)).first(sizeof seal - sizeof seal.own_checksum));
}

}  // namespace

SealWriter::SealWriter(std::span<std::byte> whole, const Seal& seal) : whole_(whole), seal_(seal) {
  CAIRN_CHECK(seal.length + kSealBytes <= whole.size(), "a seal behind {} bytes in {}", seal.length, whole.size());
  const std::span<std::byte> padding = whole.subspan(seal.length);
  std::memset(padding.data(), 0, padding.size());
}

void SealWriter::advance(int64_t end) {
  const int64_t until = std::min(end, static_cast<int64_t>(seal_.length));
  if (until > summed_) checksum_.add(whole_.subspan(static_cast<size_t>(summed_), static_cast<size_t>(until - summed_)));
  summed_ = std::max(summed_, until);
  if (end < std::ssize(whole_)) return;
  seal_.checksum = checksum_.value();
  SealOnDisk on_disk{.seal = seal_};
  on_disk.own_checksum = checksum_of(on_disk);
  std::memcpy(whole_.data() + whole_.size() - kSealBytes, &on_disk, sizeof on_disk);
}

std::string find_fault(std::span<const std::byte> whole, const Seal& expected) {
  SealOnDisk found;
  std::memcpy(&found, whole.data() + whole.size() - kSealBytes, sizeof found);
  if (found.magic != kMagic || found.own_checksum != checksum_of(found)) return "is torn: there is no valid seal at its end";
  if (found.seal.run != expected.run || found.seal.record != expected.record || found.seal.length != expected.length)
    return "is stale: another record lies there";
  if (found.seal.version != expected.version)
    return fmt::format("is stale: the disk holds version {}, version {} was written", found.seal.version, expected.version);
  if (found.seal.checksum != expected.checksum || base::checksum(whole.first(expected.length)) != expected.checksum)
    return fmt::format("is torn: the checksum of version {} is wrong", expected.version);
  return {};
}

}  // namespace cairn::memory
