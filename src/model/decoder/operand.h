#pragma once
#include <string>

#include "kernels/fp8.h"
#include "model/saved.h"

namespace cairn::model {

// One of the two operands of a weight gradient dy^T x: a matrix [rows, width], or its fp8 codes where another product of the layer has
// quantized it already, or both.
struct Operand {
  at::Tensor values = {};
  kernels::Fp8Matrix codes = {};
  at::Tensor amax = {};  // of the values, as to_fp8 takes it; undefined: not known

  // Saves the codes, by columns, and drops a saved matrix of this name unless `values_too`. Without codes it saves the matrix.
  void save(Saved& into, const std::string& name, const at::Tensor& matrix, bool values_too = false) const {
    if (codes.defined()) {
      into.put(name + ".codes", codes.columns);
      into.put(name + ".factor", codes.factor);
    }
    if (!codes.defined() || values_too)
      into.put(name, matrix);
    else if (into.has(name))
      into.take(name);
  }
  static Operand take(Saved& from, const std::string& name) {
    Operand found;
    if (from.has(name)) found.values = from.take(name);
    if (from.has(name + ".codes")) found.codes = {.columns = from.take(name + ".codes"), .factor = from.take(name + ".factor")};
    return found;
  }
};

}  // namespace cairn::model
