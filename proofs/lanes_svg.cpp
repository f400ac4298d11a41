#include "proofs/lanes_svg.h"

#include <algorithm>

#include <fmt/format.h>

namespace cairn::study {

std::string draw_lanes(const LanesPicture& picture) {
  constexpr double kLeft = 190, kWidth = 1000, kTop = 44, kRow = 34, kBox = 24;
  const double height = kTop + kRow * static_cast<double>(picture.lanes.size()) + 34;
  const auto x = [&](double seconds) { return kLeft + kWidth * std::min(1.0, seconds / picture.until_s); };
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"{0}\" height=\"{1}\" fill=\"white\"/>\n<text x=\"12\" y=\"24\" font-size=\"14\">{2}</text>\n",
      kLeft + kWidth + 16, height, picture.title);
  for (size_t i = 0; i < picture.lanes.size(); ++i) {
    const Lane& lane = picture.lanes[i];
    const double y = kTop + kRow * static_cast<double>(i);
    svg += fmt::format("<text x=\"12\" y=\"{:.1f}\">{}</text>\n", y + kBox - 7, lane.label);
    for (const TimeSpan& one : lane.stretches) {
      if (one.begin_s >= picture.until_s) continue;
      const double width = std::max(0.5, x(one.end_s) - x(one.begin_s));
      svg += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{}\" fill=\"{}\" stroke=\"white\"/>\n", x(one.begin_s),
                         y, width, kBox, lane.colour);
      if (width > 7.0 * static_cast<double>(one.what.size()))
        svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" font-size=\"10\" fill=\"white\">{}</text>\n", x(one.begin_s) + 3, y + 16,
                           one.what);
    }
  }
  const double axis = kTop + kRow * static_cast<double>(picture.lanes.size());
  for (int tick = 0; tick <= 10; ++tick) {
    const double at = picture.until_s * tick / 10;
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" stroke=\"#ddd\"/>\n<text x=\"{0:.1f}\" y=\"{3:.1f}\" "
        "fill=\"#555\">{4:.1f} ms</text>\n",
        x(at), kTop - 6, axis, axis + 18, at * 1e3);
  }
  return svg + "</svg>\n";
}

}  // namespace cairn::study
