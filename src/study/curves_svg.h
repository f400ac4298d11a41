#pragma once
#include <string>
#include <utility>
#include <vector>

namespace cairn::study {

// Lines over axes of which each is even or logarithmic, as a picture that needs nothing from outside.
struct Curve {
  std::string label;
  std::string colour;  // "#5e96de"
  std::vector<std::pair<double, double>> points;
};
struct CurvesPicture {
  std::string title = "", across = "", up = "";
  bool logarithmic_across = false, logarithmic_up = false;
  std::vector<Curve> curves = {};
};
std::string draw_curves(const CurvesPicture& picture);
// As NAME.svg in a folder; empty: nothing.
void write_curves(const std::string& folder, const std::string& name, const CurvesPicture& picture);

// The colour of the nth curve.
std::string curve_colour(size_t n);

}  // namespace cairn::study
