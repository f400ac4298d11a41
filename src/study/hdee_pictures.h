// Pictures of an HDEE study, as self-contained SVG.
#pragma once
#include <string>

#include "study/hdee.h"

namespace cairn::study {

// Perplexity of each domain, a bar for each mode; a mark on the lowest.
std::string draw_perplexities(const HdeeResult& result);

// Domains by experts: the mean posterior of one mode, darker is higher.
std::string draw_posteriors(const HdeeResult& result, const ModeResult& mode);

// The posterior over the position in a sequence, a panel for each domain, a line for each expert.
std::string draw_positions(const HdeeResult& result, const ModeResult& mode);

}  // namespace cairn::study
