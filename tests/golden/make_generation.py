"""Makes tests/golden/folders/NAME/generated.json: what `transformers` generates greedily with the models of
make_folders.py, in float32, each prompt by itself.

    python3 tests/golden/make_generation.py [FOLDER [NAME...]]

Made with torch 2.6.0 and transformers 4.57.1 from PyPI; neither the product nor its tests need them. Keys:

    prompts          lists of token ids, of different lengths
    continuations    of each prompt, without it, after NUM_TOKENS tokens
    end_tokens       two of the tokens that occur in the continuations
    ended            the continuations where each of end_tokens ends a sequence; the end token is left out
    margin           the smallest difference of the two largest logits on the way
"""

import json
import pathlib
import sys

import torch
import transformers

NUM_TOKENS = 16
PROMPT_SIZES = [1, 12, 5]


def generate(model, prompt, end_tokens):
    out = model.generate(
        input_ids=torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt), dtype=torch.long), do_sample=False,
        max_new_tokens=NUM_TOKENS, eos_token_id=end_tokens, pad_token_id=0, return_dict_in_generate=True,
        output_logits=True)
    top = torch.stack([step[0].topk(2).values for step in out.logits])
    return out.sequences[0, len(prompt):].tolist(), (top[:, 0] - top[:, 1]).min().item()


def make(folder, seed):
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    generator = torch.Generator().manual_seed(seed)
    prompts = [torch.randint(0, model.config.vocab_size, (size,), generator=generator).tolist()
               for size in PROMPT_SIZES]
    results = [generate(model, prompt, None) for prompt in prompts]
    continuations = [ids for ids, _ in results]
    end_tokens = [continuations[1][6], continuations[2][9]]
    ended = []
    for prompt in prompts:
        ids, _ = generate(model, prompt, end_tokens)
        ended.append(ids[:-1] if ids[-1] in end_tokens else ids)
    margin = min(margin for _, margin in results)
    result = dict(prompts=prompts, continuations=continuations, end_tokens=end_tokens, ended=ended,
                  margin=round(margin, 6))
    (folder / "generated.json").write_text(json.dumps(result) + "\n")
    return margin


def main():
    root = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "folders")
    print(f"torch {torch.__version__}, transformers {transformers.__version__}")
    named = sys.argv[2:]
    for seed, folder in enumerate(sorted(path for path in root.iterdir() if path.is_dir())):
        if named and folder.name not in named:
            continue
        print(f"{folder.name}: smallest margin {make(folder, seed):.6f}")


if __name__ == "__main__":
    main()
