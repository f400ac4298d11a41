#include "comm/bridge/incarnation_file.h"

#include <algorithm>
#include <charconv>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/clock.h"

namespace cairn::comm {
namespace {

constexpr int64_t kIncarnationBytesMax = 64;

}  // namespace

IncarnationFile::IncarnationFile(std::filesystem::path path, const base::Disk& disk) : path_(std::move(path)), disk_(&disk) {}

uint64_t IncarnationFile::operator()(uint64_t least) const {
  uint64_t last = 0;
  if (base::path_exists(path_)) {
    const std::string text = base::read_file(path_, kIncarnationBytesMax);
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, last);
    if (error != std::errc() || std::string_view(stop, end) != "\n")
      base::fail_input("{}: it does not hold the number of this island's last start. Remove it: the other islands know the number",
                       path_.string());
  }
  const uint64_t next = std::max(last + 1, least);
  base::write_atomically(path_, fmt::format("{}\n", next), *disk_);
  return next;
}

NextIncarnation incarnations_in_memory() {
  return [last = static_cast<uint64_t>(base::wall_time() * 1e6)](uint64_t least) mutable { return last = std::max(last + 1, least); };
}

}  // namespace cairn::comm
