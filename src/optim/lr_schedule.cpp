#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "base/did_you_mean.h"

namespace cairn::optim {
namespace {

// How much of the way from the final value to the highest is left when `done` of the descent is.
struct Shape {
  const char* name;
  double (*left)(double done);
};

double linear_left(double done) { return 1 - done; }

constexpr Shape kShapes[] = {{"constant", [](double) { return 1.0; }},
                             {"linear", linear_left},
                             {"cosine", [](double done) { return 0.5 * (1 + std::cos(std::numbers::pi * done)); }}};
constexpr Shape kDecays[] = {{"linear", linear_left}, {"1-sqrt", [](double done) { return 1 - std::sqrt(done); }}};

const Shape* find(std::span<const Shape> shapes, const std::string& name) {
  const auto found = std::find_if(shapes.begin(), shapes.end(), [&](const Shape& shape) { return name == shape.name; });
  return found == shapes.end() ? nullptr : &*found;
}

}  // namespace

double LrSchedule::learning_rate(double progress) const {
  if (progress < warmup) return highest * progress / warmup;
  const bool stable_first = shape == "wsd";
  const Shape* descent = stable_first ? find(kDecays, decay_shape) : find(kShapes, shape);
  if (descent == nullptr && stable_first) base::fail_unknown("decay shape", decay_shape, decay_shapes());
  if (descent == nullptr) base::fail_unknown("schedule", shape, schedule_names());
  if (shape == "constant") return highest;  // not even the final share
  const double begin = stable_first ? std::max(warmup, 1 - decay_share) : warmup;
  if (stable_first && progress < begin) return highest;
  const double done = begin < 1 ? std::clamp((progress - begin) / (1 - begin), 0.0, 1.0) : stable_first ? 0.0 : 1.0;
  return highest * (final_share + (1 - final_share) * descent->left(done));
}

std::vector<std::string> schedule_names() {
  std::vector<std::string> names;
  for (const Shape& shape : kShapes) names.emplace_back(shape.name);
  names.emplace_back("wsd");
  return names;
}

std::vector<std::string> decay_shapes() {
  std::vector<std::string> names;
  for (const Shape& shape : kDecays) names.emplace_back(shape.name);
  return names;
}

}  // namespace cairn::optim
