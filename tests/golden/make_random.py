"""Makes tests/golden/random_models.json: random small models of each family, and the logits that `transformers` computes.

    python3 tests/golden/make_random.py [FILE]

Made with transformers 5.24.0 and torch 2.15.0 from PyPI; neither the product nor its tests need them. Each model is a
config.json with fields taken at random, among them fields that the program does not support, and tensors by name:

    {"config": …, "tensors": {NAME: [TYPE, SHAPE, SEED]}, "tokens": [...], "logits": [...] or "error": …}

The logits are those of the last positions.

Weights are not stored: element i of a tensor comes from its seed by `numbers`, and folders_test.cc has the same function.
"""

import json
import pathlib
import random
import sys
import tempfile
import zlib

import numpy
import safetensors.torch
import torch
import transformers

VOCABULARY, HIDDEN, INNER, LAYERS, POSITIONS, TOKENS = 13, 16, 24, 3, 16, 11
COMPARED = 4  # last positions whose logits are stored
TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
MODELS = 22  # of each family
ARCHITECTURES = dict(gpt2="GPT2LMHeadModel", gpt_neox="GPTNeoXForCausalLM", llama="LlamaForCausalLM",
                     mistral="MistralForCausalLM", ministral="MinistralForCausalLM", qwen2="Qwen2ForCausalLM",
                     qwen3="Qwen3ForCausalLM")


def numbers(seed, count):
    """Multiples of 1/256 in [-1/4, 1/4)."""
    x = (seed + numpy.arange(count, dtype=numpy.uint64) * 2654435761) % 2**32
    x = ((x ^ (x >> 16)) * 0x45D9F3B) % 2**32
    x = ((x ^ (x >> 16)) * 0x45D9F3B) % 2**32
    x ^= x >> 16
    return (x % 128).astype(numpy.float32) / 256 - 0.25


def rope(rng, part):
    """A scaling, and what may stand beside it."""
    kind = rng.choice(["default", "linear", "llama3", "yarn", "yarn", "yarn", "dynamic", "longrope"])
    section = {rng.choice(["type", "rope_type"]): kind}
    beside = {}
    if kind != "default":
        section["factor"] = rng.choice([1.0, 2, 4.0, 4.0, 0.5])
    if kind in ("llama3", "yarn"):
        where = rng.choice([section, section, beside, {}])
        where["original_max_position_embeddings"] = rng.choice([4, 8])
    if kind == "llama3":
        section.update(low_freq_factor=rng.choice([1.0, 1.5]), high_freq_factor=rng.choice([4.0, 2]))
    if kind == "yarn":
        for name, values in dict(beta_fast=[32, 4.0, 0], beta_slow=[1, 0.5, None], attention_factor=[1.25, None],
                                 mscale=[1.0, 0.7, 0], mscale_all_dim=[1.0, 1.0, 0.5], truncate=[True, False]).items():
            if rng.random() < 0.4:
                section[name] = rng.choice(values)
    if kind == "longrope":
        section.update(short_factor=[1.0] * 2, long_factor=[2.0] * 2, original_max_position_embeddings=8)
    if part and rng.random() < 0.5:
        section["partial_rotary_factor"] = part
    return section, beside


def windows(rng, family):
    fields = {}
    if rng.random() < 0.6:
        fields["sliding_window"] = rng.choice([1, 3, 5, None, 40])
    if family in ("qwen2", "qwen3"):
        if rng.random() < 0.8:
            fields["use_sliding_window"] = rng.random() < 0.75
        if rng.random() < 0.6:
            fields["max_window_layers"] = rng.choice([0, 1, 2, 3, 28])
    if rng.random() < 0.5:
        fields["layer_types"] = [rng.choice(["full_attention", "sliding_attention"]) for _ in range(LAYERS)]
    return fields


def gpt2(rng):
    fields = dict(n_embd=HIDDEN, n_layer=LAYERS, n_head=rng.choice([2, 4]), n_positions=POSITIONS)
    choices = dict(n_inner=[None, 24], activation_function=["gelu", "gelu_new", "gelu_python", "gelu_accurate", "relu",
                                                            "gelu_pytorch_tanh", "quick_gelu"],
                   scale_attn_weights=[True, True, True, False], scale_attn_by_inverse_layer_idx=[False, False, True],
                   reorder_and_upcast_attn=[True, False], layer_norm_epsilon=[1e-5, 1e-3],
                   tie_word_embeddings=[True, True, False], hidden_size=[HIDDEN, HIDDEN, 8], n_ctx=[8], num_labels=[3])
    return fields, choices


def neox(rng):
    fields = dict(hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=rng.choice([2, 4]),
                  intermediate_size=INNER, max_position_embeddings=POSITIONS)
    choices = dict(rotary_pct=[0.5, 1.0], rotary_emb_base=[1000, 5e5], use_parallel_residual=[True, False],
                   attention_bias=[True, True, False], hidden_act=["gelu", "gelu_fast", "gelu_python", "silu"],
                   tie_word_embeddings=[True, False], layer_norm_eps=[1e-3], rope_theta=[10000, 500], head_dim=[8],
                   partial_rotary_factor=[0.5, 0.25])
    return fields, choices


