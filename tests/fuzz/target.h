// The fuzz targets: one function of bytes for each place where the program reads data from outside.
// A target must return on every input, in time and memory bounded by the input. It checks its
// results with MEGASCALE_CHECK, so that a wrong result counts as a crash.
//
// Where to start: targets.cc has the list, engine.h runs it, README.md how to use it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "tests/fuzz/mutator.h"

namespace megascale::fuzz {

struct Target {
  std::string name;  // also of its folder in the corpus
  void (*run)(absl::string_view input);
  std::vector<std::string> dictionary;
  // Makes a mistake in the structure of an input; null: only bytes are mutated.
  std::string (*mutate)(const std::string& input, Random* random) = nullptr;
  // Memory that all inputs together may add to what the process has when it begins with the target.
  int64_t memory_bytes_max = int64_t{256} << 20;
};

// YAML -> job file -> resolved job -> YAML.
void RunJobFile(absl::string_view input);
// manifest.json, beside a fixed shard.
void RunManifest(absl::string_view input);
std::string MutateManifest(const std::string& input, Random* random);
// A safetensors file, and as a shard of a checkpoint.
void RunSafetensors(absl::string_view input);
std::string MutateSafetensors(const std::string& input, Random* random);
// Frames of AgentUp, on two sessions of agents, into the driver's shell and store: its state, log,
// loss log, views and desired states; with sessions that end and drivers that are started again.
void RunAgentMessages(absl::string_view input);
std::string MutateAgentMessages(const std::string& input, Random* random);
// Frames of FromWorker and FromHost, over a socket pair, into the agent's core.
void RunWorkerLink(absl::string_view input);
std::string MutateWorkerLink(const std::string& input, Random* random);
// The payload of one frame to the process keeper.
void RunKeeperWire(absl::string_view input);

// config.json of a Hugging Face folder -> model -> config.json.
void RunHuggingFaceConfig(absl::string_view input);
// model.safetensors.index.json.
void RunHuggingFaceIndex(absl::string_view input);

// Replies of a Redis server, in pieces.
void RunStoreReplies(absl::string_view input);

// A tokenizer.json; if it is one, it encodes and decodes a text.
void RunTokenizerJson(absl::string_view input);
// The files beside a tokenizer.json, one in each line; if they are sound, it encodes a text.
void RunTokenizerSettings(absl::string_view input);
// A vocab.json in one line, then a merges.txt, as the classes of GPT-2 and of Qwen2 read them.
void RunTokenizerVocabulary(absl::string_view input);
// A SentencePiece model; if it is one, it encodes and decodes a text.
void RunSentencePiece(absl::string_view input);
// Any bytes, encoded and decoded by the fixed tokenizer that the first byte chooses.
void RunTokenizerText(absl::string_view input);
// A line of JSON Lines with the field "text".
void RunJsonLine(absl::string_view input);
// A file of text, plain or packed; its first byte says whether as JSON Lines, and whether bad parts
// are skipped.
void RunTextFile(absl::string_view input);
// Megatron-LM's .idx, and our own token files.
void RunMegatronIndex(absl::string_view input);
void RunTokenFile(absl::string_view input);
// The models of `megascale minder train`, and the series of `megascale minder record`.
void RunMinderModels(absl::string_view input);
void RunMinderRecording(absl::string_view input);
// A Chrome trace of training steps, in pieces, and its analysis.
void RunTrace(absl::string_view input);
// The exchange board of a worker, and what the diagnosis makes of it.
void RunExchanges(absl::string_view input);
// What agents answer to questions about ranks and machines: frames of StreamEvidenceResponse.
void RunEvidence(absl::string_view input);
std::string MutateEvidence(const std::string& input, Random* random);
// A file of `megascale diagnose --save`, and the diagnosis that is made of it.
void RunSavedEvidence(absl::string_view input);
std::string MutateSavedEvidence(const std::string& input, Random* random);
// What workers write into their rings of spans and their heartbeat slots.
void RunSpanRing(absl::string_view input);

// Fails unless the message is one printable line, at most 1,000 bytes long.
void CheckLine(const absl::Status& refusal);

const std::vector<Target>& Targets();
// Null: there is no target of that name.
const Target* FindTarget(absl::string_view name);

// Split and join an input of messages: each has 4 bytes of length (little endian), then the
// message. An incomplete message at the end is dropped.
std::vector<std::string> SplitFrames(absl::string_view input);
std::string JoinFrames(const std::vector<std::string>& frames);

// Returns `input` with one frame removed, repeated, moved, or changed by `mutate`, which gets the
// frame.
std::string MutateFrames(const std::string& input, Random* random,
                         std::string (*mutate)(const std::string& frame, Random* random));

}  // namespace megascale::fuzz
