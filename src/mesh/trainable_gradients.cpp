#include "mesh/trainable_gradients.h"

#include <utility>

#include "base/check.h"
#include "kernels/aten.h"
#include "kernels/fp8.h"

namespace cairn::mesh {
namespace {

class TrainableGradients final : public Gradients {
 public:
  TrainableGradients(FlatLayout all, const std::vector<bool>& chosen, Gradients& into, const std::vector<bool>& active)
      : all_(std::move(all)), into_(into) {
    CAIRN_CHECK(chosen.size() == all_.pieces.size(), "{} choices for {} parameters", chosen.size(), all_.pieces.size());
    CAIRN_CHECK(active.empty() || active.size() == chosen.size(), "{} active of {} parameters", active.size(), chosen.size());
    int32_t next = 0;
    for (size_t i = 0; i < chosen.size(); ++i) {
      const int32_t place = chosen[i] ? next++ : -1;
      places_.push_back(active.empty() || active[i] ? place : -1);
    }
  }

  void outer(ParamId id, const at::Tensor& in, const at::Tensor& dout) override {
    if (id.count == 1 || all_of(id)) return pass_on(id, [&](ParamId to) { into_.outer(to, in, dout); });
    parts(id, [&](ParamId to, int64_t begin, int64_t rows) { into_.outer(to, in, dout.narrow(1, begin, rows)); });
  }
  void outer_fp8(ParamId id, const kernels::Fp8Matrix& in, const kernels::Fp8Matrix& dout) override {
    if (id.count == 1 || all_of(id)) return pass_on(id, [&](ParamId to) { into_.outer_fp8(to, in, dout); });
    parts(id, [&](ParamId to, int64_t begin, int64_t rows) {
      into_.outer_fp8(to, in, {.columns = dout.columns.narrow(0, begin, rows), .factor = dout.factor});
    });
  }
  void outer_grouped(ParamId id, const at::Tensor& in, const at::Tensor& dout, const kernels::RowGroups& groups) override {
    pass_on(id, [&](ParamId to) { into_.outer_grouped(to, in, dout, groups); });
  }
  void add(ParamId id, const at::Tensor& gradient) override {
    if (id.count == 1 || all_of(id)) return pass_on(id, [&](ParamId to) { into_.add(to, gradient); });
    parts(id, [&](ParamId to, int64_t begin, int64_t rows) { into_.add(to, gradient.narrow(0, begin, rows)); });
  }
  void add_sum(ParamId id, const at::Tensor& rows) override {
    if (id.count == 1 || all_of(id)) return pass_on(id, [&](ParamId to) { into_.add_sum(to, rows); });
    parts(id, [&](ParamId to, int64_t begin, int64_t outputs) { into_.add_sum(to, rows.narrow(1, begin, outputs)); });
  }
  void add_rows(ParamId id, const at::Tensor& rows, const at::Tensor& values) override {
    pass_on(id, [&](ParamId to) { into_.add_rows(to, rows, values); });
  }

  bool wants(ParamId id) const override {
    for (int32_t i = id.first; i < id.first + id.count; ++i)
      if (place(i) >= 0 && into_.wants({place(i), 1})) return true;
    return false;
  }
  // Parameters that are not trained do not count: their parts are dropped.
  bool accumulates_in_fp32(ParamId id) const override {
    for (int32_t i = id.first; i < id.first + id.count; ++i)
      if (place(i) >= 0 && !into_.accumulates_in_fp32({place(i), 1})) return false;
    return true;
  }
  void expect_more(ParamId id, int64_t contributions) override {
    for (int32_t i = id.first; i < id.first + id.count; ++i) pass_on({i, 1}, [&](ParamId to) { into_.expect_more(to, contributions); });
  }
  void skip(ParamId id) override {
    for (int32_t i = id.first; i < id.first + id.count; ++i) pass_on({i, 1}, [&](ParamId to) { into_.skip(to); });
  }
  void hold(ParamId id) override {
    for (int32_t i = id.first; i < id.first + id.count; ++i) pass_on({i, 1}, [&](ParamId to) { into_.hold(to); });
  }
  void reduce(ParamId id) override {
    for (int32_t i = id.first; i < id.first + id.count; ++i) pass_on({i, 1}, [&](ParamId to) { into_.reduce(to); });
  }
  void end_pass() override { into_.end_pass(); }

 private:
  int32_t place(int32_t index) const { return places_[static_cast<size_t>(index)]; }

  bool all_of(ParamId id) const {
    for (int32_t i = 0; i < id.count; ++i)
      if (place(id.first + i) < 0) return false;
    return true;  // then they are neighbours in `into` too
  }

  template <typename Act>
  void pass_on(ParamId id, const Act& act) const {
    if (place(id.first) >= 0) act(ParamId{place(id.first), id.count});
  }

  // For neighbours of which only some are trained: calls act for each trained one, with its rows of the stacked matrix.
  template <typename Act>
  void parts(ParamId id, const Act& act) const {
    int64_t begin = 0;
    for (int32_t i = id.first; i < id.first + id.count; ++i) {
      const int64_t rows = all_.pieces[static_cast<size_t>(i)].shape[0];
      if (place(i) >= 0) act(ParamId{place(i), 1}, begin, rows);
      begin += rows;
    }
  }

  FlatLayout all_;
  std::vector<int32_t> places_;  // of each parameter among the chosen; -1: takes no contributions
  Gradients& into_;
};

}  // namespace

FlatLayout trainable_layout(const FlatLayout& all, const std::vector<bool>& chosen) {
  FlatLayout part;
  for (size_t i = 0; i < all.pieces.size(); ++i)
    if (chosen[i]) part.append(all.pieces[i].name, all.pieces[i].shape);
  return part;
}

std::unique_ptr<Gradients> make_trainable_gradients(FlatLayout all, std::vector<bool> chosen, Gradients& into, std::vector<bool> active) {
  return std::make_unique<TrainableGradients>(std::move(all), chosen, into, active);
}

}  // namespace cairn::mesh
