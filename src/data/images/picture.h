// Pictures in PNG and JPEG files.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace cairn::data {

// Bytes, row by row: [height, width, channels].
struct Picture {
  int64_t height = 0, width = 0, channels = 0;
  std::vector<uint8_t> values = {};
};

// More pixels than this are refused before any memory is taken for them.
inline constexpr int64_t kPicturePixelsMax = int64_t{1} << 26;

// Decodes a file's bytes; the first ones tell the format. `channels`: 1 (grey values) or 3 (red, green, blue), whatever the file has; where
// it has transparency, black is behind it. Refuses a file that is damaged, cut short or of another format, with `path` and the reason.
Picture decode_picture(std::span<const std::byte> bytes, int64_t channels, const std::string& path);
Picture read_picture(const std::string& path, int64_t channels);

// Whether a file of this name is taken for a picture: it ends in .png, .jpg or .jpeg, in any case.
bool is_picture_name(const std::string& name);

// One format each. Where Cairn was built without the library, they refuse with what to install.
Picture decode_png(std::span<const std::byte> bytes, int64_t channels, const std::string& path);
Picture decode_jpeg(std::span<const std::byte> bytes, int64_t channels, const std::string& path);
bool has_png();
bool has_jpeg();

// Throws for a damaged picture: "PATH: a damaged PNG file: ...".
[[noreturn]] void fail_picture(const std::string& path, const char* format, const std::string& reason);
// Refuses sizes that are zero or too large.
void check_picture_size(const std::string& path, const char* format, int64_t height, int64_t width);

}  // namespace cairn::data
