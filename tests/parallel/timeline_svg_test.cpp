// The picture of a timeline: what is where, in which colour, and that it is well-formed.
#include "parallel/schedule/timeline_svg.h"

#include <gtest/gtest.h>

#include "base/error.h"
namespace cairn::parallel {
namespace {

int64_t occurrences(const std::string& text, const std::string& part) {
  int64_t found = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

std::string drawing_of(const ScheduleRequest& request) {
  const Schedule schedule = make_schedule(request);
  return draw_svg(timeline(schedule, even_costs(schedule, {})));
}

TEST(TimelineSvg, HasABoxForEachActionAndTheBubbleInItsTitle) {
  const std::string picture = drawing_of({.name = "1f1b", .ranks = 4, .micro_batches = 8});
  EXPECT_NE(picture.find(">1f1b: 4 ranks, 8 micro-batches, bubble 27.3 %, step/ideal 1.375<"), std::string::npos);
  EXPECT_EQ(occurrences(picture, "<title>"), 4 * 2 * 8);
  EXPECT_EQ(occurrences(picture, ">rank "), 4);
  EXPECT_EQ(occurrences(picture, "time, s"), 1);
  EXPECT_EQ(occurrences(picture, ">forward<"), 1);
  EXPECT_EQ(occurrences(picture, ">input gradient<"), 0) << "the legend has only what is in the picture";
  EXPECT_EQ(occurrences(picture, "lighter"), 0);
  EXPECT_EQ(occurrences(picture, "<svg "), occurrences(picture, "</svg>"));
  EXPECT_EQ(occurrences(picture, "<text"), occurrences(picture, "</text>"));
  EXPECT_EQ(occurrences(picture, "http"), 1) << "only the name of the format: nothing is fetched";
}

TEST(TimelineSvg, DrawsLaterStagesOfARankLighter) {
  const std::string picture = drawing_of({.name = "zbv", .ranks = 2, .micro_batches = 3});
  EXPECT_NE(picture.find("lighter: later stages of the rank"), std::string::npos);
  const auto colour_of = [&](const std::string& action) {
    const size_t at = picture.find("<title>" + action + "<");
    const size_t begin = picture.rfind("fill=\"#", at) + 6;
    return picture.substr(begin, 7);
  };
  EXPECT_EQ(colour_of("0F0"), colour_of("1F2"));
  EXPECT_EQ(colour_of("3F0"), colour_of("2F1"));
  EXPECT_LT(colour_of("0F0"), colour_of("3F0"));
  EXPECT_NE(colour_of("0I0"), colour_of("0W0"));
}

TEST(TimelineSvg, PutsBoxesWhereTheirTimesAre) {
  // 6 ms, measured from 100 s on: 1000 pixels of time, so the backward begins 4/6 of the way.
  Timeline measured{"a <b> & \"c\"\n", 1, {0}, {}};
  measured.ranks = {{{{ActionKind::forward, 0, 0}, 100, 100.001}, {{ActionKind::backward, 0, 0}, 100.004, 100.006}}};
  const std::string picture = draw_svg(measured, {.title = "", .width = 1080});
  EXPECT_NE(picture.find("<rect x=\"64.00\" y=\"68\" width=\"166.67\""), std::string::npos) << picture;
  EXPECT_NE(picture.find("<rect x=\"730.67\" y=\"68\" width=\"333.33\""), std::string::npos) << picture;
  EXPECT_NE(picture.find("time, ms"), std::string::npos);
  EXPECT_NE(picture.find("a &lt;b&gt; &amp; &quot;c&quot;?: 1 ranks"), std::string::npos);
  EXPECT_NE(draw_svg(measured, {.title = "measured", .width = 1080}).find(">measured: 1 ranks"), std::string::npos);
}

TEST(TimelineSvg, LeavesNumbersOutOfBoxesTooSmallForThem) {
  const auto numbers = [](int micro_batches) {
    return occurrences(drawing_of({.name = "gpipe", .ranks = 1, .micro_batches = micro_batches}), "text-anchor=\"middle\">7</text>");
  };
  EXPECT_EQ(numbers(8), 2);
  EXPECT_LE(numbers(400), 1);  // forwards have 2 pixels; what may be left is the time axis
}

TEST(TimelineSvg, RefusesMoreThanCanBeSeen) {
  try {
    drawing_of({.name = "gpipe", .ranks = 1, .micro_batches = 25001});
    FAIL() << "it was drawn";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "a picture of 50002 actions: at most 50000 are drawn; use fewer micro-batches or ranks");
  }
}

TEST(TimelineSvg, DrawsNothingWhereNothingWasDone) {
  const std::string picture = draw_svg({"empty", 1, {0}, {{}}});
  EXPECT_NE(picture.find("rank 0"), std::string::npos);
  EXPECT_EQ(occurrences(picture, "<title>"), 0);
  EXPECT_EQ(occurrences(picture, "nan"), 0);
}

}  // namespace
}  // namespace cairn::parallel
