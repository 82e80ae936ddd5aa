#!/usr/bin/env python3
"""Writes tests/fuzz/corpus: small inputs to begin from, named by what they are. Run it from the repository's root
after a change of a message; inputs that a fuzzer found (crash-*) are left where they are. Needs protoc."""

import gzip
import hashlib
import json
import pathlib
import struct
import subprocess

ROOT = pathlib.Path("tests/fuzz/corpus")


def write(target, name, data):
    folder = ROOT / target
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_bytes(data if isinstance(data, bytes) else data.encode())


def encode(message, proto, text):
    command = ["protoc", "-I.", f"--encode={message}", proto]
    return subprocess.run(command, input=text.encode(), stdout=subprocess.PIPE, check=True).stdout


def frames(*payloads):
    return b"".join(struct.pack("<I", len(payload)) + payload for payload in payloads)


# --- job files ----------------------------------------------------------------------------------------------------------

SMALL = """name: small
model:
  hidden_size: 64
  num_hidden_layers: 2
  num_attention_heads: 4
data:
  files: [/text]
train:
  steps: 10
  seq_length: 32
  global_batch_size: 8
  micro_batch_size: 2
"""


def job_files():
    for example in sorted(pathlib.Path("examples").glob("*.yaml")):
        write("job_file", f"example-{example.stem}", example.read_text())
    full = SMALL + """optimizer: {lr: 2e-3, min_lr: 1e-4, warmup_steps: 3, clip_grad: 1.0, weight_decay: 0}
parallel: {data_parallel_size: 2, pipeline_model_parallel_size: 2}
checkpoint: {interval: 5, keep: 3, directory: /c}
fault: {heartbeat_interval: 500ms, heartbeat_timeout: 1m30s, max_restarts_without_progress: 2}
"""
    cases = {
        "small": SMALL,
        "full": full,
        "empty": "",
        "misspelt": SMALL.replace("hidden_size", "hiden_size"),
        "negative": SMALL.replace("64", "-64"),
        "float": SMALL.replace("64", "0.5"),
        "huge": SMALL.replace("64", "9223372036854775807"),
        "not-a-number": SMALL.replace("64", "nan"),
        "twice": SMALL + "name: again\n",
        "null": SMALL.replace("small", "~"),
        "list": SMALL.replace("64", "[64]"),
        "map": SMALL.replace("64", "{a: b}"),
        "bomb": "a: &a [x, x]\nb: &b [*a, *a]\nc: [*b, *b]\n",
        "self": "data: &d\n  files: *d\n",
        "anchor": "name: &n small\ncheckpoint: {directory: *n}\n",
        "merge": "model: &m {hidden_size: 1}\ntrain:\n  <<: *m\n",
        "deep": "[" * 600,
        "documents": "name: a\n---\nname: b\n",
        "comma": ",",
        "tab": "model:\n\thidden_size: 64\n",
        "crlf": SMALL.replace("\n", "\r\n"),
        "bom": "\ufeff" + SMALL,
        "zero": b"name: a\0b\n",
        "latin1": b"name: \xff\n",
        "control": 'name: "a\\e[2J\\u202e"\n',
        "path": SMALL.replace("/text", '"/a\\nb", "/../..", "x"'),
        "hexadecimal": SMALL + "optimizer: {lr: 0x10, eps: 1e-400}\n",
        "durations": SMALL + "fault: {heartbeat_timeout: 9223372036854775807s, start_timeout: -5s}\n",
        "block": "name: |\n  small\nmodel: >\n  x\n",
        "tags": "name: !!binary c21hbGw=\n!!map model: {}\n",
    }
    for name, text in cases.items():
        write("job_file", name, text)


# --- checkpoints --------------------------------------------------------------------------------------------------------

SLICE = {"name": "w", "key": "w", "dtype": "F32", "global_shape": ["8", "4"], "flat_begin": "0", "flat_count": "32"}


# The shard that RunManifest puts beside a manifest.
SHARD_SHA256 = "6638bf879802881e784fd75ecc809d8824f615fc40e29515a2a2f02fcd01ecee"


def tensor_file(record, data_bytes=128, entries=None, **metadata):
    header = entries or {"w": {"dtype": "F32", "shape": [8, 4], "data_offsets": [0, data_bytes]}}
    header["__metadata__"] = {"format": "megascale", "attempt": "1", "step": "100", "next_sample": "800",
                              "shard": json.dumps(record), **metadata}
    text = json.dumps(header).encode()
    text += b" " * (-(len(text) + 8) % 64)
    return struct.pack("<Q", len(text)) + text + bytes(data_bytes)


def manifest(**changes):
    shard = {"file": "rank-00000.safetensors", "rank": 0, "size_bytes": "512", "sha256": SHARD_SHA256, "slices": [SLICE]}
    shard.update(changes.pop("shard", {}))
    shard["slices"] = [dict(SLICE, **changes.pop("slice", {}))]
    return json.dumps({"format_version": 1, "megascale_version": "0", "job_id": "j", "attempt": "1", "step": "100",
                       "next_sample": "800", "shards": [shard], "data": {"total_bytes": "5"},
                       "numerics": {"fields": {"model": "x"}}, **changes})


def small_types():
    """Elements that are no whole bytes, no metadata, and a member that readers do not know."""
    header = json.dumps({"__metadata__": None, "a": {"dtype": "F4", "shape": [4], "data_offsets": [0, 2]},
                         "b": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [2, 4], "more": 1}}).encode()
    return struct.pack("<Q", len(header)) + header + bytes(4)


