"""Greedy decoding by another program on a directory that Cairn wrote: seconds per token and the tokens, as JSON.

Argument: a JSON object with kind ("llama.cpp" or "transformers"), directory, scratch, threads, prompt (ids), tokens, length.
Time runs from the first answered token to the last, so that loading and reading the prompt are left out.
"""

import json
import os
import sys
import time


def write_gguf(directory, path):
    """The fp32 weights of a Llama as llama.cpp wants them: heads in its own rotary order, and a vocabulary of made-up words."""
    import gguf
    import numpy
    from safetensors.numpy import load_file

    config = json.load(open(os.path.join(directory, "config.json")))
    tensors = load_file(os.path.join(directory, "model.safetensors"))
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    head_dim, vocab = config["head_dim"], config["vocab_size"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_key_length(head_dim)
    writer.add_value_length(head_dim)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_vocab_size(vocab)
    writer.add_file_type(gguf.LlamaFileType.ALL_F32)
    words = ["<unk>", "<s>", "</s>"] + [f"w{i}" for i in range(3, vocab)]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL] + [gguf.TokenType.NORMAL] * (vocab - 3)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(words)
    writer.add_token_scores([-float(i) for i in range(vocab)])
    writer.add_token_types(kinds)

    def turned(weight, count):  # from "rotate half" to neighbouring pairs
        return numpy.ascontiguousarray(weight.reshape(count, 2, head_dim // 2, -1).swapaxes(1, 2).reshape(weight.shape))

    names = {"input_layernorm": "attn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
             "self_attn.o_proj": "attn_output", "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "ffn_gate",
             "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down"}
    writer.add_tensor("token_embd.weight", tensors["model.embed_tokens.weight"])
    for layer in range(config["num_hidden_layers"]):
        for ours, theirs in names.items():
            weight = tensors[f"model.layers.{layer}.{ours}.weight"]
            if theirs in ("attn_q", "attn_k"):
                weight = turned(weight, heads if theirs == "attn_q" else kv_heads)
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", weight)
    writer.add_tensor("output_norm.weight", tensors["model.norm.weight"])
    if "lm_head.weight" in tensors:
        writer.add_tensor("output.weight", tensors["lm_head.weight"])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def by_llama_cpp(s):
    import xllamacpp

    path = os.path.join(s["scratch"], "model.gguf")
    write_gguf(s["directory"], path)
    params = xllamacpp.CommonParams()
    params.model.path = path
    params.n_ctx = s["length"]
    params.n_parallel = 1
    params.cpuparams.n_threads = s["threads"]
    params.cpuparams_batch.n_threads = s["threads"]
    params.cache_type_k = xllamacpp.ggml_type.GGML_TYPE_F32
    params.cache_type_v = xllamacpp.ggml_type.GGML_TYPE_F32
    server = xllamacpp.Server(params)
    answer = server.handle_completions({"prompt": s["prompt"], "n_predict": s["tokens"], "temperature": 0, "samplers": ["top_k"], "top_k": 1,
                                        "ignore_eos": True, "cache_prompt": False})
    timings = answer["timings"]
    ids = [int(word) for word in answer["choices"][0]["text"].replace("w", " ").split()]
    return {"seconds_per_token": timings["predicted_ms"] / 1000 / (timings["predicted_n"] - 1), "ids": ids,
            "version": getattr(xllamacpp, "__version__", "")}


def by_transformers(s):
    import torch
    import transformers

    torch.set_num_threads(s["threads"])
    model = transformers.AutoModelForCausalLM.from_pretrained(s["directory"], dtype=torch.float32).eval()
    times = []

    class Watch(transformers.StoppingCriteria):
        def __call__(self, ids, scores, **_):
            times.append(time.perf_counter())
            return torch.zeros(ids.shape[0], dtype=torch.bool)

    prompt = torch.tensor([s["prompt"]])
    with torch.inference_mode():
        ids = model.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=s["tokens"], min_new_tokens=s["tokens"],
                             do_sample=False, pad_token_id=0, stopping_criteria=transformers.StoppingCriteriaList([Watch()]))
    return {"seconds_per_token": (times[-1] - times[0]) / (len(times) - 1), "ids": ids[0, len(s["prompt"]):].tolist(),
            "version": transformers.__version__}


settings = json.loads(sys.argv[1])
result = by_llama_cpp(settings) if settings["kind"] == "llama.cpp" else by_transformers(settings)
print("result " + json.dumps(result))
