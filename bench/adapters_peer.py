"""The peer of `cairn bench adapters`: LoRA by peft on the same model directory, with the same batch, optimizer and threads.

Prints one JSON object: the seconds of each step.
"""
import json
import sys
import time

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM

settings = json.loads(sys.argv[1])
torch.set_num_threads(settings["threads"])
torch.manual_seed(1)
model = AutoModelForCausalLM.from_pretrained(settings["folder"], torch_dtype=torch.float32)
targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
model = get_peft_model(model, LoraConfig(r=settings["rank"], lora_alpha=16, lora_dropout=0.0, target_modules=targets, task_type="CAUSAL_LM"))
model.train()
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.1)
vocabulary = model.config.vocab_size
seconds = []
for _ in range(settings["steps"]):
    ids = torch.randint(0, vocabulary, (settings["batch"], settings["length"]))
    began = time.perf_counter()
    loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_([p for p in model.parameters() if p.requires_grad], 1.0)
    optimizer.step()
    optimizer.zero_grad()
    seconds.append(time.perf_counter() - began)
print(json.dumps({"seconds": seconds}))