def checkpoints():
    box = {"box_offset": ["0", "1"], "box_shape": ["8", "2"], "flat_count": "16"}
    rows = {"global_shape": [str(1 << 40), "2"], "box_offset": ["0", "0"], "box_shape": [str(1 << 40), "1"],
            "flat_count": str(1 << 40)}
    part = dict(box, flat_begin="3", flat_count="9")
    manifests = {
        "whole": manifest(), "box": manifest(slice=box), "rows": manifest(slice=rows),
        "part-of-box": manifest(slice=part), "copy": manifest(slice={"replica": 1}),
        "negative-replica": manifest(slice={"replica": -1}),
        "many-dimensions": manifest(slice={"global_shape": ["1"] * 1000, "flat_count": "1"}),
        "newer": manifest(format_version=99), "no-version": manifest(format_version=0),
        "file-above": manifest(shard={"file": "../x"}), "no-file": manifest(shard={"file": "absent"}),
        "negative": manifest(slice={"flat_begin": "-1"}), "beyond": manifest(slice={"flat_count": "33"}),
        "overflow": manifest(slice={"global_shape": [str(1 << 62), "4"]}),
        "zero-times-huge": manifest(slice={"global_shape": ["0", str(1 << 62), str(1 << 62)], "flat_count": "0"}),
        "unknown-type": manifest(slice={"dtype": "F8"}), "no-json": "{", "empty": "", "list": "[]",
        "null": '{"shards": [null]}', "deep": '{"spec":' * 200, "double": manifest(step=1.5),
        "float-limit": manifest(step=1e300), "other-size": manifest(shard={"size_bytes": "-5"}),
    }
    for name, text in manifests.items():
        write("manifest", name, text)
    record = {"rank": 0, "slices": [SLICE]}
    good = tensor_file(record)
    files = {
        "shard": good,
        "box": tensor_file({"rank": 0, "slices": [dict(SLICE, **box)]}, 64,
                           {"w": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}),
        "two-boxes": tensor_file({"rank": 0, "slices": [
            dict(SLICE, key=str(column), box_offset=["0", str(column)], box_shape=["8", "2"], flat_count="16")
            for column in (0, 2)]}, 128,
            {str(column): {"dtype": "F32", "shape": [8, 2], "data_offsets": [column * 32, column * 32 + 64]}
             for column in (0, 2)}),
        "copy": tensor_file({"rank": 1, "slices": [dict(SLICE, replica=1)]}),
        "cut": good[:-1], "long": good + b"x", "empty": b"", "length-only": struct.pack("<Q", 0),
        "huge-length": struct.pack("<Q", (1 << 64) - 1) + good[8:],
        "no-metadata": struct.pack("<Q", 2) + b"{}",
        "twice": struct.pack("<Q", 16) + b'{"a":{},"a":{}} ',
        "absurd-shape": tensor_file(record, 8, {"w": {"dtype": "F32", "shape": [1 << 62, 4], "data_offsets": [0, 8]}}),
        "negative": tensor_file(record, 8, {"w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 8]}}),
        "overlap": tensor_file(record, 8, {"w": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]},
                                           "v": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}),
        "no-number": tensor_file(record, step="x"), "negative-step": tensor_file(record, step="-1"),
        "no-shard": tensor_file(record, shard="{"), "bf16": tensor_file(
            {"rank": 0, "slices": [dict(SLICE, dtype="BF16")]}, 64,
            {"w": {"dtype": "BF16", "shape": [8, 4], "data_offsets": [0, 64]}}),
        "count-overflows": tensor_file({"rank": 0, "slices": [dict(SLICE, global_shape=[str(1 << 62)],
                                                                   flat_count=str(1 << 62))]}),
        "deep": struct.pack("<Q", 4000) + b"[" * 4000, "small-types": small_types(),
    }
    for name, data in files.items():
        write("safetensors", name, data)


# --- messages -----------------------------------------------------------------------------------------------------------


def up(control, text):
    return bytes([control]) + encode("megascale.agent.v1.AgentUp", "proto/agent.proto", text)


def hello(control, **fields):
    values = dict(node=f'"n{control & 1}"', incarnation='"i2"', slots=2, version=5)
    values.update(fields)
    return up(control, "hello { protocol_version: %(version)s node_id: %(node)s incarnation: %(incarnation)s "
                       "num_slots: %(slots)s machine_id: \"m\" instruction_set: \"avx2\" }" % values)


def report(control, job, attempt=1):
    return up(control, f'actual {{ incarnation: "i1" applied_version: 1 jobs {{ job_id: "j" attempt: {attempt} '
                       f"{job} }} }}")


def rank(number, state="STATE_RUNNING", step=3, more=""):
    return f"ranks {{ state: {state} status {{ rank: {number} pid: 7 phase: PHASE_TRAINING step: {step} }} {more} }} "


PASSED = "preflight { state: STATE_PASSED data { total_bytes: 9 } flops_ceiling: 1e9 }"


