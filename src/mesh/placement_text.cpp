// Placements as people and saved plans write them: "dp: split(0), tp: ragged(0, 0|1|0+1)".
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "mesh/cursor.h"
#include "mesh/placement.h"

namespace cairn::mesh {
namespace {

// ---- printing

std::string text_of(const std::vector<Interval>& part) {
  std::vector<std::string> pieces;
  for (const Interval& piece : part) pieces.push_back(fmt::format("{}:{}", piece.begin, piece.end));
  return pieces.empty() ? "-" : fmt::format("{}", fmt::join(pieces, "+"));
}

std::string text_of(const Replicate&) { return "replicate"; }

std::string text_of(const Split& split) {
  if (split.pieces.empty()) return fmt::format("split({})", split.dim);
  std::vector<std::string> parts;
  for (const std::vector<Interval>& part : split.pieces) parts.push_back(text_of(part));
  return fmt::format("split({}, {})", split.dim, fmt::join(parts, "|"));
}

std::string text_of(const Partial& partial) { return partial.reduce == Partial::Reduce::sum ? "partial(sum)" : "partial(max)"; }

std::string text_of(const Ragged& ragged) {
  std::vector<std::string> ids;
  for (const std::vector<int>& owners : ragged.owners) ids.push_back(fmt::format("{}", fmt::join(owners, "+")));
  std::string text = fmt::format("ragged({}, {}", ragged.dim, fmt::join(ids, "|"));
  if (!ragged.lengths.empty()) text += fmt::format("; lengths {}", fmt::join(ragged.lengths, ","));
  return text + (ragged.partial ? "; partial)" : ")");
}

// ---- parsing

std::vector<Interval> read_intervals(Cursor& cursor) {
  std::vector<Interval> part;
  if (cursor.accept("-")) return part;
  do {
    const int64_t begin = cursor.number();
    cursor.expect(":");
    part.push_back({begin, cursor.number()});
  } while (cursor.accept("+"));
  return part;
}

Split read_split(Cursor& cursor) {
  Split split;
  cursor.expect("(");
  split.dim = cursor.number();
  if (cursor.accept(",")) {
    do split.pieces.push_back(read_intervals(cursor));
    while (cursor.accept("|"));
  }
  cursor.expect(")");
  return split;
}

Partial read_partial(Cursor& cursor) {
  cursor.expect("(");
  Partial partial;
  if (cursor.accept("max"))
    partial.reduce = Partial::Reduce::max;
  else if (!cursor.accept("sum"))
    cursor.fail("sum or max");
  cursor.expect(")");
  return partial;
}

Ragged read_ragged(Cursor& cursor) {
  Ragged ragged;
  cursor.expect("(");
  ragged.dim = cursor.number();
  cursor.expect(",");
  do {
    std::vector<int>& owners = ragged.owners.emplace_back();
    do owners.push_back(static_cast<int>(cursor.number()));
    while (cursor.accept("+"));
  } while (cursor.accept("|"));
  while (cursor.accept(";")) {
    if (cursor.accept("partial")) {
      ragged.partial = true;
      continue;
    }
    cursor.expect("lengths");
    do ragged.lengths.push_back(cursor.number());
    while (cursor.accept(","));
  }
  cursor.expect(")");
  return ragged;
}

Placement::How read_how(Cursor& cursor) {
  if (cursor.accept("replicate")) return Replicate{};
  if (cursor.accept("split")) return read_split(cursor);
  if (cursor.accept("partial")) return read_partial(cursor);
  if (cursor.accept("ragged")) return read_ragged(cursor);
  cursor.fail("replicate, split, partial or ragged");
}

}  // namespace

std::string to_string(const Placement& placement) {
  std::string text;
  for (const Placement::OnAxis& on : placement.axes)
    text += fmt::format("{}{}: {}", text.empty() ? "" : ", ", on.axis, std::visit([](const auto& how) { return text_of(how); }, on.how));
  return text.empty() ? "replicated" : text;
}

Placement parse_placement(std::string_view text) {
  Placement placement;
  Cursor cursor("placement", text);
  if (!cursor.accept("replicated")) {
    do {
      const std::string axis(cursor.word());
      if (axis.empty()) cursor.fail("an axis, as in \"dp: split(0)\",");
      cursor.expect(":");
      placement.axes.push_back({axis, read_how(cursor)});
    } while (cursor.accept(","));
  }
  if (!cursor.at_end()) cursor.fail("the end");
  return placement;
}

}  // namespace cairn::mesh
