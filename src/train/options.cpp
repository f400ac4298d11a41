#include "train/options.h"

#include "train/step_methods.h"

namespace cairn::train {

base::Schema<TrainOptions> train_schema() {
  using O = TrainOptions;
  return {
      "train",
      "How many steps to train, in what batches, and in what precision.",
      {{"steps", &O::steps, "Optimizer steps; 0 where `epochs` decide.", base::at_least(0), {"max_steps", "train_iters"}},
       {"epochs",
        &O::epochs,
        "The end of the run in epochs of its sampler (rounds of rs2), instead of `steps`. Samplers that leave samples out have short "
        "epochs. "
        "0: `steps` decide.",
        base::at_least(0),
        {"num_train_epochs"}},
       {"method", &O::method, "How a step learns: " + step_method_help() + ".", base::one_of(step_method_names())},
       {"global_batch",
        &O::global_batch,
        "Samples of one step, over all ranks. Any number of ranks works; ranks may have unequal shares.",
        base::at_least(1),
        {"global_batch_size"}},
       {"micro_batch",
        &O::micro_batch,
        "Samples of one pass on one rank (gradient accumulation). 0: all samples that the rank has in a step.",
        base::at_least(0),
        {"micro_batch_size", "per_device_train_batch_size"}},
       {"precision", &O::precision,
        "Number format of the activations and matrix products of passes: fp32 or bf16. Losses, sums of gradients, statistics of norms and "
        "optimizer state are always fp32.",
        kPrecisionNames},
       {"fp8", &O::fp8,
        "Linear layers that train in fp8: none, layers (attention and MLP), or all (the head too). Everything else is in bf16: needs "
        "precision = bf16. Needs a GPU of compute capability 8.9 or more; a CPU emulates it.",
        kFp8ScopeNames},
       {"fp8_layers", &O::fp8_layers, "The layers that fp8 applies to: \"all\", \"last 8\", or indices from 0: \"0,2,5\"."},
       {"parameters", &O::parameters,
        "Number format in which parameters are kept and saved: fp32 (master weights; bf16 passes read a rounded copy), or bf16 without "
        "master weights. In bf16, updates are rounded stochastically, so that small updates are not lost. bf16 needs precision = bf16.",
        kPrecisionNames},
       {"gradients", &O::gradients,
        "Number format in which gradients are summed and kept: fp32, or bf16 for half the memory. bf16 needs precision = bf16, one rank, "
        "and one pass per step.",
        kPrecisionNames},
       {"loss_chunks", &O::loss_chunks,
        "Chunked cross entropy: the number of chunks, by tokens, whose logits are computed one after the other. With 4, logits take a "
        "quarter of the memory, and the head's weight gradient is the sum of 4 parts. 0 chooses: on a GPU chunks of 0.5 GiB, on a CPU 1.",
        base::at_least(0)},
       {"cache_frozen_bytes", &O::cache_frozen_bytes,
        "Host memory for what the leading layers compute where nothing in them is trained, by sample: later epochs begin above these "
        "layers. They have no backward pass either. 0: every step runs all layers.",
        base::at_least(0)},
       {"cuda_graph", &O::cuda_graph,
        "On a GPU, capture the kernels of a step in a CUDA graph and replay it, so that a small model does not wait for the host to launch "
        "kernels. For one rank, without dropout."},
       {"deterministic", &O::deterministic,
        "On a GPU, use deterministic kernels, so that two runs of a recipe are bitwise identical. Steps take longer. Otherwise the "
        "gradients of attention are summed in any order. Runs on a CPU are always bitwise identical."},
       {"check_every", &O::check_every,
        "Every so many steps, compute gradients twice and stop if they are not bitwise identical. This finds a GPU or memory that "
        "sometimes computes wrongly. 0: never. On a GPU it needs deterministic = true.",
        base::at_least(0)},
       {"seed", &O::seed, "Decides initial weights and sample order, independent of the number of ranks.", base::at_least(0)},
       {"on_bad_step", &O::on_bad_step,
        "What to do if the loss or the gradient norm is not finite, or is a spike. stop: end with an error. skip: skip the update. "
        "rollback: restore the last snapshot (a copy is kept in memory) and continue with the samples after the bad step.",
        kOnBadStepNames},
       {"spike_factor", &O::spike_factor,
        "A loss or gradient norm above this many times its median over the last 64 good steps is a spike. 0: no check for spikes.",
        base::at_least(0)},
       {"bad_steps_max", &O::bad_steps_max, "Bad steps in a row (skip), or rollbacks in a run (rollback), after which the run stops.",
        base::at_least(1)},
       {"on_loss", &O::on_loss,
        "What to do if a rank is lost (killed, crashed or frozen). stop: end the run. restart: end the other ranks, and start all of them "
        "again from the newest snapshot; a machine that is lost is waited for. shrink: the same, but go on without machines that are lost.",
        kOnLossNames},
       {"max_restarts", &O::max_restarts,
        "Restarts in a row that do not get beyond the step of the loss before; then the run ends with the first error.", base::at_least(0)},
       {"replacement_timeout_s", &O::replacement_timeout_s,
        "With on_loss = restart: how long the other machines wait for a lost machine, or a replacement that is started with the same "
        "--node-rank. Seconds.",
        base::at_least(0)}}};
}

base::Schema<EvalOptions> eval_schema() {
  using O = EvalOptions;
  return {"eval",
          "Evaluation: the loss on samples that are held out from training.",
          {{"every", &O::every, "Steps between two evaluations. 0: only at the end.", base::at_least(0), {"eval_steps"}},
           {"fraction", &O::fraction, "Fraction of the samples that is held out. 0: none.", base::between(0, 0.9)},
           {"samples", &O::samples, "The largest number of samples in one evaluation.", base::at_least(1)}}};
}

base::Schema<LogOptions> log_schema() {
  using O = LogOptions;
  return {"log",
          "The files that a run writes besides metrics.jsonl.",
          {{"tensorboard", &O::tensorboard, "Write TensorBoard event files."},
           {"trace", &O::trace, "Write trace.json, which Perfetto opens."},
           {"samples", &O::samples, "Texts to generate at the end, for the report.", base::between(0, 100)},
           {"prompt", &O::prompt, "The prompt of those texts. Empty: the model begins."},
           {"memory", &O::memory,
            "Write memory.json: the purpose of all tensors at the moment of peak memory. Slows allocations down a little."},
           {"kernels", &O::kernels,
            "On a GPU, write kernels.txt: the time of each kernel in a step, profiled over steps 21 to 23 of this process."},
           {"sync_check", &O::sync_check, "On a GPU, fail a step in which the host waits for the device."}}};
}

}  // namespace cairn::train
