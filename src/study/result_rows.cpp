#include "study/result_rows.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <span>
#include <string>
#include <unistd.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"

namespace cairn::study {
namespace {

constexpr char kMagic[] = "cairnrw1";
constexpr size_t kHeadBytes = 16;
constexpr int64_t kFileBytesMax = int64_t{16} << 30;

template <typename T>
void append(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

ResultRows::ResultRows(std::filesystem::path path, uint64_t identity) : path_(std::move(path)) {
  std::string text = base::path_exists(path_) ? base::read_file(path_, kFileBytesMax) : "";
  size_t good = 0;
  if (text.size() >= kHeadBytes) {
    uint64_t theirs = 0;
    std::memcpy(&theirs, text.data() + 8, sizeof theirs);
    if (text.compare(0, 8, kMagic) != 0 || theirs != identity)
      base::fail_input("{}: results of another recipe, or of other data. Give another --out, or remove the directory.", path_.string());
    good = kHeadBytes;
  }
  for (size_t at = good; good > 0 && at + 16 <= text.size();) {
    int64_t unit = 0, count = 0;
    std::memcpy(&unit, text.data() + at, sizeof unit);
    std::memcpy(&count, text.data() + at + 8, sizeof count);
    if (count < 0 || count > kFileBytesMax / 8 || at + 24 + static_cast<size_t>(count) * 8 > text.size()) break;
    const size_t bytes = 16 + static_cast<size_t>(count) * 8;
    uint64_t sum = 0;
    std::memcpy(&sum, text.data() + at + bytes, sizeof sum);
    if (sum != base::checksum(std::string_view(text).substr(at, bytes))) break;
    std::vector<double> row(static_cast<size_t>(count));
    std::memcpy(row.data(), text.data() + at + 16, row.size() * sizeof(double));
    found_[unit] = std::move(row);
    good = at += bytes + 8;
  }
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) throw Error(Error::Kind::disk, fmt::format("{}: {}", path_.string(), std::strerror(errno)));
  if (good == 0) {
    std::string head(kMagic);
    append(head, identity);
    if (::pwrite(file_, head.data(), head.size(), 0) != static_cast<ssize_t>(head.size()))
      throw Error(Error::Kind::disk, fmt::format("{}: {}", path_.string(), std::strerror(errno)));
    good = kHeadBytes;
  }
  if (::ftruncate(file_, static_cast<off_t>(good)) != 0 || ::lseek(file_, 0, SEEK_END) < 0)
    throw Error(Error::Kind::disk, fmt::format("{}: {}", path_.string(), std::strerror(errno)));
}

ResultRows::~ResultRows() {
  if (file_ >= 0) ::close(file_);
}

void ResultRows::add(int64_t unit, const std::vector<double>& result) {
  std::string text;
  append(text, unit);
  append(text, static_cast<int64_t>(result.size()));
  text.append(reinterpret_cast<const char*>(result.data()), result.size() * sizeof(double));
  append(text, base::checksum(text));
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = ::write(file_, text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw Error(Error::Kind::disk, fmt::format("{}: {}", path_.string(), std::strerror(errno)));
    at += static_cast<size_t>(n);
  }
}

}  // namespace cairn::study
