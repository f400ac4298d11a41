#include "study/curves_svg.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <limits>

#include <fmt/format.h>

#include "base/files.h"

namespace cairn::study {
namespace {

constexpr double kLeft = 74, kTop = 40, kWidth = 560, kHeight = 300;

struct Axis {
  bool logarithmic = false;
  double low = std::numeric_limits<double>::infinity(), high = -std::numeric_limits<double>::infinity();

  double of(double x) const { return logarithmic ? std::log10(x) : x; }
  bool shows(double x) const { return std::isfinite(x) && (!logarithmic || x > 0); }
  void hold(double x) { low = std::min(low, of(x)), high = std::max(high, of(x)); }
  double share(double x) const { return high > low ? (of(x) - low) / (high - low) : 0.5; }
  // Whole powers of ten, or four even parts.
  std::vector<double> ticks() const {
    std::vector<double> at;
    if (logarithmic) {
      const double every = std::max(1.0, std::ceil((high - low) / 8));
      for (double power = std::ceil(low); power <= high + 1e-9; power += every) at.push_back(std::pow(10, power));
    } else {
      for (int i = 0; i <= 4; ++i) at.push_back(low + (high - low) * i / 4);
    }
    return at;
  }
};

}  // namespace

std::string curve_colour(size_t n) {
  static const std::vector<std::string> colours{"#5e96de", "#d9734e", "#5aa469", "#9a6fc4", "#c2a83e", "#6b7280", "#c75b8f", "#3f9ea0"};
  return colours[n % colours.size()];
}

std::string draw_curves(const CurvesPicture& picture) {
  Axis x{picture.logarithmic_across}, y{picture.logarithmic_up};
  for (const Curve& curve : picture.curves)
    for (const auto& [across, up] : curve.points)
      if (x.shows(across) && y.shows(up)) x.hold(across), y.hold(up);
  const double bottom = kTop + kHeight, height = bottom + 60 + 18.0 * static_cast<double>(picture.curves.size());
  const auto left_of = [&](double value) { return kLeft + kWidth * x.share(value); };
  const auto top_of = [&](double value) { return bottom - kHeight * y.share(value); };
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {:.0f} {:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n<text x=\"{:.0f}\" y=\"22\" font-size=\"15\">{}</text>\n",
      kLeft + kWidth + 20, height, kLeft, picture.title);
  for (const double tick : y.ticks())
    svg += fmt::format(
        "<line x1=\"{0:.1f}\" x2=\"{1:.1f}\" y1=\"{2:.1f}\" y2=\"{2:.1f}\" stroke=\"#e2e5ea\"/><text x=\"{3:.1f}\" y=\"{4:.1f}\" "
        "text-anchor=\"end\">{5:.3g}</text>\n",
        kLeft, kLeft + kWidth, top_of(tick), kLeft - 6, top_of(tick) + 4, tick);
  for (const double tick : x.ticks())
    svg += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"middle\">{:.3g}</text>\n", left_of(tick), bottom + 16, tick);
  svg += fmt::format("<text x=\"{:.0f}\" y=\"{:.0f}\">{}, over {}</text>\n", kLeft, bottom + 36, picture.up, picture.across);
  for (size_t i = 0; i < picture.curves.size(); ++i) {
    const Curve& curve = picture.curves[i];
    std::string path;
    // About one point for each pixel: more cannot be seen.
    const size_t every = std::max<size_t>(1, curve.points.size() / 600);
    for (size_t p = 0; p < curve.points.size(); p += every) {
      const auto& [across, up] = curve.points[p];
      if (x.shows(across) && y.shows(up)) path += fmt::format("{}{:.1f} {:.1f}", path.empty() ? "M" : " L", left_of(across), top_of(up));
    }
    svg += fmt::format("<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"/>\n", path, curve.colour);
    const double line = bottom + 58 + 18.0 * static_cast<double>(i);
    svg +=
        fmt::format("<rect x=\"{:.0f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" fill=\"{}\"/><text x=\"{:.0f}\" y=\"{:.1f}\">{}</text>\n",
                    kLeft, line - 11, curve.colour, kLeft + 18, line, curve.label);
  }
  return svg + "</svg>\n";
}

void write_curves(const std::string& folder, const std::string& name, const CurvesPicture& picture) {
  if (!folder.empty()) base::write_atomically(std::filesystem::path(folder) / (name + ".svg"), draw_curves(picture));
}

}  // namespace cairn::study
