// PNG through libpng's simplified interface, which keeps its error handling to itself.
#include <png.h>

#include "base/check.h"
#include "data/images/picture.h"

namespace cairn::data {
namespace {

// Frees what libpng holds, also where decoding is given up.
struct PngImage {
  png_image image{};
  PngImage() { image.version = PNG_IMAGE_VERSION; }
  ~PngImage() { png_image_free(&image); }
  PngImage(const PngImage&) = delete;
  PngImage& operator=(const PngImage&) = delete;
};

}  // namespace

bool has_png() { return true; }

Picture decode_png(std::span<const std::byte> bytes, int64_t channels, const std::string& path) {
  PngImage png;
  if (!png_image_begin_read_from_memory(&png.image, bytes.data(), bytes.size())) fail_picture(path, "PNG", png.image.message);
  check_picture_size(path, "PNG", png.image.height, png.image.width);
  png.image.format = channels == 1 ? PNG_FORMAT_GRAY : PNG_FORMAT_RGB;
  Picture picture{.height = png.image.height, .width = png.image.width, .channels = channels};
  picture.values.resize(static_cast<size_t>(picture.height * picture.width * channels));
  constexpr png_color kBlack{0, 0, 0};
  if (!png_image_finish_read(&png.image, &kBlack, picture.values.data(), 0, nullptr)) fail_picture(path, "PNG", png.image.message);
  return picture;
}

}  // namespace cairn::data
