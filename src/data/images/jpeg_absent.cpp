// Stands in for jpeg.cpp where Cairn is built without libjpeg.
#include "base/check.h"
#include "data/images/picture.h"

namespace cairn::data {

bool has_jpeg() { return false; }

Picture decode_jpeg(std::span<const std::byte>, int64_t, const std::string& path) {
  base::fail_input("{}: a JPEG file, and Cairn was built without libjpeg: install it (Debian: libjpeg-dev) and build again", path);
}

}  // namespace cairn::data
