"""Prints the literals of tests/optim/torch_reference_test.cpp: three steps of torch.optim's rules (PyTorch 2.11) in double precision.

A parameter's element i starts at sin(i + 1); its gradient at step t is cos((i + 1) * t) / 2. Run by developers, never by the product.
"""
import math
import torch


def run(name, shape, make):
    n = math.prod(shape)
    p = torch.tensor([math.sin(i + 1) for i in range(n)], dtype=torch.float64).reshape(shape).requires_grad_()
    rule = make([p])
    for t in range(1, 4):
        p.grad = torch.tensor([math.cos((i + 1) * t) / 2 for i in range(n)], dtype=torch.float64).reshape(shape)
        rule.step()
    print(name, shape, "{" + ", ".join(f"{x:.9g}" for x in p.detach().flatten().tolist()) + "}")


SGD, Muon, Adafactor = torch.optim.SGD, torch.optim.Muon, torch.optim.Adafactor
# torch runs the Newton-Schulz iteration in bf16; Cairn keeps the gradient's precision, and is compared with that.
torch.Tensor.bfloat16 = lambda self: self.clone()

run("sgd nesterov l2", (3, 5), lambda p: SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01))
run("sgd momentum", (3, 5), lambda p: SGD(p, lr=0.1, momentum=0.9))
run("sgd plain", (3, 5), lambda p: SGD(p, lr=0.1))
run("muon spectral wide", (3, 5), lambda p: Muon(p, lr=0.1, weight_decay=0.01, adjust_lr_fn="original"))
run("muon spectral tall", (5, 3), lambda p: Muon(p, lr=0.1, weight_decay=0.01, adjust_lr_fn="original"))
run("muon rms", (5, 3), lambda p: Muon(p, lr=0.1, weight_decay=0.01, adjust_lr_fn="match_rms_adamw", nesterov=False))
run("adafactor relative", (3, 5), lambda p: Adafactor(p, lr=0.1, eps=(1e-8, 1e-3), weight_decay=0.01))
run("adafactor relative", (4,), lambda p: Adafactor(p, lr=0.9, eps=(1e-8, 1e-3)))
