// Stands in for png.cpp where Cairn is built without libpng.
#include "base/check.h"
#include "data/images/picture.h"

namespace cairn::data {

bool has_png() { return false; }

Picture decode_png(std::span<const std::byte>, int64_t, const std::string& path) {
  base::fail_input("{}: a PNG file, and Cairn was built without libpng: install it (Debian: libpng-dev) and build again", path);
}

}  // namespace cairn::data
