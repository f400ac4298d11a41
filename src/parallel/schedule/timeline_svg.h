#pragma once
#include <string>

#include "parallel/schedule/timeline.h"

namespace cairn::parallel {

struct DrawOptions {
  std::string title;  // before the numbers; empty: the timeline's name
  int width = 1200;   // pixels
};

// The timeline as a picture: a row for each rank, a box for each action in the colour of its kind (lighter for later stages of the
// rank) with the micro-batch in it, a time axis, a legend, and the bubble in the title. Self-contained SVG. Throws bad_input for timelines
// with too many actions to see.
std::string draw_svg(const Timeline& timeline, const DrawOptions& options = {});

}  // namespace cairn::parallel
