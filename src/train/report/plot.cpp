#include "train/report/plot.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "train/report/html_text.h"

namespace cairn::train {
namespace {

constexpr int64_t kColumns = 1000;  // of the drawing, in its own units
constexpr double kHeight = 300;
constexpr int64_t kTooltipsMax = 400;

// Numbers beyond any plot count as infinite.
bool plottable(double value) { return std::isfinite(value) && std::abs(value) < 1e100; }

// A range of values that grows.
struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void add(double value) {
    if (plottable(value)) low = std::min(low, value), high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

// How the values of one axis are written: divided by a unit that is named beside the title (bytes) or behind each number (k, M, B).
struct Scale {
  double divisor = 1;
  std::string unit;
  std::string suffix;

  // With as many decimals as two ticks need to differ; very small and very large numbers as 5e-4.
  std::string tick(double value, double between) const {
    const double number = value / divisor, step = between / divisor;
    if (number == 0) return "0";
    if (std::abs(number) >= 1e5 || step < 1e-3) {
      const auto power = static_cast<int>(std::floor(std::log10(std::abs(number)) + 1e-9));
      return fmt::format("{:.3g}e{}", number / std::pow(10, power), power);
    }
    const int decimals = std::clamp(static_cast<int>(-std::floor(std::log10(step) + 1e-9)), 0, 6);
    return fmt::format("{:.{}f}{}", number, decimals, suffix);
  }

  // Four digits are enough for a tooltip.
  std::string exact(double value) const {
    if (!plottable(value)) return "–";
    return fmt::format("{:.4g}{}{}{}", value / divisor, suffix, unit.empty() ? "" : " ", unit);
  }
};

Scale scale_for(double largest, Plot::Unit unit) {
  static const std::vector<Scale> bytes{{0x1p40, "TiB", ""}, {0x1p30, "GiB", ""}, {0x1p20, "MiB", ""}, {0x1p10, "KiB", ""}, {1, "B", ""}};
  static const std::vector<Scale> plain{{1e9, "", "B"}, {1e6, "", "M"}, {1e3, "", "k"}, {1, "", ""}};
  const std::vector<Scale>& scales = unit == Plot::Unit::bytes ? bytes : plain;
  const double enough = unit == Plot::Unit::bytes ? 1 : 10;  // 9000 is read faster than 9k
  if (largest < 1e15) {
    for (const Scale& scale : scales) {
      if (largest >= enough * scale.divisor) return scale;
    }
  }
  return scales.back();
}

// Maps steps and values to the units of the drawing.
struct Frame {
  double first = 0, last = 1;
  Ticks y;
  double x_of(double step) const { return (step - first) / (last - first) * static_cast<double>(kColumns); }
  double y_of(double value) const { return kHeight - (value - y.low) / (y.high - y.low) * kHeight; }
};

Frame frame_of(const Plot& plot, const Scale& scale) {
  Range x, y;
  for (const int64_t step : plot.steps) x.add(static_cast<double>(step));
  for (const Plot::Line& line : plot.lines) {
    for (const double value : line.values) y.add(value);
  }
  for (const Plot::Dots& dots : plot.dots) {
    for (const auto& [step, value] : dots.points) {
      x.add(static_cast<double>(step));
      y.add(value);
    }
  }
  if (x.empty()) x.low = 0, x.high = 1;
  if (y.empty()) y.low = 0, y.high = 1;
  if (x.low == x.high) x.low -= 0.5, x.high += 0.5;
  if (plot.from_zero) y.low = std::min(y.low, 0.0), y.high = std::max(y.high, 0.0);
  Ticks ticks = ticks_around(y.low / scale.divisor, y.high / scale.divisor, plot.tall ? 6 : 4);
  ticks.low *= scale.divisor, ticks.high *= scale.divisor, ticks.step *= scale.divisor;
  for (double& at : ticks.at) at *= scale.divisor;
  return {.first = x.low, .last = x.high, .y = std::move(ticks)};
}

// SVG path data. Of each column it keeps the lowest and the highest value, in their order, at the column's first step. A gap starts a new
// subpath; a subpath of one point is a dot.
std::string path_of(const std::vector<int64_t>& steps, const std::vector<double>& values, const Frame& frame) {
  std::string path;
  bool drawing = false;
  for (size_t i = 0; i < values.size();) {
    if (!plottable(values[i])) {
      drawing = false;
      ++i;
      continue;
    }
    const double x = frame.x_of(static_cast<double>(steps[i]));
    const auto column = static_cast<int64_t>(x);
    double low = values[i], high = values[i], last = values[i];
    bool low_first = true;
    size_t next = i + 1;
    for (; next < values.size() && plottable(values[next]) && static_cast<int64_t>(frame.x_of(static_cast<double>(steps[next]))) == column;
         ++next) {
      last = values[next];
      if (last < low) low = last, low_first = false;
      if (last > high) high = last, low_first = true;
    }
    path += fmt::format("{}{:.1f} {:.1f}", drawing ? "L" : "M", x, frame.y_of(low_first ? low : high));
    const bool ends = next >= values.size() || !plottable(values[next]);
    if (high > low)
      path += fmt::format("V{:.1f}", frame.y_of(low_first ? high : low));
    else if (!drawing && ends)
      path += "h0";
    drawing = true;
    i = next;
  }
  return path;
}

std::string dots_path(const Plot::Dots& dots, const Frame& frame) {
  std::string path;
  for (const auto& [step, value] : dots.points) {
    if (plottable(value)) path += fmt::format("M{:.1f} {:.1f}h0", frame.x_of(static_cast<double>(step)), frame.y_of(value));
  }
  return path;
}

// The labelled steps of the axis: round numbers, and the first step if there is space for it.
std::vector<double> step_ticks(const Frame& frame) {
  const double step = std::max(1.0, ticks_around(frame.first, frame.last, 5).step);
  std::vector<double> at;
  const double round = std::ceil(frame.first / step) * step;
  if (frame.x_of(round) > 0.08 * static_cast<double>(kColumns) && frame.first == std::floor(frame.first)) at.push_back(frame.first);
  for (double tick = round; tick <= frame.last + 1e-9; tick += step) at.push_back(tick);
  return at;
}

std::string drawing(const Plot& plot, const Frame& frame) {
  std::string grid;
  for (const double tick : frame.y.at) grid += fmt::format("M0 {0:.1f}H{1}", frame.y_of(tick), kColumns);
  std::string svg =
      fmt::format("<svg viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" role=\"img\" aria-label=\"{}\"><path class=\"grid\" d=\"{}\"/>",
                  kColumns, kHeight, html_escaped(plot.title + " by step"), grid);
  for (const Plot::Line& line : plot.lines) {
    svg += fmt::format("<path class=\"line {}{}\" d=\"{}\"/>", line.style, plot.steps.size() == 1 ? " lone" : "",
                       path_of(plot.steps, line.values, frame));
  }
  for (const Plot::Dots& dots : plot.dots) {
    const std::string path = dots_path(dots, frame);
    svg += fmt::format("<path class=\"rim\" d=\"{0}\"/><path class=\"dot {1}\" d=\"{0}\"/>", path, dots.style);
  }
  return svg + "</svg>";
}

std::string labels(const Frame& frame, const Scale& scale) {
  std::string html;
  for (const double tick : frame.y.at) {
    html +=
        fmt::format("<span class=\"y\" style=\"top:{:.2f}%\">{}</span>", frame.y_of(tick) / kHeight * 100, scale.tick(tick, frame.y.step));
  }
  const std::vector<double> ticks = step_ticks(frame);
  const Scale steps = scale_for(frame.last, Plot::Unit::plain);
  const double between = ticks.size() > 1 ? ticks.back() - ticks[ticks.size() - 2] : 1;
  for (const double tick : ticks) {
    const double percent = frame.x_of(tick) / static_cast<double>(kColumns) * 100;
    html += fmt::format("<span class=\"x{}\" style=\"left:{:.2f}%\">{}</span>",
                        percent > 97  ? " last"
                        : percent < 2 ? " first"
                                      : "",
                        percent, tick < steps.divisor ? fmt::format("{:.0f}", tick) : steps.tick(tick, between));
  }
  return html;
}

// [[left in percent, step, value, ...], ...] for the script of the page: every n-th step, and the steps of the dots.
std::string tooltips(const Plot& plot, const Frame& frame, const Scale& scale) {
  const auto rows = static_cast<int64_t>(plot.steps.size());
  const int64_t stride = std::max<int64_t>(1, (rows + kTooltipsMax - 1) / kTooltipsMax);
  std::vector<std::string> entries;
  for (int64_t i = 0; i < rows; i += stride) {
    const auto row = static_cast<size_t>(i + stride >= rows ? rows - 1 : i);
    std::string entry =
        fmt::format("[{:.2f},{}", frame.x_of(static_cast<double>(plot.steps[row])) / static_cast<double>(kColumns) * 100, plot.steps[row]);
    for (const Plot::Line& line : plot.lines) entry += fmt::format(",\"{}\"", scale.exact(line.values[row]));
    for (const Plot::Dots& dots : plot.dots) {  // the last point seen at that step
      const auto after =
          std::partition_point(dots.points.begin(), dots.points.end(), [&](const auto& point) { return point.first <= plot.steps[row]; });
      entry += fmt::format(",\"{}\"", after == dots.points.begin() ? "–" : scale.exact(std::prev(after)->second));
    }
    entries.push_back(entry + "]");
  }
  return fmt::format("<script type=\"application/json\">[{}]</script>", fmt::join(entries, ","));
}

}  // namespace

Ticks ticks_around(double low, double high, int count) {
  if (!(high - low > 1e-12 * std::max(std::abs(low), std::abs(high)))) {
    const double room = low == 0 ? 1 : std::abs(low) * 0.1;  // a single value: widen the range
    low -= room;
    high += room;
  }
  const double rough = (high - low) / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double factor = rough / power;
  Ticks ticks;
  ticks.step = power * (factor <= 1 ? 1 : factor <= 2 ? 2 : factor <= 5 ? 5 : 10);
  const double first = std::floor(low / ticks.step + 1e-9), last = std::ceil(high / ticks.step - 1e-9);
  for (double i = first; i <= last; ++i) ticks.at.push_back(i * ticks.step);
  ticks.low = ticks.at.front();
  ticks.high = ticks.at.back();
  return ticks;
}

std::vector<double> smoothed(const std::vector<double>& values, int64_t half_window) {
  const auto size = static_cast<int64_t>(values.size());
  std::vector<double> sums(values.size() + 1), counts(values.size() + 1), out(values.size());
  for (size_t i = 0; i < values.size(); ++i) {
    const bool use = plottable(values[i]);
    sums[i + 1] = sums[i] + (use ? values[i] : 0);
    counts[i + 1] = counts[i] + (use ? 1 : 0);
  }
  for (int64_t i = 0; i < size; ++i) {
    const int64_t before = std::min(half_window, i), after = std::min({half_window, before, size - 1 - i});
    const auto begin = static_cast<size_t>(i - before), end = static_cast<size_t>(i + after + 1);
    const double count = counts[end] - counts[begin];
    const bool use = plottable(values[static_cast<size_t>(i)]) && count > 0;
    out[static_cast<size_t>(i)] = use ? (sums[end] - sums[begin]) / count : std::numeric_limits<double>::quiet_NaN();
  }
  return out;
}

std::string plot_html(const Plot& plot) {
  double largest = 0;
  for (const Plot::Line& line : plot.lines) {
    for (const double value : line.values) largest = plottable(value) ? std::max(largest, std::abs(value)) : largest;
  }
  const Scale scale = scale_for(largest, plot.unit);
  const Frame frame = frame_of(plot, scale);
  std::string key;
  const bool shown = plot.tall && plot.lines.size() + plot.dots.size() > 1;
  const auto entry = [&](const std::string& label, const std::string& style, const char* kind) {
    key += fmt::format("<span class=\"key {} {}\"{}>{}</span>", kind, style, shown ? "" : " hidden", html_escaped(label));
  };
  for (const Plot::Line& line : plot.lines) entry(line.label, line.style, "bar");
  for (const Plot::Dots& dots : plot.dots) entry(dots.label, dots.style, "spot");
  return fmt::format(
      "<figure class=\"plot{}\"><figcaption><h3>{}</h3><span class=\"note\">{}</span><span class=\"keys\">{}</span></figcaption>"
      "<div class=\"frame\"><div class=\"area\">{}{}</div></div>{}</figure>\n",
      plot.tall ? " tall" : "", html_escaped(plot.title), html_escaped(scale.unit.empty() ? plot.note : scale.unit), key,
      drawing(plot, frame), labels(frame, scale), tooltips(plot, frame, scale));
}

}  // namespace cairn::train
