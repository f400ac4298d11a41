// AdamW in plain ATen operations; nothing waits for a device.
#include "kernels/adamw.h"

#include <cmath>

#include "kernels/aten.h"

namespace cairn::kernels::reference {

void adamw(const at::Tensor& p, const at::Tensor& m, const at::Tensor& v, const at::Tensor& g, const AdamwStep& step) {
  at::Tensor gradient = g.to(m.scalar_type());
  if (step.gradient_scale != 1) gradient = gradient * step.gradient_scale;
  if (step.gradient_factor != nullptr) gradient = gradient * step.gradient_factor->reshape({}).to(gradient.scalar_type());
  m.mul_(step.beta1).add_(gradient, 1 - step.beta1);
  v.mul_(step.beta2).addcmul_(gradient, gradient, 1 - step.beta2);
  const double correction1 = 1 - std::pow(step.beta1, static_cast<double>(step.step));
  const double correction2 = 1 - std::pow(step.beta2, static_cast<double>(step.step));
  p.mul_(1 - step.learning_rate * step.weight_decay);
  p.addcdiv_(m, (v / correction2).sqrt_().add_(step.eps), -step.learning_rate / correction1);
}

at::Tensor sum_of_squares(const at::Tensor& x) {
  const at::Tensor wide = x.to(at::kDouble);
  return at::sum(wide * wide);
}

}  // namespace cairn::kernels::reference