def llama_like(rng, family):
    heads = rng.choice([2, 4])
    fields = dict(hidden_size=HIDDEN, num_hidden_layers=LAYERS, num_attention_heads=heads, intermediate_size=INNER,
                  max_position_embeddings=POSITIONS, num_key_value_heads=rng.choice([heads, heads // 2, 1]),
                  head_dim=rng.choice([HIDDEN // heads, HIDDEN // heads, 6]))
    choices = dict(rms_norm_eps=[1e-6, 1e-3], hidden_act=["silu", "swish", "silu", "gelu"], rope_theta=[1000, 5e5],
                   tie_word_embeddings=[True, False, True], attention_dropout=[0.1], partial_rotary_factor=[1.0, 0.5])
    if family == "llama":
        choices.update(attention_bias=[True, False], mlp_bias=[True, False], pretraining_tp=[1, 2, 4])
    if family == "qwen3":
        choices.update(attention_bias=[True, False])
    if family in ("qwen2", "mistral"):
        choices.update(attention_bias=[True], use_mrope=[False])
    return fields, choices


def config_of(rng, family):
    fields = {"architectures": [ARCHITECTURES[family]], "model_type": family, "vocab_size": VOCABULARY,
              "bos_token_id": None, "eos_token_id": None}
    more, choices = gpt2(rng) if family == "gpt2" else neox(rng) if family == "gpt_neox" else llama_like(rng, family)
    fields.update(more)
    for name, values in choices.items():
        if rng.random() < 0.3:
            fields[name] = rng.choice(values)
    if family not in ("gpt2", "gpt_neox", "llama") or rng.random() < 0.1:
        fields.update(windows(rng, family))
    if family != "gpt2" and rng.random() < 0.6:
        section, beside = rope(rng, fields.get("rotary_pct", 0.25) if family == "gpt_neox" else None)
        fields.update(beside)
        if rng.random() < 0.5:
            fields["rope_scaling"] = section
        else:
            if rng.random() < 0.5:
                section["rope_theta"] = fields.pop("rope_theta", 2000.0)
            fields["rope_parameters"] = section
    if rng.random() < 0.1:
        fields["logit_scale"] = 2.0
    return fields


def tensors_of(rng, config):
    """Names, types and shapes as the library itself would save them, with some heads and types changed."""
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        model = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    state = {name: list(tensor.shape) for name, tensor in model.state_dict().items()}
    head = "embed_out.weight" if "embed_out.weight" in state else "lm_head.weight"
    embedding = next(name for name, shape in state.items() if shape == [VOCABULARY, HIDDEN] and name != head)
    seeds = {name: zlib.crc32(name.encode()) for name in state}
    if model.config.tie_word_embeddings:
        kind = rng.choice(["none", "none", "equal", "other"])
        if kind == "none":
            del state[head]
        elif kind == "equal":
            seeds[head] = seeds[embedding]
    kind = rng.choice(["F32", "BF16", "F16", "mixed"])
    types = {name: kind if kind != "mixed" else rng.choice(list(TYPES)) for name in state}
    return {name: [types[name], shape, seeds[name]] for name, shape in state.items()}


def values_of(name, type, shape, seed):
    values = torch.from_numpy(numbers(seed, int(numpy.prod(shape)))).reshape(shape)
    is_norm = len(shape) == 1 and name.endswith("weight")
    return (values + 1 if is_norm else values).to(TYPES[type])


def logits_of(config, tensors, tokens):
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config))
        weights = {name: values_of(name, *rest) for name, rest in tensors.items()}
        safetensors.torch.save_file(weights, pathlib.Path(folder) / "model.safetensors", metadata={"format": "pt"})
        model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32,
                                                                  attn_implementation="eager").eval()
        with torch.no_grad():
            return model(input_ids=torch.tensor([tokens]), use_cache=False).logits[0]


def main():
    file = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "random_models.json")
    transformers.logging.set_verbosity_error()
    rng = random.Random(7)
    lines, failed = [], 0
    for family in ARCHITECTURES:
        for _ in range(MODELS):
            config = config_of(rng, family)
            model = {"config": config, "tokens": [rng.randrange(VOCABULARY) for _ in range(TOKENS)], "tensors": {}}
            try:
                model["tensors"] = tensors_of(rng, config)
                logits = logits_of(config, model["tensors"], model["tokens"])
                if not torch.isfinite(logits).all():
                    raise ValueError("logits are not finite")
                model["logits"] = [float(f"{value:.7g}") for value in logits[-COMPARED:].flatten().tolist()]
            except Exception as error:  # whatever the library refuses is one of the outcomes
                model["error"] = f"{type(error).__name__}: {error}".split("\n")[0][:100]
                failed += 1
            lines.append(json.dumps(model, separators=(",", ":")))
    file.write_text("[\n" + ",\n".join(lines) + "\n]\n")
    print(f"transformers {transformers.__version__}: {len(lines)} models, {failed} of them refused")


if __name__ == "__main__":
    main()
