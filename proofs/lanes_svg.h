#pragma once
#include <string>
#include <vector>

#include "proofs/costed_model.h"

namespace cairn::study {

// Lanes of stretches over one time axis, as a picture that needs nothing from outside.
struct Lane {
  std::string label;
  std::string colour;  // "#5e96de"
  std::vector<TimeSpan> stretches;
};
struct LanesPicture {
  std::string title;
  double until_s = 0;  // how much of the time is shown
  std::vector<Lane> lanes;
};
std::string draw_lanes(const LanesPicture& picture);

}  // namespace cairn::study
