#include "parallel/schedule/timeline_svg.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>
#include <limits>

#include "base/check.h"

namespace cairn::parallel {
namespace {

constexpr int kLeft = 64, kRight = 16, kTop = 64, kRow = 34, kBox = 26, kBar = 4;
constexpr size_t kBoxesMax = 50'000;  // beyond these nothing can be seen, and few programs open the file
constexpr double kDigit = 6.5;        // pixels of a digit at size 11

struct Colour {
  int red, green, blue;
};

struct KindLook {
  Colour colour;
  const char* word;
};

// In the order of ActionKind.
constexpr std::array<KindLook, kActionKinds> kSpins = {{
    {{94, 150, 222}, "forward"},
    {{98, 176, 112}, "backward"},
    {{80, 184, 176}, "input gradient"},
    {{236, 174, 84}, "weight gradient"},
    {{176, 140, 214}, "recompute"},
    {{222, 112, 112}, "gather"},
    {{200, 96, 160}, "reduce"},
    {{140, 140, 140}, "offload"},
}};

// `light` of the way to white.
std::string fill(ActionKind kind, double light) {
  const Colour c = kSpins[static_cast<size_t>(kind)].colour;
  const auto mixed = [&](int part) { return static_cast<int>(std::lround(part + (255 - part) * light)); };
  return fmt::format("#{:02x}{:02x}{:02x}", mixed(c.red), mixed(c.green), mixed(c.blue));
}

std::string escaped(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    const bool control = static_cast<unsigned char>(c) < 0x20 || c == 0x7f;
    if (c == '<')
      safe += "&lt;";
    else if (c == '>')
      safe += "&gt;";
    else if (c == '&')
      safe += "&amp;";
    else if (c == '"')
      safe += "&quot;";
    else
      safe += control ? '?' : c;
  }
  return safe;
}

// A step of 1, 2 or 5 times a power of ten that cuts `span` into at most about twelve.
double tick_step(double span) {
  const double power = std::pow(10, std::floor(std::log10(span / 12)));
  for (const double times : {1.0, 2.0, 5.0})
    if (span / (power * times) <= 12) return power * times;
  return power * 10;
}

struct TimeUnit {
  double seconds;
  const char* name;
};

TimeUnit time_unit(double step_s) {
  if (step_s >= 1) return {1, "s"};
  if (step_s >= 1e-3) return {1e-3, "ms"};
  return {1e-6, "us"};
}

// How light the boxes of each stage are: the first stage of a rank not at all.
std::vector<double> lights(const Timeline& timeline) {
  std::vector<int> seen(timeline.ranks.size());
  std::vector<int> chunk;
  int chunks = 1;
  for (const int rank : timeline.rank_of_stage) {
    CAIRN_CHECK(rank >= 0 && rank < static_cast<int>(seen.size()), "a stage on rank {} of {}", rank, seen.size());
    chunk.push_back(seen[rank]++);
    chunks = std::max(chunks, seen[rank]);
  }
  std::vector<double> light;
  for (const int one : chunk) light.push_back(chunks > 1 ? 0.6 * one / (chunks - 1) : 0);
  return light;
}

class Drawing {
 public:
  Drawing(const Timeline& timeline, const DrawOptions& options)
      : timeline_(timeline), options_(options), figures_(timeline_stats(timeline)), lights_(lights(timeline)) {
    begin_s_ = std::numeric_limits<double>::infinity();
    for (const std::vector<TimedAction>& list : timeline.ranks)
      for (const TimedAction& timed : list) begin_s_ = std::min(begin_s_, timed.begin_s);
    width_ = std::max(options.width, 320);
    height_ = kTop + kRow * static_cast<int>(timeline.ranks.size()) + 40;
    per_second_ = figures_.step_s > 0 ? (width_ - kLeft - kRight) / figures_.step_s : 0;
  }

  std::string draw() {
    add("<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" "
        "font-size=\"11\" fill=\"#222\">\n<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
        width_, height_);
    add_title();
    add_legend();
    add_axis();
    for (size_t rank = 0; rank < timeline_.ranks.size(); ++rank) add_row(rank);
    return std::move(text_) + "</svg>\n";
  }

 private:
  template <typename... Args>
  void add(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(text_), format, std::forward<Args>(args)...);
  }

  void add_title() {
    add("<text x=\"{}\" y=\"22\" font-size=\"16\">{}: {} ranks, {} micro-batches, bubble {:.1f} %, step/ideal {:.5g}</text>\n", kLeft,
        escaped(options_.title.empty() ? timeline_.name : options_.title), timeline_.ranks.size(), timeline_.micro_batches,
        100 * figures_.bubble, figures_.step_to_ideal);
  }

