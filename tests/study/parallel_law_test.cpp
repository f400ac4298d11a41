#include "study/parallel_law.h"

#include <cmath>

#include "base/error_of.h"

namespace cairn::study {
namespace {

// The published losses (ParScale, arXiv:2505.10475) by streams 1, 2, 4, 8 and six sizes; the sizes grow a little with the streams.
constexpr double kSizes[4][6] = {{535813376, 693753856, 1088376320, 1571472384, 2774773760, 4353203200},
                                 {538195842, 696738818, 1092762882, 1577522690, 2784937986, 4368529922},
                                 {540577412, 699722756, 1097148164, 1583571460, 2795100164, 4383854084},
                                 {545340552, 705690632, 1105918728, 1595669000, 2815424520, 4414502408}};
constexpr double kCode[4][6] = {{1.1722, 1.1496, 1.1131, 1.0817, 1.0451, 1.0213},
                                {1.1507, 1.1262, 1.0940, 1.0623, 1.0244, 1.0025},
                                {1.1354, 1.1124, 1.0808, 1.0490, 1.0126, 0.9906},
                                {1.1231, 1.0997, 1.0688, 1.0383, 1.0016, 0.9794}};
constexpr double kPile[4][6] = {{2.1113, 2.0671, 2.0027, 1.9539, 1.8876, 1.8451},
                                {2.0772, 2.0363, 1.9730, 1.9266, 1.8610, 1.8137},
                                {2.0544, 2.0128, 1.9509, 1.9040, 1.8394, 1.7938},
                                {2.0364, 1.9933, 1.9318, 1.8856, 1.8218, 1.7772}};

std::vector<LawPoint> points_of(const double (&losses)[4][6]) {
  std::vector<LawPoint> points;
  for (size_t p = 0; p < 4; ++p)
    for (size_t n = 0; n < 6; ++n) points.push_back({kSizes[p][n], std::pow(2.0, static_cast<double>(p)), losses[p][n]});
  return points;
}

void expect_law(const LawFit& fit, const ParallelLaw& published, double r_squared) {
  const auto near = [](double found, double expected, const char* what) { EXPECT_NEAR(found / expected, 1, 0.005) << what; };
  near(fit.law.e, published.e, "E");
  near(fit.law.a, published.a, "A");
  near(fit.law.k, published.k, "k");
  near(fit.law.alpha, published.alpha, "alpha");
  EXPECT_NEAR(fit.r_squared, r_squared, 5.1e-5);
}

TEST(ParallelLaw, ReturnsThePublishedConstants) {
  expect_law(fit_parallel_law(points_of(kCode)), {.e = 0.6912, .a = 1.131e7, .k = 0.3935, .alpha = 0.1894}, 0.9978);
  expect_law(fit_parallel_law(points_of(kPile)), {.e = 1.2888, .a = 1.974e8, .k = 0.3345, .alpha = 0.1963}, 0.9987);
}

TEST(ParallelLaw, ReturnsTheLawThatMadeThePoints) {
  const ParallelLaw law{.e = 1.5, .a = 3e7, .k = 0.6, .alpha = 0.3};
  std::vector<LawPoint> points;
  for (const double n : {1e6, 1e7, 1e8, 1e9})
    for (const double p : {1.0, 3.0, 5.0}) points.push_back({n, p, law.loss(n, p)});
  points.push_back({1e8, 4, 2 * law.loss(1e8, 4)});  // one that is far off moves a Huber fit little
  const LawFit fit = fit_parallel_law(points);
  EXPECT_NEAR(fit.law.e, law.e, 0.01);
  EXPECT_NEAR(fit.law.k, law.k, 0.01);
  EXPECT_NEAR(fit.law.alpha, law.alpha, 0.003);
}

TEST(ParallelLaw, RefusesWhatDoesNotDetermineIt) {
  std::vector<LawPoint> points = points_of(kCode);
  EXPECT_NE(base::message_of([&] { fit_parallel_law(std::span(points).first(6)); }).find("at least 8 points"), std::string::npos);
  for (LawPoint& p : points) p.streams = 2;
  EXPECT_NE(base::message_of([&] { fit_parallel_law(points); }).find("k is not identifiable"), std::string::npos);
  points[3].loss = -1;
  EXPECT_NE(base::message_of([&] { fit_parallel_law(points); }).find("all must be positive"), std::string::npos);
}

TEST(ParallelLaw, ReadsColumnsByName) {
  const std::vector<LawPoint> points = parse_law_points("# losses\nP,loss,N\n1, 2.5, 1e6\r\n\n4,2.25,1000000\n", "x.csv");
  ASSERT_EQ(points.size(), 2u);
  EXPECT_EQ(points[1].streams, 4);
  EXPECT_EQ(points[1].loss, 2.25);
  EXPECT_EQ(points[0].parameters, 1e6);
  EXPECT_NE(base::message_of([] { parse_law_points("P,loss\n1,2\n", "x.csv"); }).find("no column is named parameters or N"),
            std::string::npos);
  EXPECT_NE(base::message_of([] { parse_law_points("N,P,loss\n1,2,much\n", "x.csv"); }).find("line 2: \"much\" is no number"),
            std::string::npos);
  EXPECT_NE(base::message_of([] { parse_law_points("1,2,3\n", "x.csv"); }).find("must name the columns"), std::string::npos);
}

}  // namespace
}  // namespace cairn::study
