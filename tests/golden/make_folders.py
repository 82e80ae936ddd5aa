"""Makes tests/golden/folders: tiny random models of each architecture as Hugging Face folders, and what `transformers`
computes with them.

    python3 tests/golden/make_folders.py [FOLDER [NAME...]]

Made with torch 2.6.0 and transformers 4.57.1 from PyPI, ministral and those named *-layers with torch 2.15.0 and
transformers 4.57.6; neither the product nor its tests need them. For each model, or those that are named:

    NAME/config.json, NAME/model.safetensors   as `save_pretrained` writes them; one model has several files
    NAME/gradients/                            the same for the loss's gradient of every parameter, in F32
    NAME/expected.safetensors                  tokens I32 [batch, sequence + 1]: token t + 1 is the target of token t
                                               logits F32 [batch, sequence, vocabulary], loss F32 [1]: the mean, in nats

The weights are numbers of the type in which they are stored; everything is computed in float32.
"""

import pathlib
import shutil
import sys

import safetensors.torch
import torch
import transformers

BATCH, SEQUENCE, VOCABULARY, HIDDEN, INNER = 2, 17, 50, 24, 40
SIZES = dict(vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=2,
             max_position_embeddings=32, bos_token_id=None, eos_token_id=None)
LLAMA3 = dict(rope_type="llama3", factor=4.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=8)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=8)


def models():
    """Name: configuration, type of the stored weights, most bytes of a file."""
    t = transformers
    heads = dict(num_attention_heads=4, num_key_value_heads=2)
    return {
        "gpt2": (t.GPT2Config(vocab_size=VOCABULARY, n_embd=HIDDEN, n_layer=2, n_head=4, n_positions=32, n_inner=INNER,
                              bos_token_id=None, eos_token_id=None), torch.float32, "5GB"),
        "pythia": (t.GPTNeoXConfig(**SIZES, num_attention_heads=3, rotary_pct=0.25, tie_word_embeddings=False),
                   torch.float16, "5GB"),
        "neox-serial": (t.GPTNeoXConfig(**SIZES, num_attention_heads=2, rotary_pct=0.5, use_parallel_residual=False,
                                        hidden_act="gelu_new"), torch.float32, "5GB"),
        "llama2": (t.LlamaConfig(**SIZES, num_attention_heads=4, rms_norm_eps=1e-5), torch.float16, "6KB"),
        "llama3": (t.LlamaConfig(**SIZES, **heads, rope_theta=5e5, rope_scaling=LLAMA3, tie_word_embeddings=True),
                   torch.bfloat16, "5GB"),
        "llama-linear": (t.LlamaConfig(**SIZES, **heads, rope_scaling=dict(rope_type="linear", factor=3.0),
                                       attention_bias=True, mlp_bias=True), torch.float32, "5GB"),
        "mistral": (t.MistralConfig(**SIZES, num_attention_heads=4, num_key_value_heads=1, sliding_window=5),
                    torch.bfloat16, "5GB"),
        "mistral-nemo": (t.MistralConfig(**SIZES, **heads, head_dim=10, sliding_window=None), torch.bfloat16, "5GB"),
        "qwen2": (t.Qwen2Config(**SIZES, **heads, tie_word_embeddings=True), torch.bfloat16, "5GB"),
        "qwen2-window": (t.Qwen2Config(**SIZES, **heads, use_sliding_window=True, sliding_window=6,
                                       max_window_layers=0), torch.bfloat16, "5GB"),
        "qwen3": (t.Qwen3Config(**SIZES, **heads, head_dim=8, rope_scaling=YARN), torch.bfloat16, "5GB"),
        "ministral": (t.MinistralConfig(**SIZES, **heads, head_dim=8, sliding_window=5,
                                        layer_types=["full_attention", "sliding_attention"]), torch.bfloat16, "5GB"),
        "qwen2-layers": (t.Qwen2Config(**SIZES, **heads, use_sliding_window=True, sliding_window=4,
                                       max_window_layers=28, layer_types=["sliding_attention", "full_attention"]),
                         torch.float16, "5GB"),
        "qwen3-layers": (t.Qwen3Config(**SIZES, **heads, head_dim=8, use_sliding_window=True, sliding_window=3,
                                       max_window_layers=1, rope_scaling=dict(YARN, truncate=False)),
                         torch.float32, "5GB"),
    }


def fill(model, generator, dtype):
    """Weights that make every part matter."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter.dim() > 1:
            value = 0.2 * noise
        elif name.endswith("bias"):
            value = 0.1 * noise
        else:
            value = 1 + 0.2 * noise
        parameter.data.copy_(value.to(dtype).float())


def make(folder, config, dtype, file_bytes, seed):
    config._attn_implementation = "eager"
    generator = torch.Generator().manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    fill(model, generator, dtype)
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE + 1), generator=generator)
    logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
    loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
    loss.backward()
    expected = {"tokens": tokens.int(), "logits": logits.detach().contiguous(), "loss": loss.detach().reshape(1)}
    gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
    model.to(dtype).save_pretrained(folder, max_shard_size=file_bytes)
    (folder / "generation_config.json").unlink(missing_ok=True)
    (folder / "gradients").mkdir()
    shutil.copy(folder / "config.json", folder / "gradients")
    safetensors.torch.save_file(gradients, folder / "gradients" / "model.safetensors", metadata={"format": "pt"})
    safetensors.torch.save_file(expected, folder / "expected.safetensors")
    return loss.item()


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "folders")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    for seed, (name, (config, dtype, file_bytes)) in enumerate(models().items()):
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True)
        print(f"{name}: loss {make(root / name, config, dtype, file_bytes, seed):.9f}")


if __name__ == "__main__":
    main()