  // Only what is in the picture.
  void add_legend() {
    std::array<bool, kActionKinds> used{};
    for (const std::vector<TimedAction>& list : timeline_.ranks)
      for (const TimedAction& timed : list) used[static_cast<size_t>(timed.action.kind)] = true;
    const bool several = std::any_of(lights_.begin(), lights_.end(), [](double light) { return light > 0; });
    int x = kLeft;
    for (size_t kind = 0; kind < kSpins.size(); ++kind) {
      if (!used[kind]) continue;
      add("<rect x=\"{}\" y=\"36\" width=\"14\" height=\"14\" fill=\"{}\"/>", x, fill(static_cast<ActionKind>(kind), 0));
      if (several)
        add("<rect x=\"{}\" y=\"36\" width=\"14\" height=\"14\" fill=\"{}\"/>", x + 14, fill(static_cast<ActionKind>(kind), 0.6));
      x += several ? 34 : 20;
      add("<text x=\"{}\" y=\"47\">{}</text>\n", x, kSpins[kind].word);
      x += 110;
    }
    if (several) add("<text x=\"{}\" y=\"47\">lighter: later stages of the rank</text>\n", x);
  }

  void add_axis() {
    if (figures_.step_s <= 0) return;
    const int bottom = kTop + kRow * static_cast<int>(timeline_.ranks.size());
    const TimeUnit unit = time_unit(figures_.step_s);
    const double step = tick_step(figures_.step_s / unit.seconds);
    for (int i = 0; i * step * unit.seconds <= figures_.step_s * (1 + 1e-9); ++i) {
      const double x = kLeft + i * step * unit.seconds * per_second_;
      add("<path d=\"M{0:.1f} {1}V{2}\" stroke=\"#ddd\"/><text x=\"{0:.1f}\" y=\"{3}\" text-anchor=\"middle\">{4:.4g}</text>\n", x,
          kTop - 4, bottom + 4, bottom + 18, i * step);
    }
    add("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">time, {}</text>\n", width_ - kRight, bottom + 34, unit.name);
  }

  void add_row(size_t rank) {
    const int y = kTop + kRow * static_cast<int>(rank) + (kRow - kBox) / 2;
    add("<text x=\"{}\" y=\"{}\" text-anchor=\"end\">rank {}</text>\n", kLeft - 8, y + kBox / 2 + 4, rank);
    add("<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"#f4f4f4\"/>\n", kLeft, y, width_ - kLeft - kRight, kBox);
    for (const TimedAction& timed : timeline_.ranks[rank]) {
      const double x = kLeft + (timed.begin_s - begin_s_) * per_second_;
      const double width = (timed.end_s - timed.begin_s) * per_second_;
      const int stage = timed.action.stage;
      const double light = stage >= 0 && stage < static_cast<int>(lights_.size()) ? lights_[stage] : 0;
      const bool box = computes(timed.action.kind);  // else a bar below the boxes: it runs beside them
      add("<rect x=\"{:.2f}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" fill=\"{}\" stroke=\"#fff\" "
          "stroke-width=\".6\"><title>{}</title></rect>",
          x, box ? y : y + kBox, box ? width : std::max(width, 1.0), box ? kBox : kBar, fill(timed.action.kind, light),
          to_string(timed.action));
      const std::string number = std::to_string(timed.action.micro_batch);
      if (box && width > kDigit * static_cast<double>(number.size()) + 2)
        add("<text x=\"{:.2f}\" y=\"{}\" text-anchor=\"middle\">{}</text>", x + width / 2, y + kBox / 2 + 4, number);
      text_ += '\n';
    }
  }

  const Timeline& timeline_;
  const DrawOptions& options_;
  TimelineStats figures_;
  std::vector<double> lights_;
  double begin_s_ = 0, per_second_ = 0;
  int width_ = 0, height_ = 0;
  std::string text_;
};

}  // namespace

std::string draw_svg(const Timeline& timeline, const DrawOptions& options) {
  size_t boxes = 0;
  for (const std::vector<TimedAction>& list : timeline.ranks) boxes += list.size();
  if (boxes > kBoxesMax)
    base::fail_input("a picture of {} actions: at most {} are drawn; use fewer micro-batches or ranks", boxes, kBoxesMax);
  return Drawing(timeline, options).draw();
}

}  // namespace cairn::parallel
