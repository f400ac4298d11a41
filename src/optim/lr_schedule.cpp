// The learning rate at progress x of a run, with warm-up w, final share f, and d the part of the descent that is done:
//
//   x < w          highest * x / w                        linear warm-up
//   else           highest * (f + (1 - f) left(d))
//
//   linear  left(d) = 1 - d                  d = (x - w) / (1 - w)
//   cosine  left(d) = (1 + cos(pi d)) / 2    d = (x - w) / (1 - w)
//   wsd     left(d) = 1 - d or 1 - sqrt(d)   d = (x - b) / (1 - b) with b = max(w, 1 - decay_share); before b the rate stays at `highest`
#include "optim/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <span>

#include "base/did_you_mean.h"

namespace cairn::optim {
namespace {

// left(d): 1 is the highest rate, 0 the final one.
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
  if (restart_at > 0) {
    LrSchedule part = *this;
    part.restart_at = 0;
    part.warmup = progress <= restart_at ? warmup / restart_at : 0;
    if (progress > restart_at) part.highest *= restart_ratio;
    return part.learning_rate(progress <= restart_at ? progress / restart_at : (progress - restart_at) / (1 - restart_at));
  }
  if (progress < warmup) return highest * progress / warmup;
  const bool stable_first = shape == "wsd";
  const Shape* descent = stable_first ? find(kDecays, decay_shape) : find(kShapes, shape);
  if (descent == nullptr && stable_first) base::fail_unknown("decay shape", decay_shape, decay_shapes());
  if (descent == nullptr) base::fail_unknown("schedule", shape, schedule_names());
  if (shape == "constant") return highest;  // min_lr_ratio does not apply
  const double begin = stable_first ? std::max(warmup, 1 - decay_share) : warmup;
  if (stable_first && progress < begin) return highest;
  const double done = begin < 1 ? std::clamp((progress - begin) / (1 - begin), 0.0, 1.0) : stable_first ? 0.0 : 1.0;
  return highest * (min_lr_ratio + (1 - min_lr_ratio) * descent->left(done));
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
