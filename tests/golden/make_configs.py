"""Makes tests/golden/configs: config.json and generation_config.json as `transformers` itself writes them.

    python3 tests/golden/make_configs.py [FOLDER]

Run it once with transformers 4 and once with 5 (made with 4.57.6 and 5.24.0 from PyPI; torch 2.15.0); neither the product
nor its tests need them. For each family and each set of options there is what `save_pretrained` writes, the same with
every field, defaults among them, and a generation_config.json:

    vMAJOR.json    {NAME: {"config": …, "all": …, "generation": …}}
"""

import json
import pathlib
import sys

import transformers

SIZES = dict(vocab_size=50, hidden_size=24, intermediate_size=40, num_hidden_layers=3, num_attention_heads=4,
             max_position_embeddings=32)
LLAMA3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=8, beta_fast=16.0, beta_slow=2.0)
GPT2 = dict(vocab_size=50, n_embd=24, n_layer=3, n_head=4, n_positions=32)
SAMPLING = dict(do_sample=True, temperature=0.7, top_k=20, top_p=0.8, repetition_penalty=1.05, max_length=99,
                eos_token_id=[2, 3], pad_token_id=4)


def configs():
    t = transformers
    heads = dict(num_key_value_heads=2)
    window = dict(use_sliding_window=True, sliding_window=6, max_window_layers=1)
    yield "gpt2-plain", t.GPT2Config(**GPT2)
    yield "gpt2-options", t.GPT2Config(**GPT2, n_inner=40, activation_function="gelu", reorder_and_upcast_attn=True,
                                       layer_norm_epsilon=1e-6, resid_pdrop=0.0, summary_type="last", num_labels=3)
    yield "neox-plain", t.GPTNeoXConfig(**SIZES)
    yield "neox-options", t.GPTNeoXConfig(**SIZES, rotary_pct=0.5, rotary_emb_base=5e4, use_parallel_residual=False,
                                          hidden_act="gelu_new", attention_bias=False, tie_word_embeddings=True,
                                          rope_scaling=dict(rope_type="linear", factor=2.0))
    yield "llama-plain", t.LlamaConfig(**SIZES)
    yield "llama-options", t.LlamaConfig(**SIZES, **heads, rope_theta=5e5, rope_scaling=LLAMA3, attention_bias=True,
                                         mlp_bias=True, head_dim=8, tie_word_embeddings=True, pretraining_tp=2,
                                         rms_norm_eps=1e-5, attention_dropout=0.1)
    yield "mistral-plain", t.MistralConfig(**SIZES, **heads)
    yield "mistral-options", t.MistralConfig(**SIZES, **heads, head_dim=8, sliding_window=None, rope_theta=1e6)
    yield "ministral-plain", t.MinistralConfig(**SIZES, **heads)
    yield "ministral-options", t.MinistralConfig(
        **SIZES, **heads, sliding_window=4, layer_types=["full_attention", "sliding_attention", "full_attention"])
    yield "qwen2-plain", t.Qwen2Config(**SIZES, **heads)
    yield "qwen2-options", t.Qwen2Config(**SIZES, **heads, **window, rope_theta=1e6, rope_scaling=YARN,
                                         tie_word_embeddings=True)
    yield "qwen3-plain", t.Qwen3Config(**SIZES, **heads)
    yield "qwen3-options", t.Qwen3Config(
        **SIZES, **heads, head_dim=8, attention_bias=True, use_sliding_window=True, sliding_window=5,
        layer_types=["sliding_attention", "full_attention", "sliding_attention"])


ARCHITECTURES = dict(gpt2="GPT2LMHeadModel", neox="GPTNeoXForCausalLM", llama="LlamaForCausalLM",
                     mistral="MistralForCausalLM", ministral="MinistralForCausalLM", qwen2="Qwen2ForCausalLM",
                     qwen3="Qwen3ForCausalLM")


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "configs")
    root.mkdir(parents=True, exist_ok=True)
    models = {}
    for name, config in configs():
        config.architectures = [ARCHITECTURES[name.split("-")[0]]]
        config.dtype = "bfloat16"
        generation = transformers.GenerationConfig.from_model_config(config)
        if name.endswith("options"):
            generation = transformers.GenerationConfig(**SAMPLING)
        models[name] = {"config": json.loads(config.to_json_string()),
                        "all": json.loads(config.to_json_string(use_diff=False)),
                        "generation": json.loads(generation.to_json_string())}
    lines = [f" {json.dumps(name)}: {json.dumps(texts)}" for name, texts in models.items()]
    major = transformers.__version__.split(".")[0]
    (root / f"v{major}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"transformers {transformers.__version__}: {len(models)} models")


if __name__ == "__main__":
    main()
