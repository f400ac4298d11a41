// One plot of a report: lines and dots over steps. The drawing is inline SVG, the labels are HTML, so that type keeps its size at any
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
    std::vector<double> values;  // one for each step; what is not finite is a gap
  };
  struct Dots {
    std::string label;
    std::string style;
    std::vector<std::pair<int64_t, double>> points;  // step, value
  };

  std::string title;
  std::string note;            // beside the title: what a reader should know (a unit in bytes names itself)
  std::vector<int64_t> steps;  // in order
  std::vector<Line> lines;
  std::vector<Dots> dots;
  bool from_zero = false;
  bool tall = false;
  Unit unit = Unit::plain;
};

// The plot as a <figure>. However many steps there are, the lines have at most two points for each of 1000 columns (the lowest and the
// highest there), so that no spike is lost. A table of values for the page's tooltips is put beside it as JSON.
std::string plot_html(const Plot& plot);

// Ticks at 1, 2 or 5 times a power of ten.
struct Ticks {
  double low = 0;   // the axis begins here
  double high = 1;  // and ends here
  double step = 1;
  std::vector<double> at;
};
// An axis that holds [low, high] and begins and ends at a tick; about `count` of them.
Ticks ticks_around(double low, double high, int count);

// The mean over a window about each value. At the start, where a loss falls fast, it is as narrow on both sides; at the end it looks back.
// Values that are not finite are left out.
std::vector<double> smoothed(const std::vector<double>& values, int64_t half_window);

}  // namespace cairn::train
