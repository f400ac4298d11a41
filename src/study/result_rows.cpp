#include "study/result_rows.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <span>
#include <string>
#include <unistd.h>

#include "base/check.h"
#include "base/checksum.h"
#include "base/files.h"

namespace cairn::study {
namespace {

constexpr char kRowsMagic[] = "cairnrw1";
constexpr int64_t kRowsHeadBytes = 16, kRowHeadBytes = 16;

template <typename T>
void append(std::string& text, const T& value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof value);
}

}  // namespace

ResultRows::ResultRows(std::filesystem::path path, uint64_t identity) : path_(std::move(path)) {
  const int64_t good = base::path_exists(path_) ? read(identity) : 0;
  file_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
  if (file_ < 0) throw Error(Error::Kind::disk, fmt::format("{}: {}", path_.string(), std::strerror(errno)));
  if (good == 0) {
    std::string head(kRowsMagic);
    append(head, identity);
    if (::pwrite(file_, head.data(), head.size(), 0) != static_cast<ssize_t>(head.size()))
      throw Error(Error::Kind::disk, fmt::format("{}: {}", path_.string(), std::strerror(errno)));
  }
  if (::ftruncate(file_, static_cast<off_t>(std::max(good, kRowsHeadBytes))) != 0 || ::lseek(file_, 0, SEEK_END) < 0)
    throw Error(Error::Kind::disk, fmt::format("{}: {}", path_.string(), std::strerror(errno)));
}

// The bytes of the head and of the rows after it that are whole; 0: there is no head yet.
int64_t ResultRows::read(uint64_t identity) {
  if (!std::filesystem::is_regular_file(path_)) base::fail_input("{}: not a regular file. Give another --out.", path_.string());
  std::ifstream file(path_, std::ios::binary);
  const auto bytes = static_cast<int64_t>(std::filesystem::file_size(path_));
  std::string head(kRowsHeadBytes, '\0'), row;
  if (!file.read(head.data(), kRowsHeadBytes)) return 0;
  uint64_t theirs = 0;
  std::memcpy(&theirs, head.data() + 8, sizeof theirs);
  if (head.compare(0, 8, kRowsMagic) != 0 || theirs != identity)
    base::fail_input("{}: results of another recipe, or of other data. Give another --out, or remove the directory.", path_.string());
  for (int64_t good = kRowsHeadBytes;;) {
    int64_t unit = 0, count = 0;
    row.resize(kRowHeadBytes);
    if (!file.read(row.data(), kRowHeadBytes)) return good;
    std::memcpy(&unit, row.data(), sizeof unit);
    std::memcpy(&count, row.data() + 8, sizeof count);
    if (count < 0 || count > (bytes - good - kRowHeadBytes) / 8 - 1) return good;
    row.resize(static_cast<size_t>(kRowHeadBytes + count * 8));
    uint64_t sum = 0;
    if (!file.read(row.data() + kRowHeadBytes, count * 8) || !file.read(reinterpret_cast<char*>(&sum), sizeof sum) ||
        sum != base::checksum(row))
      return good;
    std::vector<double>& values = found_[unit];
    values.resize(static_cast<size_t>(count));
    std::memcpy(values.data(), row.data() + kRowHeadBytes, values.size() * sizeof(double));
    good += kRowHeadBytes + count * 8 + 8;
  }
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
