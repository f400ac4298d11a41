#include "parallel/options.h"

#include <algorithm>

#include "base/byte_count.h"
#include "base/check.h"

namespace cairn::parallel {

base::Schema<MeshOptions> mesh_schema() {
  using O = MeshOptions;
  return {
      "mesh",
      "How ranks are arranged. The product of island, pp, dp, cp, tp and ep is the number of ranks; --mesh pp=2,dp=2 is short for these "
      "keys.",
      {{"dp",
        &O::dp,
        "Data-parallel ranks, each with its own samples of a step; 0 takes those that the other axes leave.",
        base::at_least(0),
        {"data_parallel_replicate_degree"}},
       {"shard",
        &O::shard,
        "How many of the dp ranks shard one copy of the state, as memory.zero says: it divides dp. 0: all of them where memory.zero is "
        "set, "
        "else 1.",
        base::at_least(0),
        {"data_parallel_shard_degree"}},
       {"pp", &O::pp, "Ranks along the pipeline; each runs one or more stages.", base::at_least(1), {"pipeline_parallel_degree"}},
       {"cp", &O::cp, "Context-parallel ranks: each has some positions of every sequence.", base::at_least(1), {"context_parallel_degree"}},
       {"tp", &O::tp, "Tensor-parallel ranks: each has a part of every layer's width.", base::at_least(1), {"tensor_parallel_degree"}},
       {"ep",
        &O::ep,
        "Expert-parallel ranks: each has some of the experts. Other parameters are on all of them, and each has its own samples, as along "
        "dp.",
        base::at_least(1),
        {"expert_parallel_degree"}},
       {"island", &O::island, "Islands of machines, each with a mesh of the other axes and its own samples.", base::at_least(1)}}};
}

base::Schema<MemoryOptions> memory_schema() {
  using O = MemoryOptions;
  return {
      "memory",
      "What is sharded rather than kept on every rank, and where it lies.",
      {{"zero", &O::zero,
        "ZeRO stage: what is sharded over the ranks along shard (and cp). 0 nothing, 1 the optimizer's state, 2 gradients too, 3 "
        "parameters too. -1: 3 where mesh.shard is above 1, else 0.",
        base::between(-1, 3)},
       {"accumulate_unsharded", &O::accumulate_unsharded,
        "With zero 2 or 3 and gradient accumulation: gradients accumulate unsharded and are reduce-scattered once a step, rather than "
        "once for each micro-batch."},
       {"partition_activations", &O::partition_activations,
        "With mesh.tp above 1 and activation recomputation, how ranks along tp keep the inputs of recomputed blocks: on: each its "
        "part (ZeRO-R); off: each all of them; auto: as the residual stream lies anyway, which sends nothing more: in parts, or whole "
        "where model.residual replicates it (ladder, parallel). Results are the same.",
        kPartitionActivationsNames},
       {"prefetch_blocks", &O::prefetch_blocks,
        "With zero 3: how many blocks ahead of their use parameters are gathered. 0: when a block needs them.", base::between(0, 16)},
       {"parameters", &O::parameters,
        "Where parameters lie between their uses: device, host (memory) or disk. Off the device a rank fetches a block when a pass "
        "reaches it (ZeRO-Infinity); several ranks shard it with zero 3.",
        kTierKindNames},
       {"gradients", &O::gradients, "Where complete gradients wait for the update.", kTierKindNames},
       {"optimizer", &O::optimizer, "Where the optimizer's state lies between updates; it is updated group by group.", kTierKindNames},
       {"device_budget",
        &O::device_budget,
        "Bytes of model state and gathered blocks that a rank may have on the device, as in \"4GiB\". A run that needs more is refused; "
        "auto: no limit. On a CPU the device is memory too.",
        {}},
       {"host_budget",
        &O::host_budget,
        "Host memory of a rank for what lies there, and for what is on its way from and to the disk. auto: what that needs.",
        {}},
       {"disk_budget", &O::disk_budget, "Bytes of a rank on disk, reserved at the start. auto: what it needs.", {}},
       {"disk_path", &O::disk_path, "The folder for what lies on disk, on a real disk: each rank has a swap file there while it runs.",
        base::path()},
       {"partition", &O::partition,
        "Who keeps what of a block that ranks shard: slices: each an equal slice, which it reads by itself; owner: one rank all of "
        "it (the baseline).",
        kPartitionNames},
       {"read_ahead", &O::read_ahead,
        "Blocks, and groups of the optimizer, that are read from disk ahead of their use, as far as host_budget has room. 0: none.",
        base::between(0, 64)},
       {"group_elements", &O::group_elements, "Elements of parameters whose state is fetched and updated at a time, at most.",
        base::at_least(1)},
       {"disk_read_mib_s", &O::disk_read_mib_s, "A throttle: reads of a rank go no faster. 0: as fast as the disk.", base::at_least(0)},
       {"disk_write_mib_s", &O::disk_write_mib_s, "The same for writes.", base::at_least(0)},
       {"disk_latency_ms", &O::disk_latency_ms, "A throttle: every block of a transfer takes so much longer.", base::at_least(0)},
       {"slowdown_max", &O::slowdown_max,
        "A disk on which a step would take so many times its compute is refused at the start. 0: it is not.", base::at_least(0)}}};
}

std::optional<int64_t> budget_bytes(const char* key, const std::string& text) {
  if (text == "auto") return std::nullopt;
  const std::optional<int64_t> bytes = base::parse_bytes(text);
  if (!bytes || *bytes == 0) base::fail_input("{} = \"{}\": is no number of bytes. Write \"512MiB\", \"8GiB\" or \"auto\".", key, text);
  return bytes;
}

base::Schema<PipelineOptions> pipeline_schema() {
  using O = PipelineOptions;
  return {
      "pipeline",
      "How stages along pp work on a step's micro-batches.",
      {{"schedule",
        &O::schedule,
        "Who does what when; `cairn schedule --all` compares them.",
        base::one_of(schedule_names()),
        {"pipeline_parallel_schedule"}},
       {"csv", &O::csv, "A file with a schedule, one line per rank with cells such as 0F0, 1B3, 0I2, 0W2; it wins over schedule.",
        base::path()},
       {"micro_batches", &O::micro_batches,
        "Micro-batches of a rank's samples that go through the pipeline one after the other; 0: four for each rank along pp, as far as "
        "there "
        "are samples.",
        base::at_least(0)},
       {"stages_per_rank", &O::stages_per_rank, "Stages that each rank runs; 0: the schedule's default, 1 or 2.", base::at_least(0)},
       {"split", &O::split,
        "Layers of each stage, one number per stage; empty: such that the slowest stage is as fast as it can be, for which a layer's two "
        "halves may be on different stages."},
       {"registers", &O::registers,
        "Receive buffers for each value at a stage: a neighbour that is further ahead waits. 0: as many as the schedule needs.",
        base::between(0, 4096)},
       {"routing", &O::routing,
        "For islands that step separately, each with a pipeline: random: a micro-batch that leaves a stage goes on in the next stage of an "
        "island drawn anew, and its gradients come back the same way; fixed: it stays on its island. auto: random where the rule of the "
        "islands "
        "needs it (noloco), else fixed.",
        kRoutingOptionNames},
       {"scatter_boundaries",
        &O::scatter_boundaries,
        "With mesh.tp above 1: each rank along tp sends its part of what goes from stage to stage, and the next stage gathers it. false: "
        "each sends all of it. Results are the same.",
        {},
        {"scatter_gather_tensors_in_pipeline"}},
       {"reduce", &O::reduce,
        "When gradients of a stage are reduced over ranks: early: each as soon as it is complete; stage: all after the stage's last "
        "backward.",
        kReduceTimeNames}}};
}

base::Schema<RecomputeOptions> recompute_schema() {
  using O = RecomputeOptions;
  return {
      "recompute",
      "Activation recomputation (checkpointing): activations that backward recomputes rather than forward keeps.",
      {{"mode", &O::mode,
        "none; full: every block but the head keeps its input alone; selective: the blocks that modules and every name do; stage: each "
        "pipeline stage keeps its input alone; budget: as many blocks as it takes to stay within budget_mib; stream: every layer keeps its "
        "input alone and is computed in slices along the sequence, as are the logits (StreamBP).",
        kRecomputeModeNames},
       {"modules", &O::modules, "Names of blocks for selective, with * for anything: [\"*.mlp\"]; empty: all."},
       {"every", &O::every, "Of those, every n-th.", base::at_least(1)},
       {"budget_mib", &O::budget_mib, "Activations that one micro-batch may keep on a rank (budget), or have at once (stream).", base::at_least(0)},
       {"slice", &O::slice,
        "With mode = stream: tokens of each sequence that layers compute at a time. Less takes less memory; 0: as many as budget_mib allows, "
        "or a third of the sequence where that is 0.",
        base::at_least(0)},
       {"head_slice", &O::head_slice, "With mode = stream: tokens whose logits exist at a time. 0: all.", base::at_least(0)},
       {"except_last", &O::except_last,
        "The last micro-batch of a step keeps everything: where its backward follows at once (gpipe, or no pipeline), nothing else is kept "
        "then."},
       {"inputs", &O::inputs,
        "Where the inputs of recomputed blocks wait: device; host: in host memory (activation offload), fetched one block ahead of their "
        "use, beside what a GPU computes.",
        kRecomputeInputsNames},
       {"overlap", &O::overlap,
        "With mesh.pp above 1, what a stage recomputes while it waits for the gradient of the next stage: first: what backward needs "
        "first, which takes no more memory (with mode = stage, all of it); all: every block of the stage; none: nothing before the "
        "gradient has arrived.",
        kRecomputeOverlapNames}}};
}

int64_t slice_tokens(const RecomputeOptions& options, int64_t length) {
  if (options.mode != RecomputeMode::stream) return 0;
  return options.slice > 0 ? options.slice : std::max<int64_t>(1, (length + 2) / 3);
}

int64_t head_slice_tokens(const RecomputeOptions& options) { return options.mode == RecomputeMode::stream ? options.head_slice : 0; }

base::Schema<TensorOptions> tensor_schema() {
  using O = TensorOptions;
  return {
      "tensor",
      "How ranks along tp work together.",
      {{"overlap",
        &O::overlap,
        "Layers compute with the tokens they have while the next ones are in flight (asynchronous tensor parallelism): for links that take "
        "as long as the products do.",
        {},
        {"enable_async_tensor_parallel"}},
       {"overlap_residual_sums",
        &O::overlap_residual_sums,
        "With model.residual = \"ladder\": sums over ranks are in flight while the next block computes. false: each is waited for; the "
        "results are bitwise identical.",
        base::any(),
        {},
        {"late_sums"}}}};
}

base::Section place_section() {
  return {kPlaceTable,
          "Where parameters lie along tp, in place of what their blocks would choose: one key for each pattern of names, in quotes.",
          {{.key = "\"PATTERN\"",
            .default_value = std::string(),
            .help = "B: replicated; S(0), S(1), ...: split along this dim. * in the pattern stands for anything: \"*.mlp.*\" = \"B\". A "
                    "parameter that two patterns place differently is refused. Blocks with such parameters run on DTensors.",
            .check = {},
            .aliases = {}}}};
}

base::Schema<ContextOptions> context_schema() {
  using O = ContextOptions;
  return {"context",
          "How ranks along cp see each other's keys.",
          {{"form", &O::form,
            "ring: keys and values go round. ring_both_ways: half of them in either direction. gather: they are gathered. ulysses: heads "
            "are exchanged for positions. token_ring: queries go round, and outputs return in the other direction. Products: "
            "\"ulysses:2,ring:4\". auto: what is fastest on these links, by prediction."},
           {"balanced", &O::balanced,
            "Each rank takes a chunk from the front of the sequence and its counterpart from the end, so that all have the same work."},
           {"plan", &O::plan,
            "How many ranks work on a sequence: mesh.cp (fixed), or what a plan for each step gives it (bytescale, flexsp: with "
            "data.packing = sequences).",
            kContextPlanNames},
           {"tokens_per_rank", &O::tokens_per_rank, "Tokens that one rank can hold in a pass; for plans of each step.", base::at_least(0)},
           {"linear", &O::linear,
            "Linear attention: states pass along the ranks in pipelined blocks behind other work (zeco), rank after rank (lasp1), or are "
            "gathered (lasp2).",
            kLinearFormNames},
           {"scan_blocks", &O::scan_blocks, "zeco: pipelined blocks of a state; 0: by the latency and bandwidth of the links.",
            base::between(0, 4096)},
           {"state_dtype", &O::state_dtype,
            "In what states of linear attention travel: fp32, or bf16 (half the bytes; rounds once for each rank, which is logged).",
            kStateDtypeNames}}};
}

base::Schema<ExpertLayoutOptions> expert_layout_schema() {
  using O = ExpertLayoutOptions;
  return {"expert",
          "How ranks along ep share the experts of a model.",
          {{"placement", &O::placement,
            "ep: each expert lies on one rank along ep, as evenly as possible, and tokens travel to it. fssdp: busy experts are copied to "
            "more ranks for one step (Hecate).",
            kExpertPlacementNames},
           {"dispatch", &O::dispatch,
            "The way of tokens to their experts: from rank to rank (flat), first inside a machine and then between machines "
            "(hierarchical), or whichever the links make faster, decided for each message from the counts of all ranks (auto).",
            kExpertDispatchNames},
           {"node_ranks", &O::node_ranks,
            "So many neighbouring ranks along ep share a machine, for the hierarchical way; 0 or 1: there are no machines to go by.",
            base::at_least(0)},
           {"window", &O::window, "fssdp: the load of an expert is that of so many past steps.", base::between(1, 1000)},
           {"memory_slots", &O::memory_slots, "fssdp: copies that a rank holds at once, of each layer.", base::at_least(0)},
           {"overlap_degree", &O::overlap_degree,
            "fssdp: so many of the busiest experts of a layer are copied; 0: those with more tokens than the mean.", base::at_least(0)},
           {"calibrate", &O::calibrate,
            "fssdp: once a layer's router has decided, its copies are planned again from the true counts, and more are sent where that "
            "saves more time than they take."},
           {"reshard_every", &O::reshard_every,
            "fssdp: after so many steps experts get new homes by their load, with optimizer state; 0: they stay where they are.",
            base::at_least(0)},
           {"rematerialize", &O::rematerialize,
            "fssdp: copies are dropped after a layer's forward pass and sent again for its backward pass: those of one layer at a time."},
           {"compress", &O::compress,
            "What travels to experts in training, and back: rows as they are (none), or centroids of similar rows, to which each row's "
            "difference is added at home (lsh: LSH-MoE). lsh changes results.",
            kExpertCompressNames},
           {"hashes", &O::hashes, "lsh: rows with equal keys of so many hashes share a centroid; more hashes compress less.",
            base::between(1, 16)},
           {"hash_dim", &O::hash_dim, "lsh: dims of each hash. A key has hashes times the bits of twice this, at most 64.",
            base::at_least(1)},
           {"residual", &O::residual,
            "lsh: adds a row's difference from its centroid to the result, as published. Where a norm comes before the experts, as in "
            "all four families, more is learned without it."}}};
}

}  // namespace cairn::parallel
