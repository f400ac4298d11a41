// JPEG through libjpeg-turbo. The library reports an error by calling back; from there the only way out is longjmp, over C frames alone:
// read_jpeg() and its callbacks hold nothing that has a destructor.
#include <csetjmp>
#include <cstdio>
#include <cstring>

// jpeglib.h needs the two above.
#include <jerror.h>
#include <jpeglib.h>

#include "base/check.h"
#include "data/images/picture.h"

namespace cairn::data {
namespace {

// What one decoding works with. `manager` comes first: the library hands back its address.
struct JpegRead {
  jpeg_error_mgr manager;
  std::jmp_buf give_up;
  char message[JMSG_LENGTH_MAX];
  JDIMENSION width, height;
};

JpegRead& jpeg_read_of(j_common_ptr info) { return *reinterpret_cast<JpegRead*>(info->err); }

[[noreturn]] void on_jpeg_error(j_common_ptr info) {
  JpegRead& read = jpeg_read_of(info);
  (*info->err->format_message)(info, read.message);
  std::longjmp(read.give_up, 1);
}

// Warnings (level -1) are about damaged data, which the library would fill with grey. Bytes between two markers do no harm.
void on_jpeg_message(j_common_ptr info, int level) {
  if (level < 0 && info->err->msg_code != JWRN_EXTRANEOUS_DATA) on_jpeg_error(info);
}

void print_nothing(j_common_ptr) {}

enum class JpegPart { header, pixels };

// Reads the header, or all, into `rows` of width * channels bytes. False: `read.message` says why.
bool read_jpeg(JpegRead& read, const unsigned char* bytes, unsigned long count, int channels, JpegPart part, unsigned char* rows) {
  jpeg_decompress_struct info;
  std::memset(&info, 0, sizeof info);
  info.err = jpeg_std_error(&read.manager);
  read.manager.error_exit = on_jpeg_error;
  read.manager.emit_message = on_jpeg_message;
  read.manager.output_message = print_nothing;
  if (setjmp(read.give_up)) {
    jpeg_destroy_decompress(&info);
    return false;
  }
  jpeg_create_decompress(&info);
  jpeg_mem_src(&info, bytes, count);
  jpeg_read_header(&info, TRUE);
  read.width = info.image_width, read.height = info.image_height;
  if (part == JpegPart::pixels) {
    info.out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_start_decompress(&info);
    const size_t stride = static_cast<size_t>(info.output_width) * static_cast<size_t>(channels);
    while (info.output_scanline < info.output_height) {
      JSAMPROW row = rows + info.output_scanline * stride;
      jpeg_read_scanlines(&info, &row, 1);
    }
    jpeg_finish_decompress(&info);
  }
  jpeg_destroy_decompress(&info);
  return true;
}

}  // namespace

bool has_jpeg() { return true; }

Picture decode_jpeg(std::span<const std::byte> bytes, int64_t channels, const std::string& path) {
  JpegRead read{};
  const auto run = [&](JpegPart part, unsigned char* rows) {
    if (!read_jpeg(read, reinterpret_cast<const unsigned char*>(bytes.data()), bytes.size(), static_cast<int>(channels), part, rows))
      fail_picture(path, "JPEG", read.message);
  };
  run(JpegPart::header, nullptr);
  check_picture_size(path, "JPEG", read.height, read.width);
  Picture picture{.height = read.height, .width = read.width, .channels = channels};
  picture.values.resize(static_cast<size_t>(picture.height * picture.width * channels));
  run(JpegPart::pixels, picture.values.data());
  return picture;
}

}  // namespace cairn::data
