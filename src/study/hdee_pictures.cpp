#include "study/hdee_pictures.h"

#include <algorithm>
#include <array>
#include <cmath>

#include <fmt/format.h>

#include "train/report/html_text.h"

namespace cairn::study {
namespace {

constexpr std::array<const char*, 6> kColours{"#5e96de", "#ecae54", "#74b27f", "#c2705a", "#8f79b8", "#8a8f98"};
const char* colour(size_t i) { return kColours[i % kColours.size()]; }

// Builds an SVG picture; text is escaped.
class Svg {
 public:
  Svg(double width, double height, const std::string& title) {
    text_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"{0:.0f}\" height=\"{1:.0f}\" fill=\"white\"/>\n",
        width, height);
    label(12, 22, title, "#222", 14);
  }
  void box(double x, double y, double width, double height, const std::string& fill) {
    text_ += fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"{}\"/>\n", x, y, width, height, fill);
  }
  void label(double x, double y, const std::string& what, const char* fill = "#333", int size = 12, const char* anchor = "start") {
    text_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" fill=\"{}\" font-size=\"{}\" text-anchor=\"{}\">{}</text>\n", x, y, fill, size,
                         anchor, train::html_escaped(what));
  }
  void rule(double x1, double y1, double x2, double y2) {
    text_ += fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"#ddd\"/>\n", x1, y1, x2, y2);
  }
  void line(const std::string& points, const char* stroke) {
    text_ += fmt::format("<polyline points=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.8\"/>\n", points, stroke);
  }
  std::string done() const { return text_ + "</svg>\n"; }

 private:
  std::string text_;
};

double perplexity(const ModeResult& mode, const std::string& domain) { return std::exp(mode.domains.at(domain).loss); }

void keys(Svg& svg, double x, double y, const std::vector<std::string>& names) {
  for (size_t i = 0; i < names.size(); ++i) {
    svg.box(x, y - 9, 10, 10, colour(i));
    svg.label(x + 14, y, names[i]);
    x += 26 + 7.5 * static_cast<double>(names[i].size());
  }
}

}  // namespace

std::string draw_perplexities(const HdeeResult& result) {
  constexpr double kLeft = 50, kTop = 60, kHeight = 220, kBar = 26;
  const size_t modes = result.modes.size(), domains = result.modes.front().domains.size();
  const double group = kBar * static_cast<double>(modes) + 34, width = kLeft + group * static_cast<double>(domains) + 20;
  double most = 1;
  for (const ModeResult& mode : result.modes)
    for (const auto& [domain, _] : mode.domains) most = std::max(most, perplexity(mode, domain));
  Svg svg(std::max(width, 420.0), kTop + kHeight + 50, "perplexity of held-out text (* the lowest)");
  std::vector<std::string> names;
  for (const ModeResult& mode : result.modes) names.push_back(mode.mode);
  keys(svg, kLeft, 44, names);
  for (int tick = 0; tick <= 4; ++tick) {
    const double y = kTop + kHeight * (1 - tick / 4.0);
    svg.rule(kLeft, y, width - 10, y);
    svg.label(kLeft - 6, y + 4, fmt::format("{:.3g}", most * tick / 4), "#777", 11, "end");
  }
  double x = kLeft + 14;
  for (const auto& [domain, _] : result.modes.front().domains) {
    size_t best = 0;
    for (size_t i = 0; i < modes; ++i)
      if (perplexity(result.modes[i], domain) < perplexity(result.modes[best], domain)) best = i;
    for (size_t i = 0; i < modes; ++i) {
      const double value = perplexity(result.modes[i], domain), height = kHeight * value / most, left = x + kBar * static_cast<double>(i);
      svg.box(left, kTop + kHeight - height, kBar - 3, height, colour(i));
      svg.label(left + kBar / 2 - 1, kTop + kHeight - height - 4, fmt::format("{:.3g}{}", value, i == best ? "*" : ""), "#555", 9,
                "middle");
    }
    svg.label(x, kTop + kHeight + 18, domain);
    x += group;
  }
  return svg.done();
}

std::string draw_posteriors(const HdeeResult& result, const ModeResult& mode) {
  constexpr double kLeft = 130, kTop = 62, kCell = 84, kRow = 30;
  const double width = kLeft + kCell * static_cast<double>(result.lines.size()) + 20;
  Svg svg(std::max(width, 420.0), kTop + kRow * static_cast<double>(mode.domains.size()) + 16,
          fmt::format("mean posterior, mode {}: domains by experts", mode.mode));
  for (size_t j = 0; j < result.lines.size(); ++j)
    svg.label(kLeft + kCell * (static_cast<double>(j) + 0.5), kTop - 10, result.lines[j], "#333", 12, "middle");
  double y = kTop;
  for (const auto& [domain, one] : mode.domains) {
    svg.label(kLeft - 10, y + 20, domain, "#333", 12, "end");
    for (size_t j = 0; j < result.lines.size(); ++j) {
      const double weight = one.posterior[j];
      const auto shade = [&](int light, int dark) { return static_cast<int>(std::lround(light + (dark - light) * weight)); };
      svg.box(kLeft + kCell * static_cast<double>(j), y, kCell - 2, kRow - 2,
              fmt::format("#{:02x}{:02x}{:02x}", shade(240, 47), shade(243, 93), shade(247, 138)));
      svg.label(kLeft + kCell * (static_cast<double>(j) + 0.5), y + 19, fmt::format("{:.3f}", weight), weight > 0.5 ? "#fff" : "#333", 12,
                "middle");
    }
    y += kRow;
  }
  return svg.done();
}

std::string draw_positions(const HdeeResult& result, const ModeResult& mode) {
  constexpr double kLeft = 46, kTop = 74, kWidth = 260, kHeight = 130, kGap = 40;
  constexpr size_t kAcross = 3;
  const size_t panels = mode.domains.size(), down = (panels + kAcross - 1) / kAcross;
  Svg svg(kLeft + (kWidth + kGap) * static_cast<double>(std::min(panels, kAcross)), kTop + (kHeight + 60) * static_cast<double>(down),
          fmt::format("posterior over the position in a sequence, mode {}", mode.mode));
  keys(svg, kLeft, 44, result.lines);
  size_t panel = 0;
  for (const auto& [domain, one] : mode.domains) {
    const double x = kLeft + (kWidth + kGap) * static_cast<double>(panel % kAcross),
                 y = kTop + (kHeight + 60) * static_cast<double>(panel / kAcross);
    ++panel;
    svg.label(x, y - 8, domain);
    for (const double tick : {0.0, 0.5, 1.0}) {
      svg.rule(x, y + kHeight * (1 - tick), x + kWidth, y + kHeight * (1 - tick));
      svg.label(x - 5, y + kHeight * (1 - tick) + 4, fmt::format("{:g}", tick), "#777", 10, "end");
    }
    const double last = std::max<double>(1, static_cast<double>(one.by_position.size()) - 1);
    for (size_t j = 0; j < result.lines.size(); ++j) {
      std::string points;
      for (size_t t = 0; t < one.by_position.size(); ++t)
        points += fmt::format("{:.1f},{:.1f} ", x + kWidth * static_cast<double>(t) / last, y + kHeight * (1 - one.by_position[t][j]));
      svg.line(points, colour(j));
    }
    svg.label(x, y + kHeight + 16, "0", "#777", 10);
    svg.label(x + kWidth, y + kHeight + 16, fmt::format("{:.0f} tokens", last), "#777", 10, "end");
  }
  return svg.done();
}

}  // namespace cairn::study
