// One plot of a report: lines and dots over steps. The drawing is inline SVG. The labels are HTML, so that text keeps its size at any
// width.
#pragma once
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace cairn::train {

struct Plot {
  enum class Unit { plain, bytes };
  struct Line {
    std::string label;
    std::string style;           // a class of the page's style sheet
    std::vector<double> values;  // one for each step; a value that is not finite is a gap
  };
  struct Dots {
    std::string label;
    std::string style;
    std::vector<std::pair<int64_t, double>> points;  // step, value
  };

  std::string title;
  std::string note;            // beside the title: the unit (for bytes the unit is chosen)
  std::vector<int64_t> steps;  // in order
  std::vector<Line> lines;
  std::vector<Dots> dots;
  bool from_zero = false;
  bool tall = false;
  Unit unit = Unit::plain;
};

// The plot as a <figure>. A line has at most two points for each of 1000 columns, the lowest and the highest value, so that no spike is
// lost in a long run. The values for the page's tooltips are embedded as JSON.
std::string plot_html(const Plot& plot);

// Ticks at 1, 2 or 5 times a power of ten.
struct Ticks {
  double low = 0;   // the axis begins here
  double high = 1;  // and ends here
  double step = 1;
  std::vector<double> at;
};
// An axis that holds [low, high] and begins and ends at a tick; about `count` ticks.
Ticks ticks_around(double low, double high, int count);

// The mean over a window around each value. At the start, where a loss falls fast, the window is narrow and symmetric; at the end it only
// looks back. Values that are not finite are left out.
std::vector<double> smoothed(const std::vector<double>& values, int64_t half_window);

}  // namespace cairn::train
