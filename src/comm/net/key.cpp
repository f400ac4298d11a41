#include "comm/net/key.h"

#include <cerrno>
#include <cstring>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <unistd.h>

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/rand.h>

#include "base/check.h"

namespace cairn::comm {
namespace {

int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

Key fresh_key() {
  Key key;
  CAIRN_CHECK(RAND_bytes(key.data(), static_cast<int>(key.size())) == 1, "no random numbers from the system");
  return key;
}

Key derive(const Key& key, std::string_view use) {
  Key out;
  unsigned length = 0;
  const auto* text = reinterpret_cast<const unsigned char*>(use.data());
  const auto* done = HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), text, use.size(), out.data(), &length);
  CAIRN_CHECK(done != nullptr && length == out.size(), "HMAC-SHA256 gave {} bytes", length);
  return out;
}

Key read_key(const std::filesystem::path& file) {
  const std::string name = file.string();
  const int fd = ::open(name.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);  // a named pipe must not block
  if (fd < 0)
    base::fail_input("{}: {}; `cairn key {}` makes a new key, which all machines of a run must have", name, std::strerror(errno), name);
  struct stat facts {};
  std::array<char, 128> text{};
  const bool seen = ::fstat(fd, &facts) == 0;
  const bool regular = seen && S_ISREG(facts.st_mode);
  const ssize_t length = !regular ? 0 : ::read(fd, text.data(), text.size());
  ::close(fd);
  if (!seen || length < 0) base::fail_input("{}: {}", name, std::strerror(errno));
  if (!regular) base::fail_input("{}: not a regular file. `cairn key FILE` makes a key.", name);
  if ((facts.st_mode & 077) != 0) base::fail_input("{}: others can read this key. Run `chmod 600 {}`.", name, name);
  Key key;
  std::string_view digits(text.data(), static_cast<size_t>(length));
  while (!digits.empty() && (digits.back() == '\n' || digits.back() == '\r' || digits.back() == ' ')) digits.remove_suffix(1);
  bool right = digits.size() == 2 * key.size();
  for (size_t i = 0; right && i < key.size(); ++i) {
    const int high = digit(digits[2 * i]), low = digit(digits[2 * i + 1]);
    right = high >= 0 && low >= 0;
    key[i] = static_cast<uint8_t>(high * 16 + low);
  }
  if (!right) base::fail_input("{}: not a key: it needs {} hexadecimal digits. `cairn key FILE` makes one.", name, 2 * key.size());
  return key;
}

void write_key(const std::filesystem::path& file, const Key& key) {
  const std::string name = file.string();
  const int fd = ::open(name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0)
    base::fail_input("{}: {}", name,
                     errno == EEXIST ? "exists already. A key is never overwritten; choose another file." : std::strerror(errno));
  std::string text;
  for (const uint8_t byte : key) text += fmt::format("{:02x}", byte);
  text += '\n';
  const bool written = ::write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) && ::fsync(fd) == 0;
  const int error = errno;
  ::close(fd);
  if (written) return;
  ::unlink(name.c_str());
  base::fail_input("{}: {}", name, std::strerror(error));
}

}  // namespace cairn::comm
