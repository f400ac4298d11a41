#include "train/state/memory_blob.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <sys/mman.h>
#include <unistd.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files/disk.h"
#include "kernels/aten.h"
#include "snapshot/rank_part.h"

namespace cairn::train {
namespace {

constexpr int64_t kPage = 4096;
constexpr uint64_t kMagic = 0x31626f6c626e7263;  // "crnblob1"
constexpr int64_t kRoom = 256 << 10;             // for texts that grow
constexpr int64_t kTextPerPiece = 512;           // its entry in the header, in the vote, and its cells
constexpr const char* kDealt[] = {"model", "adapter", "forms", "optimizer", "live", "sync_elements"};

struct Head {
  uint64_t magic = kMagic;
  int64_t step = 0, file_bytes = 0, text_bytes = 0;
  uint64_t text_checksum = 0, head_checksum = 0;
  uint64_t own_checksum() const { return base::checksum(std::as_bytes(std::span(&magic, 5))); }
};

// A disk with one file, in memory.
class MemoryDisk final : public base::Disk {
 public:
  explicit MemoryDisk(std::span<std::byte> memory) : memory_(memory) {}
  int64_t bytes() const { return bytes_; }

  int open_shared(const std::filesystem::path&) const override { return 0; }
  int64_t write_at(int, std::span<const std::byte> bytes, int64_t offset) const override {
    const auto length = static_cast<int64_t>(bytes.size());
    if (offset < 0 || length > static_cast<int64_t>(memory_.size()) || offset > static_cast<int64_t>(memory_.size()) - length) {
      errno = ENOSPC;
      return -1;
    }
    std::memcpy(memory_.data() + offset, bytes.data(), bytes.size());
    bytes_ = std::max(bytes_, offset + length);
    return length;
  }
  int resize(int, int64_t) const override { return 0; }
  int sync(int) const override { return 0; }
  int close(int) const override { return 0; }
  int64_t free_bytes(const std::filesystem::path&) const override { return -1; }
  int create(const std::filesystem::path&) const override { return refuse(); }
  int append(const std::filesystem::path&) const override { return refuse(); }
  int64_t write(int, std::span<const std::byte>) const override { return refuse(); }
  int rename(const std::filesystem::path&, const std::filesystem::path&) const override { return refuse(); }
  int remove(const std::filesystem::path&) const override { return refuse(); }
  int sync_folder(const std::filesystem::path&) const override { return refuse(); }

 private:
  static int refuse() {
    errno = ENOTSUP;
    return -1;
  }
  std::span<std::byte> memory_;
  mutable int64_t bytes_ = 0;
};

// Texts one behind the other, each behind its length.
void add(std::string& to, std::string_view text) {
  const uint64_t length = text.size();
  to.append(reinterpret_cast<const char*>(&length), sizeof length);
  to.append(text);
}

class Reader {
 public:
  Reader(std::string_view bytes, const std::string& name) : bytes_(bytes), name_(name) {}
  std::string next() {
    uint64_t length = 0;
    if (bytes_.size() - at_ < sizeof length) damaged();
    std::memcpy(&length, bytes_.data() + at_, sizeof length);
    at_ += sizeof length;
    if (length > bytes_.size() - at_) damaged();
    const std::string_view text = bytes_.substr(at_, length);
    at_ += length;
    return std::string(text);
  }
  int64_t number() {
    const std::string text = next();
    int64_t value = 0;
    if (text.size() != sizeof value) damaged();
    std::memcpy(&value, text.data(), sizeof value);
    return value;
  }

