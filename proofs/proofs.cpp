// The list of proofs. A new one is a file beside this and one line here.
#include "study/claims.h"
#include "study/picture_proofs.h"

namespace cairn::study {

void prove_same_answer(const ProofOptions&, Findings&, base::Log&);
void prove_method_layouts(const ProofOptions&, Findings&, base::Log&);
void prove_in_memory_ft(const ProofOptions&, Findings&, base::Log&);
void prove_hostile(const ProofOptions&, Findings&, base::Log&);
void prove_zero(const ProofOptions&, Findings&, base::Log&);
void prove_zero_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_megatron(const ProofOptions&, Findings&, base::Log&);
void prove_megatron_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_torchtitan(const ProofOptions&, Findings&, base::Log&);
void prove_torchtitan_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_gpipe(const ProofOptions&, Findings&, base::Log&);
void prove_gpipe_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_oneflow(const ProofOptions&, Findings&, base::Log&);
void prove_oneflow_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_redco(const ProofOptions&, Findings&, base::Log&);
void prove_redco_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_mos(const ProofOptions&, Findings&, base::Log&);
void prove_mos_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_sst(const ProofOptions&, Findings&, base::Log&);
void prove_sst_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_perp(const ProofOptions&, Findings&, base::Log&);
void prove_perp_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_deps(const ProofOptions&, Findings&, base::Log&);
void prove_deps_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_s3t(const ProofOptions&, Findings&, base::Log&);
void prove_s3t_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_mosa(const ProofOptions&, Findings&, base::Log&);
void prove_mosa_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_parscale(const ProofOptions&, Findings&, base::Log&);
void prove_parscale_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_s2_attention(const ProofOptions&, Findings&, base::Log&);
void prove_s2_attention_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_ladder_residual(const ProofOptions&, Findings&, base::Log&);
void prove_ladder_residual_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_noloco(const ProofOptions&, Findings&, base::Log&);
void prove_co2(const ProofOptions&, Findings&, base::Log&);
void prove_co2_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_single_merging(const ProofOptions&, Findings&, base::Log&);
void prove_single_merging_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_streaming_diloco(const ProofOptions&, Findings&, base::Log&);
void prove_streaming_diloco_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_hdee(const ProofOptions&, Findings&, base::Log&);
void prove_hdee_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_datastates(const ProofOptions&, Findings&, base::Log&);
void prove_masha(const ProofOptions&, Findings&, base::Log&);
void prove_c4(const ProofOptions&, Findings&, base::Log&);
void prove_one_byte(const ProofOptions&, Findings&, base::Log&);
void prove_one_byte_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_gradient_coding(const ProofOptions&, Findings&, base::Log&);
void prove_streambp(const ProofOptions&, Findings&, base::Log&);
void prove_streambp_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_bytescale(const ProofOptions&, Findings&, base::Log&);
void prove_flexsp(const ProofOptions&, Findings&, base::Log&);
void prove_zero_infinity(const ProofOptions&, Findings&, base::Log&);
void prove_universal_checkpointing(const ProofOptions&, Findings&, base::Log&);
void prove_zeco(const ProofOptions&, Findings&, base::Log&);
void prove_zeco_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_tokenring(const ProofOptions&, Findings&, base::Log&);
void prove_rs2(const ProofOptions&, Findings&, base::Log&);
void prove_rs2_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_seta(const ProofOptions&, Findings&, base::Log&);
void prove_seta_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_multigrid(const ProofOptions&, Findings&, base::Log&);
void prove_tas_balanced(const ProofOptions&, Findings&, base::Log&);
void prove_rds_plus(const ProofOptions&, Findings&, base::Log&);
void prove_concept_pruning(const ProofOptions&, Findings&, base::Log&);
void prove_data_shapley(const ProofOptions&, Findings&, base::Log&);
void prove_data_shapley_on_gpu(const ProofOptions&, Findings&, base::Log&);
void prove_diversify_conquer(const ProofOptions&, Findings&, base::Log&);
void prove_adapt_infty(const ProofOptions&, Findings&, base::Log&);
void prove_se_moe(const ProofOptions&, Findings&, base::Log&);
void prove_exflow(const ProofOptions&, Findings&, base::Log&);
void prove_lsh_moe(const ProofOptions&, Findings&, base::Log&);
void prove_hecate(const ProofOptions&, Findings&, base::Log&);

const std::vector<Proof>& proofs() {
  static const std::vector<Proof> list{
      {"se-moe", "Rows to experts by node, one message per rail, and embeddings by columns: bitwise the same, faster where links differ.",
       prove_se_moe},
      {"hecate", "Experts with one home, and copies of busy ones for a step: the same answer, even load, fewer bytes between nodes.",
       prove_hecate},
      {"lsh-moe", "Centroids of similar rows travel to experts and back, residuals stay: a fraction of the bytes in all four ways.",
       prove_lsh_moe},
      {"exflow",
       "Decoding along ep with one exchange a layer: tokens stay where their expert is. Experts that follow each other share a rank.",
       prove_exflow},
      {"rds-plus", "The documents most like a few target examples, by the model's own hidden states: exact on any number of ranks.",
       prove_rds_plus},
      {"concept-pruning", "Near-duplicates dropped, then more kept of complex concepts than of simple ones: a tenth trains better.",
       prove_concept_pruning},
      {"data-shapley", "What each training example or source is worth: exact, estimated, on any number of processes that may be killed.",
       prove_data_shapley, prove_data_shapley_on_gpu},
      {"diversify-conquer", "Samples chosen in rounds over clusters: those that teach nothing lose their share, and the model gets better.",
       prove_diversify_conquer},
      {"adapt-infty", "Datasets that arrive one after the other: a small pool and few samples of each, and old skills are kept.",
       prove_adapt_infty},
      {"tas-balanced", "Dense retrieval from topical batches with balanced margins: better ranking at equal steps, on any number of ranks.",
       prove_tas_balanced},
      {"multigrid", "Clips whose frames, size and batch change at equal cost: fewer steps, and the full shape in the end.",
       prove_multigrid},
      {"same-answer", "The same losses on any number of ranks, and after any interruption.", prove_same_answer},
      {"method-layouts", "Adapters, pruned models, spectral training, supernets and unlearning, on every layout: one table.",
       prove_method_layouts},
      {"hostile", "Bad files are refused with a clear message, within a second, in bounded memory.", prove_hostile},
      {"in-memory-ft", "Snapshots in memory that outlives ranks, with parity across nodes: a lost rank or node costs a step or two.",
       prove_in_memory_ft},
      {"zero", "Optimizer state, gradients and parameters sharded over replicas: the same answer in less memory.", prove_zero,
       prove_zero_on_gpu},
      {"megatron", "Tensor, interleaved pipeline and data parallelism together: the same answer, small bubbles, few bytes.", prove_megatron,
       prove_megatron_on_gpu},
      {"torchtitan", "One named mesh for every parallelism: the same answer in any composition, snapshots that fit them all.",
       prove_torchtitan, prove_torchtitan_on_gpu},
      {"gpipe", "Waves of micro-batches through stages, recomputed inside: bitwise identical, the bubble of theory, little memory.",
       prove_gpipe, prove_gpipe_on_gpu},
      {"sst", "Linear layers as U diag(s) V^T, a few pairs of vectors trained at a time: near full training in a fraction of the state.",
       prove_sst, prove_sst_on_gpu},
      {"mos", "Adapters of all layers from shared pools of pieces: the rank of large adapters in the memory of small ones.", prove_mos,
       prove_mos_on_gpu},
      {"s3t", "Training records deleted from a tuned model by switching layers off: bitwise as if it had never read them.", prove_s3t,
       prove_s3t_on_gpu},
      {"mosa", "Adapters in random modules that take turns in training, merged into one ordinary adapter.", prove_mosa, prove_mosa_on_gpu},
      {"deps", "Networks of many sizes in one, whose training begins with the whole network and shrinks late and gently.", prove_deps,
       prove_deps_on_gpu},
      {"perp", "Pruned models repaired by a sliver of their parameters: masks that merging keeps, layer by layer in little memory.",
       prove_perp, prove_perp_on_gpu},
      {"s2-attention", "A window and its own strided blocks for each head: less time, a smaller KV cache, the whole context seen",
       prove_s2_attention, prove_s2_attention_on_gpu},
      {"parscale", "Streams of one model, each with learned prefixes, mixed per token: the law of their losses, exact in every placement.",
       prove_parscale, prove_parscale_on_gpu},
      {"ladder-residual",
       "A wiring one block late: sums over ranks along tp hide behind the next block, at the quality of the standard one.",
       prove_ladder_residual, prove_ladder_residual_on_gpu},
      {"oneflow", "Placements that infer themselves; actors with registers: flow control, overlap and pipelining from one rule.",
       prove_oneflow, prove_oneflow_on_gpu},
      {"redco", "Tensor parallelism for any model from two rules, any training from three functions.", prove_redco, prove_redco_on_gpu},
      {"streaming-diloco", "Islands that talk seldom and little, while they train: one model, few bytes, no waiting.",
       prove_streaming_diloco, prove_streaming_diloco_on_gpu},
      {"noloco", "Islands that only ever talk with one other, drawn anew: as good as all at once, and no sum over all.", prove_noloco},
      {"co2", "Means of islands that travel while the next round is trained: nobody waits, and a late mean does no harm.", prove_co2,
       prove_co2_on_gpu},
      {"single-merging", "Nodes that see different data and hardly talk: one average at the end makes a good model of poor ones.",
       prove_single_merging, prove_single_merging_on_gpu},
      {"hdee", "Domain experts that never communicate, each as large or trained as long as its domain needs: better at equal compute.",
       prove_hdee, prove_hdee_on_gpu},
      {"datastates", "Snapshots that are copied while training goes on: no wait, and the state of their step.", prove_datastates},
      {"masha", "Saddle points and games over devices: compressed messages that still lead to the exact solution.", prove_masha},
      {"c4", "The rank or link that holds up a run, found from the records of its collectives; traffic on planned paths.", prove_c4},
      {"one-byte", "Fine-tuning by forward passes alone over machines that come and go: one byte for each slope.", prove_one_byte,
       prove_one_byte_on_gpu},
      {"gradient-coding", "Workers that are late do not hold up training: exact gradients from those that are on time.",
       prove_gradient_coding},
      {"streambp", "Layers and head in slices along the sequence: exact gradients in a fraction of the memory, at the same speed.",
       prove_streambp, prove_streambp_on_gpu},
      {"universal-checkpointing", "Saved in whatever layout a run trains in, resumed in any other: bitwise the same state, few bytes.",
       prove_universal_checkpointing},
      {"tokenring", "Exact attention over sequences split across ranks: queries go one way, outputs return the other.", prove_tokenring},
      {"zeco", "Linear attention on sequences cut over any number of ranks: each sends one state, behind work that needs none.", prove_zeco,
       prove_zeco_on_gpu},
      {"bytescale", "Long and short sequences on one pool of ranks: each uses as many as it needs, and all end together.", prove_bytescale},
      {"flexsp", "Groups of ranks of different sizes, chosen for each micro-batch: long and short sequences at their best degree.",
       prove_flexsp},
      {"zero-infinity",
       "Parameters, gradients and optimizer state on device, host or disk: models larger than memory, at nearly its speed.",
       prove_zero_infinity},
      {"rs2", "A new random slice of the data in each round: most of the accuracy in a tenth of the steps.", prove_rs2, prove_rs2_on_gpu},
      {"seta", "Samples left out by their losses, the easy and the hard in turn: half of the passes, the same accuracy.", prove_seta,
       prove_seta_on_gpu}};
  return list;
}

const std::vector<std::string>& picture_proofs() {
  static const std::vector<std::string> list{"deps", "mosa", "rds-plus"};
  return list;
}

}  // namespace cairn::study
