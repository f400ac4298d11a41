#include "comm/consensus/raft_file.h"

#include <cstring>
#include <string>
#include <utility>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "comm/consensus/raft_wire.h"

namespace cairn::comm {
namespace {

constexpr std::string_view kMagic = "cairnrf1";
constexpr int64_t kFileBytesMax = int64_t{1} << 30;

}  // namespace

RaftFile::RaftFile(std::filesystem::path path, const base::Disk& disk) : path_(std::move(path)), disk_(disk) {}

RaftState RaftFile::load() {
  if (!base::path_exists(path_)) return {};
  const std::string text = base::read_file(path_, kFileBytesMax);
  const size_t header = kMagic.size() + sizeof(uint64_t);
  if (text.size() < header || !text.starts_with(kMagic)) base::fail_corrupt(path_.string(), "not a log of island decisions");
  uint64_t checksum = 0;
  std::memcpy(&checksum, text.data() + kMagic.size(), sizeof checksum);
  const std::string_view body = std::string_view(text).substr(header);
  std::optional<RaftState> state = decode_raft_state(base::as_bytes(body));
  if (checksum != base::checksum(body) || !state) base::fail_corrupt(path_.string(), "its checksum does not match");
  return std::move(*state);
}

void RaftFile::save(const RaftState& state) {
  const std::vector<std::byte> body = encode(state);
  const std::string_view text(reinterpret_cast<const char*>(body.data()), body.size());
  const uint64_t checksum = base::checksum(text);
  std::string file(kMagic);
  file.append(reinterpret_cast<const char*>(&checksum), sizeof checksum);
  file += text;
  base::write_atomically(path_, file, disk_);
}

}  // namespace cairn::comm
