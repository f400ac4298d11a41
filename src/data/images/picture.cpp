#include "data/images/picture.h"

#include <algorithm>
#include <string_view>

#include "base/check.h"
#include "base/files.h"

namespace cairn::data {
namespace {

constexpr int64_t kPictureBytesMax = int64_t{1} << 28;
constexpr std::string_view kPngMagic("\x89PNG\r\n\x1a\n", 8), kJpegMagic("\xff\xd8\xff", 3);

}  // namespace

Picture decode_picture(std::span<const std::byte> bytes, int64_t channels, const std::string& path) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  if (text.starts_with(kPngMagic)) return decode_png(bytes, channels, path);
  if (text.starts_with(kJpegMagic)) return decode_jpeg(bytes, channels, path);
  base::fail_input("{}: is no PNG or JPEG file. Replace it, or take it out of the folder.", path);
}

Picture read_picture(const std::string& path, int64_t channels) {
  const std::string text = base::read_file(path, kPictureBytesMax);
  return decode_picture(base::as_bytes(text), channels, path);
}

bool is_picture_name(const std::string& name) {
  std::string lower = name;
  std::ranges::transform(lower, lower.begin(), [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return lower.ends_with(".png") || lower.ends_with(".jpg") || lower.ends_with(".jpeg");
}

void fail_picture(const std::string& path, const char* format, const std::string& reason) {
  base::fail_input("{}: a damaged {} file: {}. Replace it, or take it out of the folder.", path, format, reason);
}

void check_picture_size(const std::string& path, const char* format, int64_t height, int64_t width) {
  if (height < 1 || width < 1) fail_picture(path, format, "it has no pixels");
  if (height > kPicturePixelsMax / width)
    base::fail_input("{}: {} x {} pixels, and at most {} are read. Make it smaller.", path, height, width, kPicturePixelsMax);
}

}  // namespace cairn::data