def agent_messages():
    both = [report(node, PASSED + " num_processes: 1") for node in (0, 1)]
    running = both + [report(node, PASSED + rank(2 * node) + rank(2 * node + 1) + "num_processes: 3 "
                             "host { pid: 5 }") for node in (0, 1)]
    failed = running + [report(0, rank(0, "STATE_FAILED", more='failure { failure_class: FAILURE_CLASS_EXITED '
                                                                'message: "killed" }'))]
    fenced = failed + [report(node, f"snapshots {{ rank: {2 * node} attempt: 1 step: 3 }} snapshots {{ rank: "
                              f"{2 * node + 1} attempt: 1 step: 3 }}") for node in (0, 1)]
    stored = running + [report(node, "".join(f"shards {{ rank: {r} attempt: 1 step: 5 }} " for r in
                                             (2 * node, 2 * node + 1))) for node in (0, 1)]
    finished = stored + [report(0, 'manifests { attempt: 1 step: 20 directory: "/c" } ' +
                                rank(0, "STATE_FINISHED", step=20) + rank(1, "STATE_FINISHED", step=20)),
                         report(1, rank(2, "STATE_FINISHED", step=20) + rank(3, "STATE_FINISHED", step=20))]
    def steps(first, last, attempt=1):
        return "".join(f"steps {{ step: {i} attempt: {attempt} loss: 2.5 seconds: 0.1 }} " for i in range(first, last + 1))

    def trains(control, first, last, attempt=1):
        return report(control, PASSED + rank(2 * (control & 1), step=last) + rank(2 * (control & 1) + 1, step=last) +
                      "num_processes: 3 " + steps(first, last, attempt), attempt)

    stream_ends, driver_ends, files_fail, silence = (kind << 5 for kind in (4, 5, 6, 7))
    stepped = running + [trains(1, 1, 5)]
    again = stepped + [report(0, rank(0, "STATE_FAILED")), *(up(node, 'actual { incarnation: "i1" applied_version: 9000000000 }')
                                                             for node in (0, 1, 0x1e, 0x1f))]
    cases = {
        "stepped": stepped, "driver-ends": stepped + [trains(driver_ends | 1, 4, 9), trains(1, 10, 12)],
        "stream-ends": stepped + [hello(stream_ends | 1, incarnation='"i1"'), trains(1, 6, 8)],
        "taken-over": stepped + [hello(1, incarnation='"i1"'), trains(1, 6, 8), hello(0, node='"n1"')],
        "files-fail": stepped + [trains(files_fail | 1, 6, 8), trains(9, 6, 9), trains(files_fail | 9, 6, 10), trains(0x1f, 6, 11)],
        "lost": stepped + [trains(silence | 1, 6, 8)], "gap": stepped + [trains(0x1f, 9, 12)] * 5,
        "again-from-the-beginning": again + [trains(node, 1, 3, 2) for node in (0, 1)],
        "old-version": [hello(0, version=4)], "newer-version": [hello(0, version=9)],
        "preflight": both, "running": running, "failed": failed, "fenced": fenced, "stored": stored,
        "finished": finished, "refused": [report(0, 'preflight { state: STATE_REFUSED message: "no" }')],
        "again": [hello(0), hello(0, incarnation='"i3"'), hello(0, incarnation='"i1"')],
        "many-slots": [hello(0, node='"n9"', slots=2147483647)], "other-node": [hello(1, node='"../x"')],
        "silence": running + [hello(0x1e)] * 8, "newer-attempt": [report(0, PASSED, attempt=9223372036854775807)],
        "rank-beyond": running + [report(0, rank(2147483647) + rank(-1))],
        "step-beyond": running + [report(0, rank(0, "STATE_STOPPED", step=9223372036854775807))],
        "host-failed": running + [report(0, 'host { failure { failure_class: FAILURE_CLASS_EXITED message: "x" } }')],
        "storage": running + [report(0, 'storage_error: "disk full" retained { attempt: 1 step: 5 }')],
        "steps": running + [report(0, "steps { step: 1 attempt: 1 loss: 2.5 } steps { step: 9 attempt: 1 loss: nan }")],
        "store": running + [up(node, f'store {{ requests {{ request_id: "{operation}" operation: OPERATION_{operation} '
                                     f'job_id: "j" attempt: 1 key: "k" value: "1" amount: 1 }} }}')
                            for operation in ("WAIT", "GET", "SET", "ADD") for node in (0, 1)],
        "log": [up(0, 'log { request_id: "r" data: "x" next_offset: -1 }')], "nothing": [b"\0", b""],
    }
    for name, payloads in cases.items():
        write("agent", name, frames(*payloads))


def worker_link():
    def worker(number, text):
        return bytes([number]) + encode("megascale.link.v1.FromWorker", "proto/link.proto", text)

    def host(text):
        return b"\0" + encode("megascale.link.v1.FromHost", "proto/link.proto", text)

    cases = {
        "step": [worker(1, "step { step: 1 loss: 2.5 attempt: 1 }")],
        "steps": [worker(1, f"step {{ step: {i} loss: 2.5 attempt: 1 }}") for i in range(1, 6)],
        "step-backwards": [worker(1, "step { step: 9 }"), worker(1, "step { step: -1 }")],
        "sealed": [worker(1, "sealed { step: 5 buffer: 1 }")], "buffer-beyond": [worker(2, "sealed { buffer: 2147483647 }")],
        "failure": [worker(1, 'failure { failure_class: FAILURE_CLASS_DIVERGED message: "nan" }'), b"\x03last lines"],
        "finished": [worker(1, "finished { step: 20 }"), worker(2, "finished { stopped: true step: 7 }")],
        "finished-twice": [worker(1, "finished { step: 20 }")] * 2,
        "store": [worker(1, 'store { request_id: "r" operation: OPERATION_ADD key: "k" amount: 1 }')],
        "preflight": [host("preflight { state: STATE_PASSED first_step: -1 }")],
        "shard": [host("shard { rank: 0 attempt: 1 step: 5 }")], "shard-beyond": [host("shard { rank: -5 step: -9 }")],
        "manifest": [host('manifest { attempt: 1 step: 5 directory: "../x" }')],
        "host-failure": [host('failure { failure_class: FAILURE_CLASS_EXITED message: "gone" }')],
        "storage": [host('storage_error { message: "disk full" }')], "retained": [host("retained { newest { attempt: 1 step: 5 } }")],
        "ended": [b"\x03killed"], "nothing": [b"", b"\0", b"\1"],
    }
    for name, payloads in cases.items():
        write("worker_link", name, frames(*payloads))
    write("worker_link", "length-beyond", b"\xff\xff\xff\xff")
    write("worker_link", "length-most", struct.pack("<I", 64 << 20) + b"x")
    write("worker_link", "cut", frames(worker(1, "step { step: 1 }"))[:-1])


def keeper_wire():
    def command(descriptors, kind=1, arguments=1, environment=1, output=0, numbers=0, texts=("/bin/true", "true", "A=b")):
        header = struct.pack("<iiqiiii32i", kind, 9, 42, arguments, environment, output, numbers, *range(32))
        header += b"\0" * (-len(header) % 8)
        return bytes([descriptors]) + header + b"".join(text.encode() + b"\0" for text in texts)

    cases = {
        "spawn": command(0), "kill": command(0, kind=2), "output": command(1, output=1), "descriptors": command(2, numbers=2),
        "all": command(3, output=1, numbers=2), "other-kind": command(0, kind=-1), "no-text": command(0, texts=()),
        "few-texts": command(0, arguments=9), "many-arguments": command(0, arguments=2147483647),
        "negative-arguments": command(0, arguments=-1), "negative-environment": command(0, environment=-2147483648),
        "few-descriptors": command(0, numbers=3), "many-descriptors": command(0, numbers=2147483647),
        "negative-descriptors": command(0, numbers=-1), "output-missing": command(0, output=1),
        "no-end": command(0)[:-1], "short": command(0)[:20], "empty": b"",
    }
    for name, data in cases.items():
        write("keeper_wire", name, data)


