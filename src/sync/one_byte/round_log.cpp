#include "sync/one_byte/round_log.h"

#include <cerrno>
#include <cstring>
#include <utility>

#include <fmt/format.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/files/write_calls.h"
#include "base/json.h"
#include "kernels/aten.h"

namespace cairn::sync {
namespace {

constexpr std::string_view kLogMagic = "cairnrl1";
constexpr size_t kLogHeadBytes = kLogMagic.size() + 2 * sizeof(uint32_t);
constexpr int64_t kLogBytesMax = int64_t{1} << 32;

std::string log_head(const RoundLogHeader& header) {
  base::OrderedJson json;
  json["run"] = header.run;
  json["base"] = header.base;
  json["fingerprint"] = header.fingerprint;
  json["first"] = header.first;
  json["code"] = base::enum_name(kSlopeCodeNames, header.code);
  json["noise"] = base::enum_name(kNoiseNames, header.noise);
  json["scale"] = base::enum_name(kSlopeScaleNames, header.scale);
  json["parameters"] = header.parameters;
  json["trained"] = header.trained;
  const std::string text = base::compact(json);
  const auto size = static_cast<uint32_t>(text.size()), crc = base::crc32c(base::as_bytes(text));
  std::string head(kLogMagic);
  head.append(reinterpret_cast<const char*>(&size), sizeof size);
  head.append(reinterpret_cast<const char*>(&crc), sizeof crc);
  return head + text;
}

RoundLogHeader parse_log_header(const std::string& path, std::string_view text) {
  const base::Json json = base::parse_json(text);
  try {
    RoundLogHeader header;
    header.run = json.at("run").get<uint64_t>();
    header.base = json.at("base").get<uint64_t>();
    header.fingerprint = json.at("fingerprint").get<uint64_t>();
    header.first = json.at("first").get<uint32_t>();
    header.code = base::parse_enum(kSlopeCodeNames, "code", json.at("code").get<std::string>());
    header.noise = base::parse_enum(kNoiseNames, "noise", json.at("noise").get<std::string>());
    header.scale = base::parse_enum(kSlopeScaleNames, "scale", json.at("scale").get<std::string>());
    header.parameters = json.at("parameters").get<std::string>();
    header.trained = json.at("trained").get<std::vector<std::string>>();
    return header;
  } catch (const base::Json::exception& error) {
    base::fail_corrupt(path, fmt::format("its header: {}", error.what()));
  }
}

}  // namespace

RoundLog::RoundLog(std::filesystem::path path, RoundLogHeader header, const base::Disk& disk)
    : path_(std::move(path)), disk_(&disk), header_(std::move(header)), next_(header_.first) {
  rewrite();
}

RoundLog::RoundLog(RoundLog&& other) noexcept
    : path_(std::move(other.path_)),
      disk_(other.disk_),
      header_(std::move(other.header_)),
      records_(std::move(other.records_)),
      next_(other.next_),
      epoch_(other.epoch_),
      torn_bytes_(other.torn_bytes_),
      stale_(other.stale_),
      file_(std::exchange(other.file_, -1)) {}

RoundLog& RoundLog::operator=(RoundLog&& other) noexcept {
  std::swap(path_, other.path_), std::swap(disk_, other.disk_), std::swap(header_, other.header_), std::swap(records_, other.records_);
  std::swap(next_, other.next_), std::swap(epoch_, other.epoch_), std::swap(torn_bytes_, other.torn_bytes_);
  std::swap(stale_, other.stale_), std::swap(file_, other.file_);
  return *this;
}

RoundLog::~RoundLog() { close(); }

void RoundLog::close() {
  if (file_ >= 0) disk_->close(std::exchange(file_, -1));
}

std::optional<RoundLog> RoundLog::open(const std::filesystem::path& path, const base::Disk& disk) {
  if (path.empty() || !base::path_exists(path)) return std::nullopt;
  const std::string text = base::read_file(path, kLogBytesMax);
  if (!text.starts_with(kLogMagic))
    base::fail_input("{}: is no log of rounds, or one of an older version: remove it to go on from the newest snapshot without it",
                     path.string());
  uint32_t size = 0, crc = 0;
  if (text.size() >= kLogHeadBytes) {
    std::memcpy(&size, text.data() + kLogMagic.size(), sizeof size);
    std::memcpy(&crc, text.data() + kLogMagic.size() + sizeof size, sizeof crc);
  }
  const std::string_view head = std::string_view(text).substr(std::min(kLogHeadBytes, text.size()), size);
  if (head.size() != size || size == 0 || base::crc32c(base::as_bytes(head)) != crc)
    base::fail_corrupt(path.string(), "its header is damaged");
  RoundLog log(path, disk);
  log.header_ = parse_log_header(path.string(), head);
  const auto all = base::as_bytes(std::string_view(text).substr(kLogHeadBytes + size));
  const auto good = records_before(all, std::numeric_limits<uint32_t>::max(), log.header_.code);
  log.records_.assign(good.begin(), good.end());
  log.torn_bytes_ = static_cast<int64_t>(all.size() - good.size());
  log.stale_ = log.torn_bytes_ > 0;
  log.find_end();
  return log;
}

void RoundLog::find_end() {
  next_ = header_.first, epoch_ = 0;
  for (std::span<const std::byte> left = records_; !left.empty();) {
    const RoundRecord record = take_record(left, header_.code);
    next_ = record.manifest.round + 1, epoch_ = record.manifest.epoch;
  }
}

void RoundLog::rewrite() {
  stale_ = false;
  if (path_.empty()) return;
  close();
  if (path_.has_parent_path()) base::make_folder(path_.parent_path());
  std::string text = log_head(header_);
  text.append(reinterpret_cast<const char*>(records_.data()), records_.size());
  base::write_atomically(path_, text, *disk_);
}

void RoundLog::append(const RoundRecord& record) {
  if (record.manifest.round < next_) {
    records_.resize(records_before(records_, record.manifest.round, header_.code).size());
    stale_ = true;
  }
  const std::vector<std::byte> bytes = encode_record(record);
  if (stale_) rewrite();
  if (!path_.empty()) {
    if (file_ < 0) file_ = disk_->append(path_);
    if (file_ < 0) base::fail_disk("open", path_, errno, 0, *disk_);
    const auto left = base::write_all(*disk_, file_, bytes);
    if (!left.empty() || disk_->sync(file_) != 0) {
      stale_ = true;  // a part of the record may be there
      base::fail_disk("append to", path_, errno, static_cast<int64_t>(left.size()), *disk_);
    }
  }
  records_.insert(records_.end(), bytes.begin(), bytes.end());
  next_ = record.manifest.round + 1, epoch_ = record.manifest.epoch;
}

void RoundLog::assign(std::span<const std::byte> records) {
  records_.assign(records.begin(), records.end());
  find_end();
  rewrite();
}

uint64_t hash_of_tensor(const at::Tensor& tensor) {
  const at::Tensor host = tensor.detach().to(at::kCPU, at::kFloat).contiguous();
  return base::checksum(std::as_bytes(std::span(host.const_data_ptr<float>(), static_cast<size_t>(host.numel()))));
}

uint64_t hash_of_parameters(const std::vector<std::pair<std::string, uint64_t>>& hashes) {
  base::Checksum sum;
  for (const auto& [name, hash] : hashes) {
    sum.add(base::as_bytes(name + "\n"));
    sum.add(std::as_bytes(std::span(&hash, 1)));
  }
  return sum.value();
}

}  // namespace cairn::sync
