// Bilinear saddles spread over devices, the plain ways to solve them, and the books of each.
#include "proofs/masha_problems.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <mutex>
#include <utility>

#include "base/clock.h"
#include "base/random.h"
#include "comm/group.h"
#include "comm/local/local.h"
#include "comm/sparsify.h"
#include "kernels/aten.h"
#include "kernels/fill_normal.h"

namespace cairn::study {
namespace {

using comm::Purpose;
using comm::Reduce;

constexpr double kOwnShare = 0.3;

at::Tensor normals(const base::Random& random, std::vector<int64_t> shape, double deviation) {
  at::Tensor x = at::empty(shape);
  kernels::fill_normal(x.view({-1}), random, 0, deviation);
  return x;
}

class DenseSaddle final : public sync::VariationalProblem {
 public:
  DenseSaddle(const Saddle& saddle, int64_t device) : side_(saddle.side), regular_(saddle.regular) {
    const base::Random random = base::Random(saddle.seed).for_purpose("saddle");
    const base::Random own = random.for_index(static_cast<uint64_t>(device));
    const double deviation = 1 / std::sqrt(static_cast<double>(side_));
    matrix_ = normals(random.for_name("A"), {side_, side_}, deviation) + normals(own.for_name("E"), {side_, side_}, kOwnShare * deviation);
    matrix_ = matrix_.to(at::kDouble);
    transposed_ = matrix_.t().contiguous();
    a_ = normals(own.for_name("a"), {side_}, 1).to(at::kDouble), b_ = normals(own.for_name("b"), {side_}, 1).to(at::kDouble);
  }
  int64_t elements() const override { return 2 * side_; }
  std::vector<sync::Player> players() const override { return {{"x", 0, side_}, {"y", side_, 2 * side_, true}}; }
  bool stochastic() const override { return false; }
  void gradients(const at::Tensor& point, const sync::BatchKey&, const at::Tensor& into) override {
    const at::Tensor x = point.slice(0, 0, side_), y = point.slice(0, side_);
    into.slice(0, 0, side_).copy_(at::matmul(matrix_, y) + a_ + x * regular_);
    into.slice(0, side_).copy_(at::matmul(transposed_, x) + b_ - y * regular_);
  }

 private:
  int64_t side_;
  double regular_;
  at::Tensor matrix_, transposed_, a_, b_;
};

// Rows of a few elements each, in random columns.
struct Rows {
  int64_t per_row = 0;
  std::vector<int32_t> column;
  std::vector<float> value;
  Rows(const base::Random& random, int64_t side, int64_t elements, double deviation) : per_row(elements) {
    column.resize(static_cast<size_t>(side * elements)), value.resize(column.size());
    random.for_name("values").fill_normal(value);
    const base::Random columns = random.for_name("columns");
    for (size_t i = 0; i < column.size(); ++i) {
      value[i] *= static_cast<float>(deviation);
      column[i] = static_cast<int32_t>(columns.below(i, static_cast<uint64_t>(side)));
    }
  }
};

class SparseSaddle final : public sync::VariationalProblem {
 public:
  SparseSaddle(const Saddle& saddle, int64_t device) : side_(saddle.side), regular_(static_cast<float>(saddle.regular)) {
    const base::Random random = base::Random(saddle.seed).for_purpose("saddle");
    const base::Random own = random.for_index(static_cast<uint64_t>(device));
    rows_.emplace_back(random.for_name("A"), side_, saddle.per_row, 1 / std::sqrt(static_cast<double>(saddle.per_row)));
    rows_.emplace_back(own.for_name("E"), side_, saddle.per_row_own, kOwnShare / std::sqrt(static_cast<double>(saddle.per_row_own)));
    a_ = normals(own.for_name("a"), {side_}, 1), b_ = normals(own.for_name("b"), {side_}, 1);
  }
  int64_t elements() const override { return 2 * side_; }
  std::vector<sync::Player> players() const override { return {{"x", 0, side_}, {"y", side_, 2 * side_, true}}; }
  bool stochastic() const override { return false; }
  void gradients(const at::Tensor& point, const sync::BatchKey&, const at::Tensor& into) override {
    const float* x = point.const_data_ptr<float>();
    const float* y = x + side_;
    float* dx = into.mutable_data_ptr<float>();
    float* dy = dx + side_;
    const float* a = a_.const_data_ptr<float>();
    const float* b = b_.const_data_ptr<float>();
    for (int64_t i = 0; i < side_; ++i) dx[i] = a[i] + regular_ * x[i], dy[i] = b[i] - regular_ * y[i];
    for (const Rows& rows : rows_)
      for (int64_t i = 0; i < side_; ++i) {
        float sum = 0;
        for (int64_t k = i * rows.per_row; k < (i + 1) * rows.per_row; ++k) {
          const int32_t j = rows.column[static_cast<size_t>(k)];
          sum += rows.value[static_cast<size_t>(k)] * y[j];
          dy[j] += rows.value[static_cast<size_t>(k)] * x[i];
        }
        dx[i] += sum;
      }
  }

