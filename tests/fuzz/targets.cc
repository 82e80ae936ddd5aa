#include <cstdint>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/text/printable.h"
#include "tests/fuzz/target.h"

namespace megascale::fuzz {

const std::vector<Target>& Targets() {
  static const auto* const targets = new std::vector<Target>{
      {"job_file",
       RunJobFile,
       {"name: ",
        "model:\n  ",
        "train:\n  ",
        "data:\n  files: ",
        "hidden_size: ",
        "&a ",
        "*a",
        "<<: ",
        "---\n",
        "...\n",
        "[",
        "{",
        "? ",
        "- ",
        "!!binary ",
        "|\n",
        ">\n",
        "%YAML 1.2\n",
        "steps: ",
        "1e400",
        "nan",
        "null",
        "~",
        "\t",
        "\r\n",
        "\xef\xbb\xbf",
        "\\u202e",
        "\"\\x1b",
        "heartbeat_timeout: 5s",
        "0x10",
        ","}},
      {"manifest",
       RunManifest,
       {"\"global_shape\"", "\"box_shape\"", "\"box_offset\"", "\"flat_begin\"", "\"flat_count\"",
        "\"F32\"", "\"F64\"", "[", "{", "]", "}", "null", "-1", "9223372036854775807", "1e400",
        "\"../", "\\u0000", "rank-00000.safetensors"},
       MutateManifest},
      {"safetensors",
       RunSafetensors,
       {"\"dtype\"", "\"shape\"", "\"data_offsets\"", "\"__metadata__\"", "\"F32\"", "\"BF16\"",
        "[", "{", "]", "}", "null", "-1", "18446744073709551615", "1e400", "\\\"slices\\\""},
       MutateSafetensors},
      {"hugging_face_config",
       RunHuggingFaceConfig,
       {"\"architectures\"",
        "\"vocab_size\"",
        "\"hidden_size\"",
        "\"rope_scaling\"",
        "\"factor\"",
        "\"rope_parameters\"",
        "\"head_dim\"",
        "\"sliding_window\"",
        "\"yarn\"",
        "\"llama3\"",
        "\"layer_types\"",
        "\"sliding_attention\"",
        "\"full_attention\"",
        "\"use_sliding_window\"",
        "\"mscale\"",
        "\"mscale_all_dim\"",
        "\"truncate\"",
        "\"original_max_position_embeddings\"",
        "null",
        "true",
        "-1",
        "2147483647",
        "18446744073709551615",
        "1e400",
        "[",
        "{",
        "]",
        "}"}},
      {"hugging_face_index",
       RunHuggingFaceIndex,
       {"\"weight_map\"", ".safetensors\"", "\"../", "\\u0000", "null", "[", "{", "]", "}"}},
      {"agent", RunAgentMessages, {}, MutateAgentMessages},
      {"worker_link", RunWorkerLink, {}, MutateWorkerLink},
      {"store_reply",
       RunStoreReplies,
       {"\r\n", "$", "*", ":", "+", "-", "$-1\r\n", "*-1\r\n", "*16\r\n", "$4096\r\n", "-MOVED 1 ",
        "-NOAUTH ", "2147483647", "9223372036854775807", "-9223372036854775808"}},
      {"exchanges",
       RunExchanges,
       {std::string(8, '\0'), "\xff\xff\xff\xff\xff\xff\xff\xff", "\xff\xff\xff\x7f", "data/0"}},
      {"evidence", RunEvidence, {}, MutateEvidence},
      {"saved_evidence",
       RunSavedEvidence,
       {"job {", "spans {", "cluster {", "evidence-1 {", "evidence-2 {", "evidence-9 {", "\n",
        "\"rank\":", "\"ranks\":[", "-1", "2147483647", "\"NaN\"", "\"-Infinity\"", "1e400",
        "\x1f\x8b\x08"},
       MutateSavedEvidence},
      {"span_ring",
       RunSpanRing,
       {std::string(8, '\0'), std::string("\0\0", 2), std::string("\0\1", 2),
        std::string("\1\0", 2), "\xff\xff\xff\xff\xff\xff\xff\x7f",
        "\xff\xff\xff\xff\xff\xff\xff\xff", std::string("\0\0\0\0\0\0\0\x80", 8)}},
      {"trace",
       RunTrace,
       {"\"name\":\"forward-compute\"",
        "\"name\":\"backward-compute\"",
        "\"name\":\"forward-send\"",
        "\"name\":\"forward-recv\"",
        "\"name\":\"optimizer\"",
        "\"ph\":\"X\"",
        "\"args\":{",
        "\"step\":",
        "\"seq_id\":",
        "\"traceEvents\":[",
        "\"dur\":",
        "\"ts\":",
        "\x1f\x8b\x08",
        "[",
        "{",
        "]",
        "}",
        "null",
        "-1",
        "1e400",
        "9223372036854775807"}},
      {"keeper_wire", RunKeeperWire, {"/bin/true", std::string(1, '\0'), "PATH=/"}},
      {"tokenizer_json",
       RunTokenizerJson,
       {"\"type\"",
        "\"BPE\"",
        "\"vocab\"",
        "\"merges\"",
        "\"added_tokens\"",
        "\"content\"",
        "\"Sequence\"",
        "\"Metaspace\"",
        "\"ByteLevel\"",
        "\"Replace\"",
        "\"Strip\"",
        "\"lstrip\": true",
        "\"normalized\": true",
        "\"<0x41>\"",
        "\\u2581",
        "null",
        "true",
        "[",
        "]",
        "{",
        "}",
        "-1",
        "2147483648",
        "1e400",
        "a b"}},
      {"tokenizer_settings",
       RunTokenizerSettings,
       {"\"tokenizer_class\"", "\"LlamaTokenizer\"", "\"bos_token\"", "\"added_tokens_decoder\"",
        "\"content\"", "\"special\"", "\"<s>\"", "\"add_bos_token\"", "true", "null", "\n", "258",
        "{", "}", "[", "]", "\"additional_special_tokens\"", "-1", "1e400"}},
      {"tokenizer_vocabulary",
       RunTokenizerVocabulary,
       {"#version: 0.2\n", "\n", "\r", "\r\n", "a b\n", "ab ab\n", " ", "\t", "\xC2\xA0",
        "\xEF\xBB\xBF", "\"ab\":2", "\"a\":0", "{", "}", "[", "-1", "1e400", "\xC4\xA0"}},
      {"tokenizer_text",
       RunTokenizerText,
       {"<s>", "<|endoftext|>", "'s", "'LL", "\xe2\x96\x81", " ", "\r\n", "123", "\xef\xbf\xbd",
        "\xc3", "\xf0\x9f\x98\x80", "<0x41>", "\xcc\x81"}},
      {"sentencepiece",
       RunSentencePiece,
       {"\xe2\x96\x81", "<unk>", "<s>", "</s>", "<0x41>", "\x0a\x0a", "\x18\x06", "\x18\x03",
        "\x18\x02", "\x12\x02\x18\x02", "\x15", "\xff\xff\xff\xff\x0f"}},
      {"megatron_index",
       RunMegatronIndex,
       {"MMIDIDX", std::string(8, '\0'), "\xff\xff\xff\xff\xff\xff\xff\x7f",
        std::string("\1\0\0\0\0\0\0\0", 8), std::string("\4\0\0\0", 4)}},
      {"token_file",
       RunTokenFile,
       {"MSTOKENS", std::string(8, '\0'), "\xff\xff\xff\xff\xff\xff\xff\x7f",
        std::string("\1\0\0\0\2\0\0\0", 8), std::string("\4\0\0\0", 4)}},
      {"minder_models",
       RunMinderModels,
       {"\"metrics\"", "\"weights\"", "\"name\"", "null", "-1", "1e400", "1e-320", "[", "{", "]",
        "}", "true", "\\u0000", "0.5,"}},
      {"minder_recording",
       RunMinderRecording,
       {"machine,seconds", "n0,", ",", ",,", "\n", "\r\n", "\"", "nan", "inf", "-inf", "1e400",
        "-1", "1764052800.0", "1e-320", "0x10"}},
      {"text_file",
       RunTextFile,
       {"{\"text\": \"", "\"}\n", "\n", "\xef\xbb\xbf", "\xff\xfe", std::string(2, '\0'),
        "\x1f\x8b\x08", "\x28\xb5\x2f\xfd", "\x50\x2a\x4d\x18", "PAR1", "ustar", "NaN", "[",
        "<html"}},
      {"json_line",
       RunJsonLine,
       {"NaN", "-Infinity", "\"text\"", ":", ",", "{", "}", "[", "]", "\"", "\\u0000", "\\ud800",
        "null", "1e400"}},
  };
  return *targets;
}

void CheckLine(const absl::Status& refusal) {
  constexpr size_t kBytesMax = 1000;
  const std::string message(refusal.message());
  MEGASCALE_CHECK(!message.empty() && message.size() <= kBytesMax);
  MEGASCALE_CHECK_MSG(base::Printable(message) == message, message);
}

const Target* FindTarget(absl::string_view name) {
  for (const Target& target : Targets()) {
    if (target.name == name) return &target;
  }
  return nullptr;
}

std::vector<std::string> SplitFrames(absl::string_view input) {
  std::vector<std::string> frames;
  uint32_t length = 0;
  while (input.size() >= sizeof(length)) {
    std::memcpy(&length, input.data(), sizeof(length));
    input.remove_prefix(sizeof(length));
    if (length > input.size()) break;
    frames.emplace_back(input.substr(0, length));
    input.remove_prefix(length);
  }
  return frames;
}

std::string JoinFrames(const std::vector<std::string>& frames) {
  std::string joined;
  for (const std::string& frame : frames) {
    const auto length = static_cast<uint32_t>(frame.size());
    joined.append(reinterpret_cast<const char*>(&length), sizeof(length));
    joined += frame;
  }
  return joined;
}

std::string MutateFrames(const std::string& input, Random* random,
                         std::string (*mutate)(const std::string& frame, Random* random)) {
  constexpr size_t kFramesMax = 60;
  std::vector<std::string> frames = SplitFrames(input);
  if (frames.empty()) return JoinFrames({mutate("", random)});
  const size_t at = random->Below(frames.size());
  switch (random->Below(6)) {
    case 0:
      frames.erase(frames.begin() + static_cast<int64_t>(at));
      break;
    case 1:
      if (frames.size() < kFramesMax) frames.push_back(frames[at]);
      break;
    case 2:
      std::swap(frames[at], frames[random->Below(frames.size())]);
      break;
    default:
      frames[at] = mutate(frames[at], random);
  }
  return JoinFrames(frames);
}

}  // namespace megascale::fuzz
