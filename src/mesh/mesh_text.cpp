// Meshes as people write them: "dp=2,pp=(tp=4|tp=2) on [0-11]".
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/check.h"
#include "mesh/cursor.h"
#include "mesh/mesh.h"

namespace cairn::mesh {
namespace {

constexpr int kRanksMax = 1 << 20;  // of one written mesh: a typing error must not fill the memory

int read_size(Cursor& cursor, std::string_view axis) {
  const std::string_view digits = cursor.word();
  int size = 0;
  const auto [end, status] = std::from_chars(digits.data(), digits.data() + digits.size(), size);
  if (status != std::errc() || end != digits.data() + digits.size() || size < 1 || size > kRanksMax)
    base::fail_input("mesh.{} = {}: must be a whole number of at least 1", axis, digits);
  return size;
}

Mesh read_axes(Cursor& cursor) {
  Mesh mesh;
  if (cursor.accept("one rank")) return mesh;
  do {
    const std::string name(cursor.word());
    if (!cursor.accept("=")) cursor.fail("axis=size, as in \"dp=4\",");
    if (!cursor.accept("(")) {
      mesh.axes.push_back({name, read_size(cursor, name)});
      continue;
    }
    do mesh.parts.push_back(read_axes(cursor));
    while (cursor.accept("|"));
    cursor.expect(")");
    mesh.axes.push_back({name, static_cast<int>(mesh.parts.size())});
    if (cursor.accept(",")) base::fail_input("mesh axis {} has parts: axes inside it are written in each of its parts", name);
    break;
  } while (cursor.accept(","));
  return mesh;
}

std::vector<int> read_ranks(Cursor& cursor) {
  std::vector<int> ranks;
  cursor.expect("[");
  do {
    const int64_t first = cursor.number(), last = cursor.accept("-") ? cursor.number() : first;
    if (first < 0 || last < first || last >= kRanksMax)
      base::fail_input("mesh ranks {}-{}: expected a range that counts up from 0", first, last);
    for (int64_t rank = first; rank <= last; ++rank) ranks.push_back(static_cast<int>(rank));
  } while (cursor.accept(",") && static_cast<int>(ranks.size()) < kRanksMax);
  cursor.expect("]");
  return ranks;
}

std::string ranks_text(const std::vector<int>& ranks) {
  std::string text;
  for (size_t i = 0; i < ranks.size();) {
    size_t end = i + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += text.empty() ? "" : ",";
    text += end == i + 1 ? fmt::format("{}", ranks[i]) : fmt::format("{}-{}", ranks[i], ranks[end - 1]);
    i = end;
  }
  return text;
}

std::string axes_text(const Mesh& mesh) {
  std::string text;
  for (size_t i = 0; i < mesh.axes.size(); ++i) {
    text += fmt::format("{}{}=", i ? "," : "", mesh.axes[i].name);
    if (mesh.parts.empty() || i + 1 < mesh.axes.size()) {
      text += fmt::format("{}", mesh.axes[i].size);
      continue;
    }
    std::vector<std::string> parts;
    for (const Mesh& part : mesh.parts) parts.push_back(axes_text(part));
    text += fmt::format("({})", fmt::join(parts, "|"));
  }
  return text.empty() ? "one rank" : text;
}

}  // namespace

Mesh parse_mesh(std::string_view text) {
  Cursor cursor("mesh", text);
  if (cursor.at_end()) return {};
  Mesh mesh = read_axes(cursor);
  if (cursor.accept("on")) mesh.ranks = read_ranks(cursor);
  if (!cursor.at_end()) cursor.fail("the end");
  check(mesh);
  return mesh;
}

std::string to_string(const Mesh& mesh) {
  return mesh.ranks.empty() ? axes_text(mesh) : fmt::format("{} on [{}]", axes_text(mesh), ranks_text(mesh.ranks));
}

}  // namespace cairn::mesh