def store_replies():
    """A piece size, then the replies of a Redis server."""
    cases = {
        "text": b"$2\r\n42\r\n$-1\r\n$0\r\n\r\n+OK\r\n", "integer": b":9223372036854775807\r\n", "array": b"*3\r\n$1\r\na\r\n$-1\r\n$2\r\nbc\r\n",
        "no-array": b"*-1\r\n", "deep": b"*8\r\n" * 10, "nested": b"*1\r\n*1\r\n*1\r\n:1\r\n", "wide": b"*2147483647\r\n",
        "wrapped": b"*4294967297\r\n", "negative": b"*-2147483648\r\n", "negative-text": b"$-2\r\n", "huge-text": b"$536870912\r\nx",
        "huge-integer": b":99999999999999999999999999\r\n", "read-only": b"-READONLY You can't write against a read only replica.\r\n",
        "moved": b"-MOVED 866 127.0.0.1:7001\r\n", "no-auth": b"-NOAUTH Authentication required.\r\n", "full": b"-OOM command not allowed\r\n",
        "unasked": b"+OK\r\n" * 5, "resp3": b"%1\r\n+a\r\n:1\r\n", "push": b">3\r\n+message\r\n+a\r\n+b\r\n", "blank": b"\r\n",
        "http": b"HTTP/1.1 400 Bad Request\r\n\r\n", "long-line": b"+" + b"x" * 5000, "empty": b"",
    }
    for index, (name, data) in enumerate(cases.items()):
        write("store_reply", name, bytes([index * 11 % 256]) + data)


