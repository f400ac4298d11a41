#include "train/options.h"

#include "train/step_methods.h"

namespace cairn::train {

base::Schema<TrainOptions> train_schema() {
  using O = TrainOptions;
  return {
      "train",
      "How long and in what portions to train.",
      {{"steps", &O::steps, "Optimizer steps.", base::at_least(1), {"max_steps", "train_iters"}},
       {"method", &O::method,
        "How a step learns: " + step_method_help() + ".",
        base::one_of(step_method_names())},
       {"global_batch",
        &O::global_batch,
        "Samples of one step, over all ranks; any rank count divides it.",
        base::at_least(1),
        {"global_batch_size"}},
       {"micro_batch",
        &O::micro_batch,
        "Samples of one pass on one rank; 0 takes the rank's whole share.",
        base::at_least(0),
        {"micro_batch_size", "per_device_train_batch_size"}},
       {"precision", &O::precision,
        "Number format of what passes compute and save: fp32 or bf16. Losses, sums of gradients, norms' statistics and the optimizer's "
        "state "
        "are fp32 either way.",
        kPrecisionNames},
       {"fp8", &O::fp8,
        "Products with weights that are in eight bits in training: layers (attention and MLP), or all, the head's too; the rest is as "
        "precision says, which must be bf16. Needs a GPU of compute capability 8.9 or more; a CPU only imitates it.",
        kFp8ScopeNames},
       {"fp8_layers", &O::fp8_layers, "Which layers those are: \"all\", \"last 8\", or numbers from 0 on: \"0,2,5\"."},
       {"parameters", &O::parameters,
        "Number format in which parameters are kept and saved: fp32 (master weights, for bf16 passes rounded to a copy), or bf16 without "
        "any, "
        "each update rounded up or down at random so that small ones are not lost; needs precision = bf16.",
        kPrecisionNames},
       {"gradients", &O::gradients,
        "Number format in which gradients are summed and kept: fp32, or bf16 for half of that memory, on one rank with one pass a step; "
        "needs precision = bf16.",
        kPrecisionNames},
       {"loss_chunks", &O::loss_chunks,
        "Parts of a pass, by tokens, whose logits are made one after the other: with 4, logits take a quarter of the memory. The head's "
        "weight gradient is then summed up from as many parts. 0 chooses: on a GPU parts of half a gibibyte, on a CPU one.",
        base::at_least(0)},
       {"cuda_graph", &O::cuda_graph,
        "On a GPU, record what a step starts on it and from then on start it all at once, so that a small model does not wait for the "
        "host. For one rank, without dropout."},
       {"deterministic", &O::deterministic,
        "On a GPU, the same bits from each run of a recipe, where attention's gradients are else added up in any order: steps take longer. "
        "A CPU gives the same bits always."},
       {"check_every", &O::check_every,
        "Every so many steps gradients are computed twice, and the run stops where they are not the same bits: so a GPU or memory that "
        "computes wrong now and then is found. 0: never. On a GPU it needs deterministic.",
        base::at_least(0)},
       {"seed", &O::seed, "Decides starting values and sample order, on any number of ranks.", base::at_least(0)},
       {"on_bad_step", &O::on_bad_step,
        "When the loss or the gradient norm is not finite, or a spike: stop with an error; skip the update; or rollback: go back to the "
        "last snapshot (kept in memory too) and on with the samples after the bad step.",
        kOnBadStepNames},
       {"spike_factor", &O::spike_factor,
        "A loss or gradient norm above this many times its median over the last 64 good steps is a spike; 0 looks for none.",
        base::at_least(0)},
       {"bad_steps_max", &O::bad_steps_max, "Bad steps in a row (skip), or rollbacks in a run (rollback), after which it stops.",
        base::at_least(1)}}};
}

base::Schema<EvalOptions> eval_schema() {
  using O = EvalOptions;
  return {"eval",
          "Loss on text that is held out from training.",
          {{"every", &O::every, "Steps between two evaluations; 0 evaluates at the end only.", base::at_least(0), {"eval_steps"}},
           {"fraction", &O::fraction, "Share of the samples that is held out; 0 holds out nothing.", base::between(0, 0.9)},
           {"samples", &O::samples, "Most samples of one evaluation.", base::at_least(1)}}};
}

base::Schema<LogOptions> log_schema() {
  using O = LogOptions;
  return {"log",
          "What a run leaves behind besides metrics.jsonl.",
          {{"tensorboard", &O::tensorboard, "Write TensorBoard event files."},
           {"trace", &O::trace, "Write trace.json, to be opened in Perfetto."},
           {"samples", &O::samples, "Texts to write at the end.", base::between(0, 100)},
           {"prompt", &O::prompt, "What those texts begin with; empty leaves the beginning to the model."},
           {"memory", &O::memory,
            "Write memory.json: what tensors were for when they took the most memory on the device. Slows allocations down a little."},
           {"kernels", &O::kernels,
            "On a GPU, write kernels.txt: which kernels the time of a step goes to, watched over steps 21 to 23 of this process."},
           {"sync_check", &O::sync_check, "On a GPU, fail a step in which the host waits for the device."}}};
}

}  // namespace cairn::train