 private:
  [[noreturn]] void damaged() const { base::fail_corrupt(name_, "ends too early"); }
  std::string_view bytes_;
  size_t at_ = 0;
  const std::string& name_;
};

void add_number(std::string& to, int64_t value) { add(to, {reinterpret_cast<const char*>(&value), sizeof value}); }

mesh::Fragment whole_fragment(const at::Tensor& tensor) {
  mesh::Fragment fragment;
  for (const int64_t size : tensor.sizes()) fragment.local_shard.dims.push_back({{0, size}});
  fragment.elements = {0, tensor.numel()};
  return fragment;
}

}  // namespace

bool is_dealt_section(const std::string& section) { return std::find(std::begin(kDealt), std::end(kDealt), section) != std::end(kDealt); }

void make_own(RankSnapshot& saved) {
  for (auto& [section, shared] : saved.part.shared)
    for (snapshot::SharedSection::Part& one : shared.parts) {
      const snapshot::TensorEntry& entry = shared.tensors.at(one.tensor);
      saved.part.own.push_back({section, entry.name, entry.shape, one.fragment, std::move(one.data)});
    }
  saved.part.shared.clear();
  saved.part.writes_headers = false;
  if (!saved.rest) return;
  for (const auto& [section, tensors] : saved.rest->tensors)
    for (const mesh::NamedTensor& one : tensors)
      saved.part.own.push_back(
          {section, one.name, one.tensor.sizes().vec(), whole_fragment(one.tensor), one.tensor.detach().contiguous().view({-1})});
}

int64_t blob_bytes(const RankSnapshot& saved) {
  int64_t bytes = 2 * kPage + kRoom;
  for (const snapshot::OwnPiece& one : saved.part.own)
    bytes += static_cast<int64_t>(one.data.nbytes()) + static_cast<int64_t>(3 * one.name.size()) + kTextPerPiece +
             static_cast<int64_t>(one.data.nbytes() >> 24) * 128;
  if (saved.rest)
    for (const auto& [name, text] : saved.rest->texts) bytes += static_cast<int64_t>(name.size() + text.size() + text.size() / 8 + 16);
  return (bytes + kPage - 1) / kPage * kPage;
}

bool write_blob(const RankSnapshot& saved, std::span<std::byte> into) {
  if (into.size() < 2 * kPage) return false;
  const std::span<std::byte> room = into.subspan(kPage);
  const MemoryDisk disk(room);
  snapshot::Vote vote;
  try {
    snapshot::PartWriter writer("", saved.part, disk);
    for (const snapshot::WriteBlock& block : writer.blocks()) {
      const at::Tensor host = block.data.cpu();
      writer.write(block, {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
    }
    vote = writer.finish();
  } catch (const Error& error) {
    if (error.kind() == Error::Kind::disk) return false;
    throw;
  }
  vote.rank = saved.part.rank;
  std::string text;
  add(text, snapshot::format_vote(vote));
  add(text, saved.rest ? saved.rest->version : "");
  add_number(text, saved.rest ? static_cast<int64_t>(saved.rest->texts.size()) : 0);
  if (saved.rest)
    for (const auto& [name, content] : saved.rest->texts) {
      add(text, name);
      add(text, content);
    }
  const int64_t behind = (disk.bytes() + 7) / 8 * 8;
  if (behind + static_cast<int64_t>(text.size()) > static_cast<int64_t>(room.size())) return false;
  std::memcpy(room.data() + behind, text.data(), text.size());
  Head head{.step = saved.rest ? saved.rest->step : 0, .file_bytes = disk.bytes(), .text_bytes = static_cast<int64_t>(text.size())};
  head.text_checksum = base::checksum(text);
  head.head_checksum = head.own_checksum();
  std::memcpy(into.data(), &head, sizeof head);
  return true;
}

BlobFacts read_blob(std::span<const std::byte> region, const std::string& name) {
  Head head;
  if (region.size() < 2 * kPage) base::fail_corrupt(name, "too short");
  std::memcpy(&head, region.data(), sizeof head);
  const int64_t room = static_cast<int64_t>(region.size()) - kPage, behind = (head.file_bytes + 7) / 8 * 8;
  if (head.magic != kMagic || head.head_checksum != head.own_checksum()) base::fail_corrupt(name, "no rank's state");
  if (head.file_bytes < 0 || head.file_bytes > room || head.text_bytes < 0 || head.text_bytes > room - behind)
    base::fail_corrupt(name, "longer than its memory");
  const std::span<const std::byte> file = region.subspan(kPage, static_cast<size_t>(head.file_bytes));
  const std::span<const std::byte> text = region.subspan(static_cast<size_t>(kPage + behind), static_cast<size_t>(head.text_bytes));
  if (base::checksum(text) != head.text_checksum) base::fail_corrupt(name, "its texts have another checksum");
  Reader reader({reinterpret_cast<const char*>(text.data()), text.size()}, name);
  BlobFacts facts{.step = head.step, .file_bytes = head.file_bytes, .vote = reader.next()};
  facts.version = reader.next();
  for (int64_t left = reader.number(); left > 0; --left) {
    const std::string key = reader.next();
    facts.texts[key] = reader.next();
  }
  if (file.empty()) return facts;
  const snapshot::SafetensorsHeader header = snapshot::parse_safetensors_header(file, name);
  const auto bytes_of = [&](int64_t begin, int64_t end) {
    return std::string(reinterpret_cast<const char*>(file.data()) + begin, static_cast<size_t>(end - begin));
  };
  int64_t first = head.file_bytes;
  for (const snapshot::TensorEntry& entry : header.entries) {
    first = std::min(first, entry.begin);
    if (!is_dealt_section(entry.name.substr(0, entry.name.find('/'))))
      facts.bytes.emplace_back(entry.begin, bytes_of(entry.begin, entry.end));
  }
  facts.bytes.emplace_back(0, bytes_of(0, first));
  return facts;
}

std::string pack(const BlobFacts& facts) {
  std::string packed;
  add_number(packed, facts.step);
  add_number(packed, facts.file_bytes);
  add(packed, facts.vote);
  add(packed, facts.version);
  add_number(packed, static_cast<int64_t>(facts.texts.size()));
  for (const auto& [name, text] : facts.texts) {
    add(packed, name);
    add(packed, text);
  }
  add_number(packed, static_cast<int64_t>(facts.bytes.size()));
  for (const auto& [offset, bytes] : facts.bytes) {
    add_number(packed, offset);
    add(packed, bytes);
  }
  return packed;
}

BlobFacts unpack(const std::string& packed, const std::string& name) {
  Reader reader(packed, name);
  BlobFacts facts;
  facts.step = reader.number();
  facts.file_bytes = reader.number();
  facts.vote = reader.next();
  facts.version = reader.next();
  for (int64_t left = reader.number(); left > 0; --left) {
    const std::string key = reader.next();
    facts.texts[key] = reader.next();
  }
  for (int64_t left = reader.number(); left > 0; --left) {
    const int64_t offset = reader.number();
    facts.bytes.emplace_back(offset, reader.next());
  }
  return facts;
}

std::shared_ptr<const base::MappedFile> file_in(int fd, int64_t offset, const BlobFacts& facts, const std::string& name) {
  return base::MappedFile::map(fd, offset + kPage, facts.file_bytes, name);
}

std::shared_ptr<const base::MappedFile> file_without_values(const BlobFacts& facts, const std::string& name) {
  const int file = ::memfd_create("cairn-header", MFD_CLOEXEC);
  if (file < 0 || ::ftruncate(file, facts.file_bytes) != 0)
    throw Error(Error::Kind::out_of_memory, fmt::format("{}: no memory for its header: {}", name, std::strerror(errno)));
  for (const auto& [offset, bytes] : facts.bytes) {
    size_t at = 0;
    while (at < bytes.size()) {
      const ssize_t written = ::pwrite(file, bytes.data() + at, bytes.size() - at, static_cast<off_t>(offset) + static_cast<off_t>(at));
      if (written <= 0) throw Error(Error::Kind::out_of_memory, fmt::format("{}: no memory for its header", name));
      at += static_cast<size_t>(written);
    }
  }
  std::shared_ptr<const base::MappedFile> mapped = base::MappedFile::map(file, 0, facts.file_bytes, name);
  ::close(file);
  return mapped;
}

}  // namespace cairn::train