def hugging_face():
    """The configurations of the golden folders, mistakes in one of them, and indices."""
    golden = pathlib.Path("tests/golden/folders")
    for folder in sorted(golden.iterdir()):
        write("hugging_face_config", folder.name, (folder / "config.json").read_text())
    small = {"architectures": ["LlamaForCausalLM"], "vocab_size": 50, "hidden_size": 24, "intermediate_size": 40,
             "num_hidden_layers": 2, "num_attention_heads": 4}
    changes = {
        "huge": {"hidden_size": 2**31 - 1, "num_attention_heads": 2**31 - 1, "head_dim": 2**31 - 1},
        "many-layers": {"num_hidden_layers": 2**31 - 1}, "unknown": {"architectures": ["FalconForCausalLM"]},
        "control": {"architectures": ["\x1b[2J\n"]}, "list": {"rope_scaling": []}, "text": {"vocab_size": "50"},
        "yarn": {"rope_scaling": {"type": "yarn", "factor": 1e300, "original_max_position_embeddings": 1}},
        "llama3": {"rope_scaling": {"rope_type": "llama3", "factor": 2, "low_freq_factor": 1, "high_freq_factor": 1}},
        "nested": {"rope_parameters": {"rope_theta": 1, "rope_type": "linear", "factor": 1}},
        "layers": {"architectures": ["Qwen3ForCausalLM"], "use_sliding_window": True, "sliding_window": 3,
                   "layer_types": ["sliding_attention", "full_attention"], "num_key_value_heads": 2},
        "mistral-layers": {"architectures": ["MistralForCausalLM"], "layer_types": ["full_attention", "sliding_attention"]},
        "other-layers": {"architectures": ["MinistralForCausalLM"], "layer_types": ["chunked_attention", 5]},
        "mscale": {"original_max_position_embeddings": 8, "rope_scaling": {
            "rope_type": "yarn", "factor": 4, "mscale": 1.0, "mscale_all_dim": 0.5, "truncate": False, "beta_fast": 0}},
        "both": {"rope_scaling": {"type": "linear", "factor": 2, "rope_theta": 5},
                 "rope_parameters": {"rope_type": "linear", "factor": 2, "rope_theta": 5}},
        "by-layer": {"rope_parameters": {"full_attention": {"rope_type": "default"}}},
        "unknown-fields": {"logit_scale": 2, "\x1b[2J": 1, "pruned_heads": {"1": [2]}},
        "aliases": {"architectures": ["GPT2LMHeadModel"], "n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 8},
    }
    for name, change in changes.items():
        write("hugging_face_config", name, json.dumps({**small, **change}))
    write("hugging_face_config", "deep", "[" * 5000)
    write("hugging_face_config", "pointer", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 9\n")
    write("hugging_face_config", "page", "<!DOCTYPE html>\n<html></html>\n")
    write("hugging_face_index", "llama2", (golden / "llama2" / "model.safetensors.index.json").read_text())
    maps = {
        "parent": {"a": "../b.safetensors"}, "absolute": {"a": "/b.safetensors"}, "number": {"a": 1}, "empty": {},
        "zero": {"a": "b\0.safetensors"}, "one": {"a": "b.safetensors"}, "hidden": {"a": ".safetensors"},
        "control": {"\x1b[2J": "\n"}, "list": [],
    }
    for name, weight_map in maps.items():
        write("hugging_face_index", name, json.dumps({"weight_map": weight_map}))


def vocabulary(tokens):
    """A vocab.json in one line, then a merges.txt."""
    line = json.dumps(tokens)
    files = {
        "gpt2": (line, "#version: 0.2\na b\n"), "line-ends": (line, "#version: 0.2\r\na b\r\n"), "no-version": (line, "a b\na b"),
        "spaces": (line, "#version: 0.2\n\t a\u00a0b \n\n"), "mark": (line, "\ufeff#version: 0.2\na b\n"), "unknown": (line, "x\nb a\n"),
        "three": (line, "x\na b ab\n"), "no-merges": (line, ""), "no-tokens": ("{}", "x\n"), "list": ("[]", "x\n"), "empty": ("", ""),
        "hole": (json.dumps({"a": 0, "b": 7}), "x\n"), "deep": ("[" * 1000, "x\n"), "text": (json.dumps({"a": "b"}), "x\n"),
        "control": (json.dumps({"\u001b[2J": 0}), "x\n\u001b \u202e\n"),
    }
    for name, (first, merges) in files.items():
        write("tokenizer_vocabulary", name, f"{first}\n{merges}")
    write("tokenizer_vocabulary", "invalid", line.encode() + b"\nx\na \xff\n")


def tokenizers():
    fallback = {f"<0x{byte:02X}>": byte for byte in range(256)}
    llama = {"added_tokens": [{"id": 0, "content": "<0x00>", "special": True, "lstrip": True, "rstrip": True}],
             "normalizer": {"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": "_"}, {"type": "NFC"}, {
                 "type": "Replace", "pattern": {"String": " "}, "content": "_"}]},
             "decoder": {"type": "Sequence", "decoders": [{"type": "Replace", "pattern": {"String": "_"}, "content": " "}, {
                 "type": "ByteFallback"}, {"type": "Fuse"}, {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
             "model": {"type": "BPE", "vocab": {**fallback, "_": 256, "a": 257, "_a": 258}, "merges": ["_ a"], "byte_fallback": True}}
    small = {"model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": [["a", "b"]]}}

    def model(**changes):
        return {"model": {**small["model"], **changes}}

    files = {
        "small": small, "llama": llama, "byte-level": {**small, "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}},
        "metaspace": {**small, "pre_tokenizer": {"type": "Metaspace", "replacement": "b", "prepend_scheme": "first", "split": True},
                      "decoder": {"type": "Metaspace", "replacement": "b"}},
        "template": {**small, "post_processor": {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "s"}}, {"Sequence": {"id": "A"}}], "special_tokens": {"s": {"ids": [2]}}}},
        "added": {**small, "added_tokens": [{"id": 3, "content": "aa", "single_word": True, "normalized": True},
                                            {"id": 4, "content": " ", "lstrip": True, "rstrip": True}]},
        "unknown": model(unk_token="a", fuse_unk=True), "ignore": model(ignore_merges=True), "twice": model(vocab={"a": 0, "b": 0}),
        "hole": model(vocab={"a": 0, "b": 7}), "string-merge": model(merges=["a b"]), "bad-merge": model(merges=["a c", 7]),
        "digits": {**small, "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
            {"type": "Digits", "individual_digits": True}, {"type": "ByteLevel", "add_prefix_space": False}]}},
        "roberta": {**small, "post_processor": {"type": "RobertaProcessing", "sep": ["a", 0], "cls": ["b", 1]}},
        "saved-call": {**small, "truncation": {"max_length": 1}, "padding": {"length": 3}},
        "fields": {**small, "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFC", "\u202e": 1}], "x": 2}, "\n": 3},
        "long-step": {**small, "normalizer": {"type": "Replace", "pattern": {"String": "a" * 1025}, "content": ""}},
        "growth": {**small, "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Replace", "pattern": {"String": "a"}, "content": "a" * 1000}] * 4}},
        "long-token": {**small, "added_tokens": [{"id": 3, "content": "ab" * 500}, {"id": 4, "content": "b"}]},
        "unigram": model(type="Unigram"), "control": model(type="\u001b[2J\u202e\n"), "no-model": {}, "list": [],
    }
    for name, content in files.items():
        write("tokenizer_json", name, json.dumps(content))
    write("tokenizer_json", "deep", "[" * 1000)
    vocabulary(small["model"]["vocab"])
    write("tokenizer_json", "empty", "")
    written = {"id": 2, "content": "<pad>", "special": True}
    settings = {
        "llama": [{"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "unk_token": None, "eos_token": "<|endoftext|>", "add_eos_token": True}],
        "decoder": [{"added_tokens_decoder": {"258": {"content": "<pad>", "lstrip": True}}, "pad_token": "<pad>"}],
        "map": [{}, {"pad_token": written, "additional_special_tokens": ["<x>", written]}], "added": [{}, None, {"<pad>": 258, "<x>": 259}],
        "model": [None, None, None, {"model_type": "gpt_neox"}], "twice": [{"added_tokens_decoder": {"258": written, "0258": written}}],
        "class": [{"tokenizer_class": "\u001b[2J"}], "unknown": [{"\u202e": 1}], "number": [{"bos_token": 7}], "list": [[]],
        "split": [{"split_special_tokens": True}], "id": [{"added_tokens_decoder": {"99999999999999999999": written}}],
        "class-default": [{"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": None}],
    }
    for name, files_beside in settings.items():
        write("tokenizer_settings", name, "\n".join("" if content is None else json.dumps(content) for content in files_beside))
    write("tokenizer_settings", "empty", "")
    write("tokenizer_settings", "deep", "[" * 1000)
    texts = {"words": "Hello, world! It's 2024;  we'll see\n\n 123456", "empty": "", "spaces": "  \t\n \r\n   ", "special": "a<s> <|endoftext|>b</s>",
             "scripts": "人生而自由 Все люди सभी ١٢٣", "marks": "e\u0301\u0327 \u0345\u0301", "emoji": "👩\u200d👧🇩🇪", "marker": "▁a▁▁b ▁",
             "invalid": b"a\xff\xc3(\xe2\x82\xed\xa0\x80", "long": "ab" * 400, "control": "\0\x01\x7f", "contractions": "'S'LL'ſ'x"}
    for index, (name, text) in enumerate(texts.items()):
        write("tokenizer_text", name, bytes([index]) + (text if isinstance(text, bytes) else text.encode()))
    lines = {"plain": '{"text": "a"}', "escapes": '{"text": "\\u00e9\\n\\ud83d\\ude00"}', "inner": '{"a": {"text": "b"}, "text": "c"}', "no-field": '{"a": 1}',
             "number": '{"text": 1}', "object": '{"text": {"text": "a"}}', "twice": '{"text": "a", "text": "b"}', "list": "[1]", "empty": "", "cut": '{"text": "a',
             "deep": '{"a": ' + "[" * 500, "surrogate": '{"text": "\\ud800"}', "after": '{"text": "a"} x', "nan": '{"a": NaN, "b": [-Infinity,Infinity], "text": "NaN, a"}',
             "nan-text": '{"text": NaN}', "large-number": '{"a": 1e999, "text": "a"}', "nan-in-text": '{"text": "\\", NaN", "a": nan}',
             "open": '{"text": "a",', "array": '[{"text": "a"},'}
    for name, text in lines.items():
        write("json_line", name, text)


def text_files():
    """How it is read (1: bad parts are skipped, 2: as JSON Lines), then the file."""
    plain = "Some text.\nMore of it: é日.\n".encode()
    json_lines = b'{"text": "a"}\n\n{"b": NaN, "text": "b"}\r\n{"text": 7}\n'
    mark = b"\xef\xbb\xbf"
    # Frames of zstd: one with its block stored, one to skip, one whose window is 2 GiB.
    stored = b"\x28\xb5\x2f\xfd\x00\x58" + struct.pack("<I", len(plain) << 3 | 1)[:3] + plain
    skipped = b"\x50\x2a\x4d\x18" + struct.pack("<I", 4) + b"size"
    files = {
        "plain": (0, plain), "mark": (0, mark + plain), "bad": (1, plain + b"\xff\xc3(" + plain), "cut": (0, plain + b"\xe6\x97"),
        "lines": (3, json_lines), "lines-mark": (2, mark + json_lines), "array": (2, b'[{"text": "a"},\n{"text": "b"}]'),
        "pretty": (2, b'{\n  "text": "a"\n}\n'), "html": (2, b"<!doctype html>\n"), "utf16": (0, "Some text".encode("utf-16")),
        "binary": (1, bytes(range(256))), "pointer": (0, b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n"),
        "parquet": (3, b"PAR1\x15\x04" + bytes(20)), "tar": (0, b"name" + bytes(253) + b"ustar" + bytes(250)), "empty": (0, b""),
        "gzip": (0, gzip.compress(plain, mtime=0)), "gzip-padded": (2, gzip.compress(json_lines, mtime=0) + bytes(40)),
        "gzip-twice": (0, gzip.compress(plain, mtime=0) * 2), "gzip-bomb": (1, gzip.compress(bytes(3 << 20), mtime=0)),
        "zstd": (0, stored), "zstd-skipped": (0, skipped + stored + skipped), "zstd-window": (0, b"\x28\xb5\x2f\xfd\x00\xa8" + plain),
        "zstd-segment": (0, b"\x28\xb5\x2f\xfd\xe0" + b"\xff" * 8 + plain),
    }
    for name, (how, content) in files.items():
        write("text_file", name, bytes([how]) + content)


def traces():
    """A piece size, then a trace of training steps."""
    def step(number, replicas=2, stages=2):
        events = []
        for replica in range(replicas):
            for stage in range(stages):
                kinds = ["params-all-gather", "forward-compute", "backward-compute", "gc", "layernorm-grads-all-reduce",
                         "embedding-grads-all-reduce", "grads-reduce-scatter", "optimizer-clip-main-grad", "optimizer"]
                kinds += (["forward-send", "backward-recv"] if stage + 1 < stages else []) + (
                    ["forward-recv", "backward-send"] if stage > 0 else [])
                for order, kind in enumerate(kinds):
                    events.append({"name": kind, "ph": "X", "pid": replica, "tid": (stage * replicas + replica) * 5,
                                   "ts": number * 1e6 + order * 1000 + stage, "dur": 900.5 + replica,
                                   "args": {"step": number, "model_chunk": 0, "mb_id": None, "seq_id": 0}})
        return events

    two = json.dumps(step(3) + step(4))
    cases = {
        "two-steps": two, "object": '{"traceEvents":' + two + ',"displayTimeUnit":"ms"}', "one-rank": json.dumps(step(1, 1, 1)),
        "metadata": '[{"name":"thread_name","ph":"M","pid":0,"tid":0,"args":{"name":"x"}}]', "empty-list": "[]", "empty": "",
        "lost-operation": json.dumps((step(1) + step(2))[:-1]), "no-optimizer": two.replace('"optimizer"', '"coffee"'),
        "negative": two.replace("900.5", "-1"), "huge": two.replace("900.5", "1e400"), "deep": "[" * 100,
        "interleaved": two.replace('"model_chunk": 0', '"model_chunk": 1'),
        "separate": two.replace("layernorm-grads-all-reduce", "separate-grads-all-reduce"),
        "missing-receive": two.replace("forward-recv", "gc-2"),
    }
    for index, (name, text) in enumerate(cases.items()):
        write("trace", name, bytes([index * 7 % 256]) + text.encode())
    packed = gzip.compress(two.encode(), mtime=0)
    write("trace", "gzip", b"\x05" + packed)
    write("trace", "gzip-cut", b"\x05" + packed[:-20])
    write("trace", "gzip-bomb", b"\xff" + gzip.compress(b"[" + b" \n" * 400000 + b"]", mtime=0))


def exchanges():
    """What a worker may write into its exchange board: it is repeated over the whole board."""
    calls = b"".join(word.to_bytes(8, "little") for word in [1, 4, 2, 7, 77, 3 << 32, 4096, 1000, 2000, 32, 64, 32, 16])
    write("exchanges", "words", calls)
    write("exchanges", "zeros", bytes(64))
    write("exchanges", "ones", b"\xff" * 64)
    write("exchanges", "words-cut", calls[:37])
    write("exchanges", "bytes", bytes(range(256)))
    write("exchanges", "high-bytes", b"\x80\x7f" * 48)
    write("exchanges", "names", b"data.0/activation\n\x1b[2J" * 4)
    write("exchanges", "greatest", (2**63 - 1).to_bytes(8, "little") * 9)
    write("exchanges", "least", (2**63).to_bytes(8, "little") * 7)
    write("exchanges", "one", b"\x01" + bytes(7))
    write("exchanges", "counters", b"".join(word.to_bytes(8, "little") for word in range(2, 260, 2)))


def evidence():
    """Answers of agents, a file of saved evidence, and what workers write into their rings."""
    def response(text):
        return encode("megascale.control.v1.StreamEvidenceResponse", "proto/control.proto", text)

    state = ('group: "data.0" operation: 2 sequence: 7 instruction: 792634633912057856 peer: %d send_bytes: 64 transmitted_bytes: %d '
             "delivered_bytes: 16 receive_bytes: 64 received_bytes: 32 begin_nanos: 5 changed_nanos: 9 ")
    calls = [response(f'rank: {rank} node_id: "n{rank // 2}" evidence {{ monotonic_nanos: 90 ' + "".join(
        f"running {{ {state % (peer, 16 + 16 * rank)} }} " for peer in range(4) if peer != rank) + "}") for rank in range(4)]
    sample = ('samples { monotonic_nanos: %d busy_cores: 1.5 throttled_share: 0.25 load: 2 memory_available_bytes: 1000 major_faults: 3 '
              'interfaces { name: "eth0" received_bytes: 7 sent_bytes: 8 errors: 1 } ranks { job_id: "j" rank: 1 compute_share: 0.5 '
              "memory_bytes: 99 } } ")
    metrics = [response(f'rank: {rank} evidence {{ monotonic_nanos: 5000000000 ' + "".join(
        sample % (second * 1000000000) for second in range(5)) + "}") for rank in range(3)]
    stack = 'stacks { thread: %d name: "compute" state: "R" frames { function: "megascale::f(int)" module: "megascale" offset: 16 } } '
    stacks = [response(f"rank: {rank} evidence {{ {stack % 7}{stack % 9} }}") for rank in range(3)]
    cases = {
        "calls": calls, "one-call": calls[:1], "two-calls": calls[:2], "metrics": metrics, "one-machine": metrics[:1], "stacks": stacks,
        "one-stack": stacks[:1], "all": calls[:2] + metrics[:1] + stacks[:2], "none": [], "error": [response('rank: 1 error: "away"')],
        "control": [response('rank: 1 error: "\\033[2J\\n"'), response('evidence { stacks { name: "\\033[2J" error: "\\n" } }')],
        "not-a-number": [response("evidence { samples { busy_cores: nan load: inf major_faults: -inf } }")],
    }
    for name, answers in cases.items():
        write("evidence", name, frames(*answers))


def saved_evidence():
    whole = gzip.decompress(pathlib.Path("tests/diagnose/recorded/1-link_down.gz").read_bytes()).decode()
    newest, lines = 39, []
    for line in whole.splitlines():
        word, _, text = line.partition(" ")
        content = json.loads(text)
        if content.get("rank", 0) > 4 and word != "job":
            continue
        if word == "spans":
            content["spans"] = [span for span in content["spans"] if int(span.get("step", 0)) == newest]
        lines.append(f"{word} {json.dumps(content, separators=(',', ':'))}")
    few = "\n".join(lines) + "\n"
    job = [line for line in lines if line.startswith("job ")]
    spans = [line for line in lines if line.startswith("spans ")]
    cases = {
        "few": few, "gzip": gzip.compress(few.encode(), mtime=0), "gzip-cut": gzip.compress(few.encode(), mtime=0)[:-30], "empty": "",
        "job-alone": job[0] + "\n", "no-job": "\n".join(spans), "two-jobs": "\n".join(job * 2), "one-rank": "\n".join(spans[:1] + job),
        "no-ranks": "job " + json.dumps({key: value for key, value in json.loads(job[0][4:]).items() if key != "ranks"}),
        "unknown-word": "coffee {}\n", "unknown-kind": "evidence-99 {}\n" + job[0], "not-json": "job {", "no-number": "evidence-x {}\n",
        "other-rank": "\n".join([spans[0].replace("{", '{"rank":99,', 1)] + job), "ended": job[0].replace("JOB_STATE_RUNNING", "JOB_STATE_FAILED"),
    }
    for name, text in cases.items():
        write("saved_evidence", name, text)


def span_rings():
    def begin(rank, lane, index, step, millis):
        return struct.pack("<BBBBH", rank, lane * 16, index, step, millis)

    def end(rank, lane, millis, exchange=0):
        return struct.pack("<BBHBH", rank, lane * 16 + 1, millis, 0, exchange)

    def poke(rank, at, word, slot=False):
        return struct.pack("<BBIQ", rank, 3 if slot else 2, at, word)

    def steps(count, instructions=40):
        out, time = b"", 1
        for step in range(1, count + 1):
            for index in range(instructions):
                for rank in range(2):
                    out += begin(rank, index % 8, index, step, time) + end(rank, index % 8, time + 3)
                time += 5
        return out

    cases = {
        "one-step": steps(1), "three-steps": steps(3), "cut": steps(2)[:-9], "empty": b"", "begun": begin(0, 1, 0, 1, 5),
        "late": steps(1) + begin(1, 1, 0, 2, 900), "begun-number": steps(1) + poke(0, 0, 2**63 - 1), "negative-number": steps(1) + poke(0, 0, 2**63),
        "other-number": steps(1) + poke(0, 0, 5000), "all-numbers": steps(1) + b"".join(poke(0, lane * 8 * 4097, 2**63 - 1) for lane in range(9)),
        "sequence": steps(1) + poke(0, 8, 77), "great-time": steps(1) + begin(0, 1, 3, 2, 0xFFFF) + struct.pack("<q", 2**62),
        "great-step": begin(0, 1, 0, 7, 0)[:4] + struct.pack("<qH", 2**63 - 1, 9), "slot": b"".join(poke(0, at, 2**64 - 1, True) for at in range(24)),
        "other-instruction": struct.pack("<BBBQBH", 0, 16, 255, 2**64 - 1, 1, 7) + end(0, 1, 9),
    }
    for name, data in cases.items():
        write("span_ring", name, data)


def message(*fields):
    """A protocol buffer: pairs of a number and a value (an int, a float, text or bytes)."""
    def varint(value):
        out = b""
        while value >= 0x80:
            out += bytes([value & 0x7F | 0x80])
            value >>= 7
        return out + bytes([value])

    out = b""
    for number, value in fields:
        if isinstance(value, int):
            out += varint(number << 3) + varint(value)
        elif isinstance(value, float):
            out += varint(number << 3 | 5) + struct.pack("<f", value)
        else:
            value = value.encode() if isinstance(value, str) else value
            out += varint(number << 3 | 2) + varint(len(value)) + value
    return out


def sentencepiece_models():
    def model(pieces, trainer=((3, 2), (35, 1)), normalizer=((3, 1), (4, 0), (5, 1))):
        made = [(1, message((1, text), (2, float(-index)), (3, kind))) for index, (text, kind) in enumerate(pieces)]
        return message(*made, (2, message(*trainer)), (3, message(*normalizer)))

    control = [("<unk>", 2), ("<s>", 3), ("</s>", 3)]
    text_bytes = [(f"<0x{byte:02X}>", 6) for byte in range(256)]
    words = [("ab", 1), ("▁a", 1), ("▁", 1), ("a", 1), ("b", 1)]
    whole = model(control + text_bytes + words)
    cases = {
        "whole": whole, "no-bytes": model(control + words), "cut": whole[:-7], "empty": b"", "text": b"not a model",
        "unigram": model(control + words, trainer=((3, 1),)), "twice": model(control + words + words),
        "no-unknown": model(words), "user-defined": model(control + [("a", 4)]), "unused": model(control + [("a", 5)]),
        "control-text": model([("\x1b[2J\n", 3)] + words), "empty-piece": model(control + [("", 1)]),
        "long-piece": model(control + [("a" * 600, 1)]), "bad-byte": model(control + [("<0xGG>", 6)]),
        "not-utf-8": message((1, message((1, b"\xff\xfe"), (2, 0.0)))),
        "rule": model(control + words, normalizer=((2, b"\1\2\3"),)), "group": b"\x0b\x0c",
        "long-length": b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
    }
    for name, content in cases.items():
        write("sentencepiece", name, content)


def token_files():
    def index(lengths=(3, 4, 5), positions=None, documents=None, kind=4, version=1, sequences=None, entries=None):
        sizes = {1: 1, 4: 4, 8: 2}
        if positions is None:
            positions = [sum(lengths[:i]) * sizes.get(kind, 4) for i in range(len(lengths))]
        documents = list(range(len(lengths) + 1)) if documents is None else documents
        return struct.pack("<8sQBQQ", b"MMIDIDX\0", version, kind, len(lengths) if sequences is None else sequences,
                           len(documents) if entries is None else entries) + struct.pack(
            f"<{len(lengths)}i{len(positions)}q{len(documents)}q", *lengths, *positions, *documents)

    cases = {
        "three": index(), "bytes": index(kind=1), "two-bytes": index(kind=8), "no-documents": index((), (), ()),
        "empty-document": index((0, 0, 2)), "one-document": index(documents=[0, 3]), "cut": index()[:-3], "empty": b"",
        "version": index(version=2), "kind": index(kind=6), "negative-length": index((3, -1, 2)), "after": index() + b"x",
        "many-sequences": index(sequences=2**62), "many-documents": index(entries=2**63), "wrong-position": index(positions=[0, 5, 9]),
        "long": index((2**31 - 1,) * 3), "falling": index(documents=[0, 2, 1, 3]), "beyond": index(documents=[0, 1, 2, 9]),
    }
    for name, content in cases.items():
        write("megatron_index", name, content)

    def tokens(ids=(1, 2, 3, 4, 5), ends=(2, 5), width=2, version=1, vocabulary=300, count=None, documents=None):
        body = struct.pack(f"<{len(ids)}{'H' if width == 2 else 'i'}", *ids)
        table = struct.pack(f"<{len(ends)}Q", *ends)
        head = struct.pack("<8sIIQQQ32s32s24s", b"MSTOKENS", version, width, len(ids) if count is None else count,
                           len(ends) if documents is None else documents, vocabulary, b"t" * 32,
                           hashlib.sha256(body + table).digest(), bytes(24))
        return head + body + bytes(-len(body) % 8) + table

    cases = {
        "two": tokens(), "four-bytes": tokens(width=4), "no-tokens": tokens((), ()), "empty-document": tokens(ends=(0, 5, 5)),
        "cut": tokens()[:-3], "empty": b"", "head": tokens()[:128], "version": tokens(version=2), "width": tokens(width=2)[:12] + b"\3" + tokens()[13:],
        "falling": tokens(ends=(4, 2, 5)), "beyond": tokens(ends=(2, 6)), "short": tokens(ends=(2, 4)), "after": tokens() + b"x",
        "many-tokens": tokens(count=2**63), "many-documents": tokens(documents=2**61), "vocabulary": tokens(vocabulary=3),
        "no-vocabulary": tokens(vocabulary=0), "great-vocabulary": tokens(vocabulary=2**63), "negative": tokens((-1, 2), (2,), width=4),
        "changed": tokens().replace(struct.pack("<H", 5), struct.pack("<H", 6)),
    }
    for name, content in cases.items():
        write("token_file", name, content)


def minder():
    models = json.loads(pathlib.Path("runtime/minder/default_models.json").read_text())
    one = {**models, "metrics": models["metrics"][:1]}
    metric = one["metrics"][0]

    def changed(**changes):
        return json.dumps({**one, "metrics": [{**metric, **changes}]})

    cases = {
        "one": json.dumps(one), "twice": json.dumps({**one, "metrics": [metric, metric]}), "none": json.dumps({**one, "metrics": []}),
        "format": json.dumps({**one, "format": 2}), "few-weights": changed(weights=metric["weights"][:-1]), "no-name": changed(name=""),
        "control": changed(name="\x1b[2J\n"), "limits": changed(lower=1, upper=0), "huge": changed(weights=[1e300] * len(metric["weights"])),
        "text": changed(weights="0"), "null": changed(upper=None), "list": "[]", "empty": "", "deep": "[" * 600,
        "overflow": json.dumps(one).replace("0.154727", "1e400"),
    }
    for name, text in cases.items():
        write("minder_models", name, text)
    lines = ["machine,seconds,compute share,busy cores"]
    lines += [f"n{machine},{1764052800 + second}.5,{0.4 + machine / 100},{1.9 if second % 3 else ''}" for machine in range(3) for second in range(5)]
    whole = "\n".join(lines) + "\n"
    cases = {
        "whole": whole, "no-lines": lines[0] + "\n", "empty": "", "no-metric": "machine,seconds\n", "other-head": whole.replace("machine", "node", 1),
        "few-cells": whole + "n0,1\n", "many-cells": whole + "n0,1,2,3,4\n", "nan": whole.replace("0.4", "nan"), "infinite": whole.replace("1.9", "inf"),
        "huge-time": whole.replace("1764052800.5", "1e300"), "negative-time": whole.replace("1764052800.5", "-1"), "backwards": whole + lines[1] + "\n",
        "crlf": whole.replace("\n", "\r\n"), "control": whole.replace("n1", "\x1b[2J"), "quotes": whole.replace("n1", '"n1"'),
        "same-metric": whole.replace("busy cores", "compute share"), "no-name": whole.replace("n2", ""), "far-apart": whole + "n0,0,1,1\nn1,9e15,1,1\n",
    }
    for name, text in cases.items():
        write("minder_recording", name, text)


job_files()
checkpoints()
hugging_face()
agent_messages()
worker_link()
keeper_wire()
store_replies()
tokenizers()
text_files()
sentencepiece_models()
token_files()
minder()
traces()
exchanges()
evidence()
saved_evidence()
span_rings()
