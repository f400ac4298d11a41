#include "data/selection/framed_file.h"

#include <charconv>
#include <cstring>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"
#include "base/files/mapped_file.h"

namespace cairn::data {
namespace {

constexpr size_t kMagicBytes = 8, kLengthBytes = 8, kSumBytes = 8;
constexpr size_t kHeaderBytesMax = 64 << 20;
constexpr int kHeaderDepth = 16;
constexpr const char* kBodyBytes = "body_bytes";

uint64_t number_at(std::string_view bytes, size_t at) {
  uint64_t number = 0;
  std::memcpy(&number, bytes.data() + at, sizeof number);
  return number;
}

[[noreturn]] void refuse_file(const std::string& path, std::string_view what, std::string_view why) {
  base::fail_input("{}: not {} that can be used: {}. Make it again with `cairn select`.", path, what, why);
}

base::Json header_of(std::string_view bytes, const std::string& path, std::string_view magic, std::string_view what) {
  if (bytes.size() < kMagicBytes || !bytes.starts_with(magic)) refuse_file(path, what, "it does not begin like one");
  if (bytes.size() < kMagicBytes + kLengthBytes) refuse_file(path, what, "it is cut short");
  const uint64_t length = number_at(bytes, kMagicBytes);
  if (length > kHeaderBytesMax || length > bytes.size() - kMagicBytes - kLengthBytes) refuse_file(path, what, "it is cut short");
  base::GuardedJson parsed = base::parse_json_guarded(bytes.substr(kMagicBytes + kLengthBytes, length), kHeaderDepth);
  if (!parsed.trouble.empty() || !parsed.value.is_object()) refuse_file(path, what, "its header is damaged");
  return std::move(parsed.value);
}

}  // namespace

void write_framed(const std::string& path, std::string_view magic, const base::OrderedJson& header, std::span<const std::byte> body) {
  CAIRN_CHECK(magic.size() == kMagicBytes, "magic \"{}\"", magic);
  base::OrderedJson complete = header;
  complete[kBodyBytes] = body.size();
  const std::string text = base::compact(complete);
  const uint64_t length = text.size();
  base::FileWriter file(path);
  const auto number = [](const uint64_t& value) { return std::as_bytes(std::span(&value, 1)); };
  file.write(magic);
  file.write(number(length));
  file.write(text);
  file.write(body);
  const uint64_t sum = file.checksum();
  file.write(number(sum));
  file.commit();
}

FramedFile read_framed(const std::string& path, std::string_view magic, std::string_view what) {
  const auto memory = base::MappedFile::open(path, Error::Kind::bad_input);
  const std::string_view bytes(reinterpret_cast<const char*>(memory->bytes().data()), memory->bytes().size());
  FramedFile file{.header = header_of(bytes, path, magic, what), .body = {}};
  const size_t body = kMagicBytes + kLengthBytes + number_at(bytes, kMagicBytes);
  const auto count = static_cast<uint64_t>(header_count(file.header, kBodyBytes, path));
  if (bytes.size() - body < kSumBytes || bytes.size() - body - kSumBytes != count)
    refuse_file(path, what, fmt::format("its header promises {} bytes, and {} follow it", count, bytes.size() - body));
  const size_t end = bytes.size() - kSumBytes;
  if (base::checksum(bytes.substr(0, end)) != number_at(bytes, end))
    refuse_file(path, what, "its checksum does not match, so it is damaged");
  file.body = bytes.substr(body, end - body);
  return file;
}

int64_t header_count(const base::Json& header, const char* name, const std::string& path) {
  const auto found = header.find(name);
  if (found == header.end() || !found->is_number_integer() || found->get<int64_t>() < 0)
    base::fail_input("{}: its header has no count \"{}\". Make it again with `cairn select`.", path, name);
  return found->get<int64_t>();
}

std::string header_text(const base::Json& header, const char* name, const std::string& path) {
  const auto found = header.find(name);
  if (found == header.end() || !found->is_string())
    base::fail_input("{}: its header has no text \"{}\". Make it again with `cairn select`.", path, name);
  return found->get<std::string>();
}

uint64_t header_hash(const base::Json& header, const char* name, const std::string& path) {
  const std::string text = header_text(header, name, path);
  uint64_t hash = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), hash, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16)
    base::fail_input("{}: \"{}\" in its header is not 16 hexadecimal digits. Make it again with `cairn select`.", path, name);
  return hash;
}

std::string hash_text(uint64_t hash) { return fmt::format("{:016x}", hash); }

}  // namespace cairn::data
