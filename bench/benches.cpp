// The list of benches. A new one is a file beside this and one line here.
#include "study/benches.h"

namespace cairn::study {

std::vector<BenchRow> bench_adapters(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_block_attention(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_chaos(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_codecs(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_collectives(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_context(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_disk(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_fp8(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_generate(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_gpu(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_islands(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_kernels(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_ladder(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_linear(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_moe(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_overlap(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_parallel(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_placements(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_select(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_snapshot(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_step_plans(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_stream(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_tokenizer(const BenchOptions&, base::Log&);
std::vector<BenchRow> bench_train_cpu(const BenchOptions&, base::Log&);

const std::vector<Bench>& benches() {
  static const std::vector<Bench> list{
      {"adapters", "Training LoRA and MoS adapters on this CPU against peft, same base model, batch and threads: tokens/s.",
       bench_adapters},
      {"block-attention", "Block-sparse attention on this CPU against dense causal attention by our kernels, forward and backward: ms.",
       bench_block_attention},
      {"chaos",
       "Islands in virtual time under 10,000 seeds of cuts, stops, kills and restarts (--steps: fewer; --case: one seed again), and how "
       "soon "
       "planted mistakes are found.",
       bench_chaos},
      {"codecs", "Codecs on one core against a copy of the same floats: encode, decode, decode and add, GB/s of floats.", bench_codecs},
      {"collectives", "Ranks of one machine against Open MPI and torch.distributed/Gloo: four collectives, 4 KB to 64 MB, 2 and 4 ranks.",
       bench_collectives},
      {"context",
       "Attention along cp, forward and backward, against zigzag ring attention in plain PyTorch (Gloo), 2 and 4 ranks: ms, bytes.",
       bench_context},
      {"disk", "Records on disk against fio, direct I/O with the same blocks, depth and mix, in turn: read, write, mixed, MB/s.",
       bench_disk},
      {"fp8", "fp8 linear layers against bf16 on the same text (--data FILE): held-out loss, beside what seeds make of it.", bench_fp8},
      {"generate", "Greedy decoding on this CPU against llama.cpp and transformers, same fp32 weights and threads: tokens/s at 1M and 12M.",
       bench_generate},
      {"gpu",
       "Training in bf16 on one GPU against PyTorch, compiled and eager, from the same weights on the same tokens: speed, memory, "
       "start-up, "
       "energy, losses.",
       bench_gpu},
      {"islands",
       "Rules by which 4 islands train apart against an all-reduce at every step, over links of 100 Mbit/s and 50 ms: bytes, time, loss.",
       bench_islands},
      {"kernels", "Kernels of a training step on a GPU against the plain operations they stand for, bf16: GB/s, attention TFLOP/s.",
       bench_kernels},
      {"ladder", "The ladder wiring against the standard one along tp, on slowed links: step time of training, tokens/s of generation.",
       bench_ladder},
      {"linear",
       "Gated linear attention: kernels against the recurrence token by token; zeco on 4 ranks of slow links against lasp1, lasp2 and one "
       "rank.",
       bench_linear},
      {"moe",
       "Mixtures of experts: a layer against a dense MLP of the same operations, steps against transformers; on a GPU grouped products "
       "against "
       "libtorch's, and steps against compiled PyTorch.",
       bench_moe},
      {"overlap",
       "Recomputation while a pipeline waits, and ZeRO 3's gathers ahead of their use, against the same runs without, on slow links: step "
       "time.",
       bench_overlap},
      {"parallel",
       "Layouts on 2 and 4 ranks of this CPU against PyTorch's DDP, FSDP2 and pipeline schedules (Gloo): step time, bytes, memory.",
       bench_parallel},
      {"placements",
       "Placements that are inferred against those that people write, for 7 families on 6 meshes: bytes of a pass forward and back.",
       bench_placements},
      {"select",
       "What choosing data costs: samplers with feedback against shuffled, vectors against the forward pass, k-means and search against "
       "faiss-cpu.",
       bench_select},
      {"snapshot",
       "Saving and restoring a sharded state on 2 and 4 ranks against torch.distributed.checkpoint (FSDP2, Gloo): stall, flush, cold "
       "restore.",
       bench_snapshot},
      {"step-plans",
       "Plans of each step (ByteScale, FlexSP) against mesh.cp = 4 for all, documents with a long tail of lengths: tokens/s, planning "
       "time.",
       bench_step_plans},
      {"stream", "A pass in slices along the sequence against recomputation by block with whole logits: peak memory of activations, time.",
       bench_stream},
      {"tokenizer", "Encoding on one thread against the PyPI package `tokenizers`: three patterns, MB/s; --data FILE for another text.",
       bench_tokenizer},
      {"train-cpu", "Training on this CPU against PyTorch, eager and compiled: tokens/s, time to the first step, peak memory.",
       bench_train_cpu}};
  return list;
}

}  // namespace cairn::study
