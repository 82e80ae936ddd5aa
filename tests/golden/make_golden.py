"""Makes the golden files of this folder: toy models of four families with random weights, computed in float64.

    python3 tests/golden/make_golden.py [FOLDER]

Needs torch, transformers and safetensors; neither the product nor its tests need them. Every file FAMILY.safetensors
holds, in Hugging Face's names,

    weight/NAME    F32, the model's parameters (the computation sees exactly these values, as float64)
    gradient/NAME  F64, of the loss
    tokens         I32 [batch, sequence + 1]: token t + 1 is the target of token t
    loss           F64 [1]: mean negative log likelihood, in nats

The models are those of transformers with eager attention. Some of their parts (norms, softmax, rotary angles) compute
in float32 whatever the model's type is; here every such cast goes to float64, and the run fails if a float32 tensor is
made on the way.
"""

import pathlib
import sys

import safetensors.torch
import torch
import transformers
from torch.utils._python_dispatch import TorchDispatchMode

BATCH, SEQUENCE, VOCABULARY, HIDDEN, INNER = 2, 17, 64, 32, 64
SIZES = dict(vocab_size=VOCABULARY, hidden_size=HIDDEN, num_hidden_layers=2, max_position_embeddings=32)


def configurations():
    return {
        "gpt2": transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=HIDDEN, n_layer=2, n_head=4, n_inner=INNER, n_positions=32),
        "neox": transformers.GPTNeoXConfig(
            **SIZES, num_attention_heads=2, intermediate_size=INNER, rotary_pct=0.25, use_parallel_residual=True,
            hidden_act="gelu", tie_word_embeddings=False),
        "llama": transformers.LlamaConfig(
            **SIZES, num_attention_heads=4, num_key_value_heads=2, intermediate_size=INNER, rms_norm_eps=1e-5),
        "mistral": transformers.MistralConfig(
            **SIZES, num_attention_heads=4, num_key_value_heads=1, intermediate_size=INNER, rms_norm_eps=1e-5,
            sliding_window=5, tie_word_embeddings=False),
    }


class NoFloat32(TorchDispatchMode):
    """Refuses every operation that makes a float32 tensor."""

    SINGLE = torch.float32

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, (tuple, list)) else (out,):
            if isinstance(tensor, torch.Tensor) and tensor.dtype == self.SINGLE:
                raise RuntimeError(f"{func} made a float32 tensor")
        return out


def fill(model, generator):
    """Weights that make every part matter; each is a float32 number."""
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if parameter.dim() > 1:
            value = 0.2 * noise
        elif name.endswith("bias"):
            value = 0.1 * noise
        else:
            value = 1 + 0.2 * noise
        parameter.data.copy_(value.to(NoFloat32.SINGLE).double())


def make(config, seed):
    config._attn_implementation = "eager"
    generator = torch.Generator().manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()
    fill(model, generator)
    tokens = torch.randint(0, VOCABULARY, (BATCH, SEQUENCE + 1), generator=generator)
    with NoFloat32():
        logits = model(input_ids=tokens[:, :-1], use_cache=False).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))
        loss.backward()
    tensors = {"tokens": tokens.int(), "loss": loss.detach().reshape(1)}
    for name, parameter in model.named_parameters():
        tensors["weight/" + name] = parameter.detach().to(NoFloat32.SINGLE).contiguous()
        tensors["gradient/" + name] = parameter.grad.contiguous()
    return tensors


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent)
    # One entry: the order of several would differ from run to run.
    made_with = {"made_with": f"torch {torch.__version__}, transformers {transformers.__version__}"}
    models = configurations()
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    torch.set_default_dtype(torch.float64)
    for seed, (family, config) in enumerate(models.items()):
        tensors = make(config, seed)
        safetensors.torch.save_file(tensors, folder / f"{family}.safetensors", metadata=made_with)
        print(f"{family}: loss {tensors['loss'].item():.12f}, {len(tensors)} tensors")


if __name__ == "__main__":
    main()