 private:
  int64_t side_;
  float regular_;
  std::vector<Rows> rows_;
  at::Tensor a_, b_;
};

// Evaluates F_m and brings the mean to all, whole.
at::Tensor mean_value(comm::Group& peers, sync::VariationalProblem& problem, const at::Tensor& point) {
  const at::Tensor value = sync::value_at(problem, point, {}).to(at::kFloat);
  peers.all_reduce(value, Reduce::sum, {Purpose::state, "F"}).wait_host();
  return value.to(point.scalar_type()).div_(static_cast<double>(peers.size()));
}

// The same, each device letting random places through.
at::Tensor thinned_value(comm::Group& peers, sync::VariationalProblem& problem, const at::Tensor& point, sync::MashaExchange& exchange,
                         int64_t iteration) {
  const at::Tensor value = sync::value_at(problem, point, {}).to(at::kFloat), mean = at::empty_like(value);
  exchange.exchange(iteration, value, std::vector<bool>(static_cast<size_t>(peers.size()), true), mean);
  return mean.to(point.scalar_type());
}

}  // namespace

std::unique_ptr<sync::VariationalProblem> make_saddle(const Saddle& saddle, int64_t device) {
  if (saddle.per_row == 0) return std::make_unique<DenseSaddle>(saddle, device);
  return std::make_unique<SparseSaddle>(saddle, device);
}

at::Tensor start_of(const Saddle& saddle) {
  return at::zeros({2 * saddle.side}, at::TensorOptions().dtype(saddle.per_row == 0 ? at::kDouble : at::kFloat));
}

double lipschitz(const Saddle& saddle, int devices) {
  double largest = 0;
  for (int device = 0; device < devices; ++device) {
    const std::unique_ptr<sync::VariationalProblem> problem = make_saddle(saddle, device);
    const at::Tensor zero = sync::value_at(*problem, start_of(saddle), {});
    at::Tensor direction =
        normals(base::Random(saddle.seed).for_purpose("power iteration"), {problem->elements()}, 1).to(zero.scalar_type());
    double norm = 0;
    for (int i = 0; i < 40; ++i) {
      direction = direction / direction.norm();
      direction = sync::value_at(*problem, direction, {}) - zero;
      norm = direction.norm().item<double>();
    }
    largest = std::max(largest, norm);
  }
  return largest;
}

double masha_step(double factor, double refresh, double lipschitz_constant, double up_density, int devices, double down_density) {
  return factor * std::sqrt(refresh) * std::sqrt(down_density) / (lipschitz_constant * std::sqrt(1 / up_density / devices + 1));
}

std::function<std::function<double()>(comm::Group&, sync::VariationalProblem&, at::Tensor)> extragradient(double step) {
  return [=](comm::Group& peers, sync::VariationalProblem& problem, const at::Tensor& point) {
    return [=, &peers, &problem] {
      const at::Tensor here = mean_value(peers, problem, point);
      point.sub_(mean_value(peers, problem, point - here * step) * step);
      return here.norm().item<double>();
    };
  };
}

std::function<std::function<double()>(comm::Group&, sync::VariationalProblem&, at::Tensor)> naive_extragradient(double step, double density,
                                                                                                                uint64_t seed) {
  return [=](comm::Group& peers, sync::VariationalProblem& problem, const at::Tensor& point) {
    const std::shared_ptr<sync::MashaExchange> exchange =
        sync::make_random_exchange({.kind = "randk", .density = density}, {}, peers, problem.elements(), base::Random(seed));
    return [=, &peers, &problem, iteration = int64_t{0}]() mutable {
      const at::Tensor ahead = point - thinned_value(peers, problem, point, *exchange, 2 * iteration) * step;
      point.sub_(thinned_value(peers, problem, ahead, *exchange, 2 * iteration + 1) * step);
      ++iteration;
      return std::numeric_limits<double>::quiet_NaN();
    };
  };
}

std::function<std::function<double()>(comm::Group&, sync::VariationalProblem&, at::Tensor)> masha(const sync::MashaOptions& options,
                                                                                                  uint64_t seed) {
  return [=](comm::Group& peers, sync::VariationalProblem& problem, const at::Tensor& point) {
    const auto rule = std::make_shared<sync::Masha>(options, sync::Masha::Setting{problem, peers, base::Random(seed)}, point);
    return [=, started = false]() mutable {
      if (!std::exchange(started, true)) return rule->mean().norm().item<double>();  // at the start, as it was exchanged
      const sync::MashaFacts facts = rule->iterate();
      point.copy_(rule->point());
      // A new reference is the newest point, and F there is known to all.
      return facts.refreshed ? facts.residual : std::numeric_limits<double>::quiet_NaN();
    };
  };
}

Solved solve(const SaddleRun& run) {
  Solved solved;
  std::mutex mutex;
  at::Tensor first_point;
  comm::LocalOptions options;
  options.link = run.link;
  comm::LocalNetwork network(run.devices, options);
  const auto errors = network.run([&](comm::World& world) {
    const std::unique_ptr<sync::VariationalProblem> problem = make_saddle(run.saddle, world.rank());
    const at::Tensor point = start_of(run.saddle);
    const auto begun = world.clock().now();
    const std::function<double()> iterate = run.solver(world.everyone(), *problem, point);
    // Whole problem at hand, so that a solver that never knows |F| is measured too. Costs no message.
    std::vector<std::unique_ptr<sync::VariationalProblem>> all;
    for (int device = 0; device < run.devices && run.saddle.per_row == 0; ++device) all.push_back(make_saddle(run.saddle, device));
    const auto residual = [&](const at::Tensor& at) {
      at::Tensor sum = at::zeros_like(at);
      for (const auto& one : all) sum += sync::value_at(*one, at, {});
      return sum.norm().item<double>() / run.devices;
    };
    double start = std::numeric_limits<double>::quiet_NaN();
    const auto sent = [&](Purpose purpose) { return static_cast<double>(world.ledger().bytes_sent(world.rank(), purpose)); };
    if (!all.empty()) start = residual(point);
    Solved mine;
    while (mine.iterations < run.iterations_most && !mine.reached) {
      double now = iterate();
      ++mine.iterations;
      if (!all.empty() && std::isnan(now) && mine.iterations % 16 == 0) now = residual(point);
      if (std::isnan(start)) start = now;
      // All see the same |F| but for its last bits where it is computed from the point, which is bitwise identical everywhere.
      if (std::isfinite(now)) {
        mine.least = std::min(mine.least, now / start);
        if (world.rank() == 0)
          mine.course.emplace_back(sent(Purpose::gradient) + sent(Purpose::parameter) + sent(Purpose::state), now / start);
        mine.reached = now <= run.until * start;
        if (now > 1e6 * start) break;
      }
    }
    mine.seconds = base::seconds(world.clock().now() - begun);
    const std::lock_guard lock(mutex);
    if (!first_point.defined()) first_point = point;
    solved.same_bits = solved.same_bits && at::equal(first_point, point);
    solved.reached = mine.reached, solved.iterations = mine.iterations, solved.least = mine.least;
    solved.seconds = std::max(solved.seconds, mine.seconds);
    if (world.rank() == 0) solved.course = mine.course;
  });
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
  const comm::Ledger ledger = network.ledger();
  // Of an all-reduce half goes to the owners of ranges and half comes from them.
  const double whole = static_cast<double>(ledger.total(Purpose::state).bytes) / 2;
  solved.up = (static_cast<double>(ledger.total(Purpose::gradient).bytes) + whole) / run.devices;
  solved.down = (static_cast<double>(ledger.total(Purpose::parameter).bytes) + whole) / run.devices;
  solved.control_bytes = ledger.total(Purpose::control).bytes;
  return solved;
}

}  // namespace cairn::study
