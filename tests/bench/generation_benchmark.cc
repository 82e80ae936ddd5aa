// Generation of one sequence by a model of GPT-2's 124M, beside the rate that the memory allows:
// each token reads all weights but the embeddings that are looked up, so tokens/s <= read bandwidth
// / bytes of those weights. Both are measured by turns in this run, on the code that `megascale
// generate` runs; what it leaves out is choosing tokens and text. Exits 1 if the median share of
// that rate is below --least-share.
//
//   tests/bench/generation_benchmark [--threads 2] [--tokens 32] [--rounds 7] [--precision bf16]
//     [--least-share 0.6]
#include <omp.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "runtime/base/check.h"
#include "runtime/base/process/program.h"
#include "runtime/base/process/thread_environment.h"
#include "runtime/checkpoint/format/safetensors.h"
#include "runtime/hugging_face/config/config.h"
#include "runtime/hugging_face/initial_weights.h"
#include "runtime/hugging_face/tensor_map.h"
#include "runtime/inference/language_model.h"
#include "runtime/model/config.h"
#include "runtime/ops/ops.h"
#include "runtime/tensor/arena.h"

namespace megascale::bench {
namespace {

using tensor::DType;

struct Options {
  int threads = std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
  int tokens = 32;  // of one turn
  int rounds = 7;
  int prompt_tokens = 128;
  std::string precision = "bf16";
  double least_share = 0.6;  // of the memory's rate
};

constexpr char kConfig[] = R"({"architectures": ["GPT2LMHeadModel"], "vocab_size": 50257,
  "n_embd": 768, "n_layer": 12, "n_head": 12, "n_positions": 1024})";

// A Hugging Face folder of random bf16 weights; deleted at the end.
class RandomFolder {
 public:
  RandomFolder() : path_((std::filesystem::temp_directory_path() / "generation-XXXXXX").string()) {
    MEGASCALE_CHECK(::mkdtemp(path_.data()) != nullptr);
    std::ofstream(path_ + "/config.json") << kConfig;
    const auto config = hugging_face::ParseConfig(kConfig, "config.json");
    MEGASCALE_CHECK(config.ok());
    checkpoint::SafetensorsHeader header;
    int64_t begin = 0;
    const model::ModelConfig model =
        model::MakeModelConfig(hugging_face::Resolved(config->model)).value();
    for (const auto& tensor : hugging_face::MapTensors(config->architecture, model)) {
      for (const hugging_face::Part& part : tensor.parts) {
        const std::vector<int64_t> shape = tensor.ShapeOf(part);
        int64_t size = sizeof(tensor::BFloat16);
        for (const int64_t dim : shape) size *= dim;
        header.entries.push_back({part.name, "BF16", shape, begin, size});
        begin += size;
      }
    }
    std::ofstream file(path_ + "/model.safetensors", std::ios::binary);
    file << checkpoint::SerializeSafetensorsHeader(header);
    WriteNumbers(begin / static_cast<int64_t>(sizeof(tensor::BFloat16)), &file);
    MEGASCALE_CHECK_MSG(file.good(), "no space for the weights");
  }
  ~RandomFolder() { std::filesystem::remove_all(path_); }
  const std::string& path() const { return path_; }

 private:
  static void WriteNumbers(int64_t count, std::ofstream* file) {
    uint64_t random = 1;
    std::vector<tensor::BFloat16> block(1 << 16);
    for (int64_t done = 0; done < count; done += static_cast<int64_t>(block.size())) {
      for (tensor::BFloat16& value : block) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        value = tensor::ToBFloat16(static_cast<float>(random >> 40) * 0x1p-29f - 0x1p-6f);
      }
      const int64_t rest = std::min(count - done, static_cast<int64_t>(block.size()));
      file->write(reinterpret_cast<const char*>(block.data()),
                  rest * static_cast<int64_t>(sizeof(tensor::BFloat16)));
    }
  }

  std::string path_;
};

double Seconds(absl::Time since) { return absl::ToDoubleSeconds(absl::Now() - since); }

// Reads more memory than any cache holds, and measures it.
class Reader {
 public:
  Reader() : arena_(tensor::Arena::Create(kBytes).value()) {
    words_ = static_cast<uint64_t*>(arena_.data());
    std::fill_n(words_, kWords, uint64_t{1});
  }

  // Returns bytes per second.
  double Measure(int num_threads) const {
    const absl::Time begin = absl::Now();
    uint64_t sum = 0;
#pragma omp parallel for schedule(static) num_threads(num_threads) reduction(+ : sum)
    for (int64_t line = 0; line < kWords / 8; ++line) {
      const uint64_t* const at = words_ + line * 8;
      __builtin_prefetch(at + 512);
      for (int i = 0; i < 8; ++i) sum += at[i];
    }
    const double rate = static_cast<double>(kBytes) / Seconds(begin);
    MEGASCALE_CHECK(sum == static_cast<uint64_t>(kWords));
    return rate;
  }

 private:
  static constexpr int64_t kBytes = int64_t{512} << 20;
  static constexpr int64_t kWords = kBytes / 8;
  tensor::Arena arena_;
  uint64_t* words_;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int Run(const Options& options) {
  const RandomFolder folder;
  inference::LanguageModelOptions load = {.num_threads = options.threads};
  load.model = hugging_face::FindSource(folder.path()).value().model;
  load.model.set_from(folder.path());
  load.compute = options.precision == "fp32" ? DType::kF32 : DType::kBF16;
  load.capacity = options.prompt_tokens + options.tokens;
  const auto model = inference::LanguageModel::Load(std::move(load)).value();
  std::printf(
      "GPT-2 of %.1f M parameters, %s, one sequence of %d + %d tokens; %d threads, %s\n"
      "a token reads %.1f MB of weights\n",
      static_cast<double>(model::NumParameters(model->config())) / 1e6, options.precision.c_str(),
      options.prompt_tokens, options.tokens, options.threads, ops::InstructionSet(),
      static_cast<double>(model->step_bytes()) / 1e6);
  const std::vector<int32_t> prompt(options.prompt_tokens, 11);
  const Reader reader;
  std::vector<double> logits, bandwidths, rates, shares, prompts;
  double best_rate = 0;
  for (int round = 0; round < options.rounds; ++round) {
    bandwidths.push_back(reader.Measure(options.threads));
    model->Clear(0);
    const absl::Time begin = absl::Now();
    MEGASCALE_CHECK(model->Read(0, prompt, &logits).ok());
    prompts.push_back(options.prompt_tokens / Seconds(begin));
    const absl::Time stepping = absl::Now();
    for (int i = 0; i < options.tokens; ++i) {
      const inference::NextToken next = {.sequence = 0, .token = i};
      const absl::Time step = absl::Now();
      MEGASCALE_CHECK(model->Step({next}, &logits).ok());
      best_rate = std::max(best_rate, 1 / Seconds(step));
    }
    rates.push_back(options.tokens / Seconds(stepping));
    shares.push_back(rates.back() * static_cast<double>(model->step_bytes()) / bandwidths.back());
  }
  std::printf(
      "reads %.1f GB/s, which allows %.1f tokens/s; generates %.1f tokens/s: %.0f %% (medians of "
      "%d turns; shares from %.0f to %.0f %%)\nreads a prompt at %.0f tokens/s\n",
      Median(bandwidths) / 1e9, Median(bandwidths) / static_cast<double>(model->step_bytes()),
      Median(rates), 100 * Median(shares), options.rounds,
      100 * *std::min_element(shares.begin(), shares.end()),
      100 * *std::max_element(shares.begin(), shares.end()), Median(prompts));
  const double best = *std::max_element(bandwidths.begin(), bandwidths.end());
  std::printf("at best reads %.1f GB/s and generates %.1f tokens/s: %.0f %%\n", best / 1e9,
              best_rate, 100 * best_rate * static_cast<double>(model->step_bytes()) / best);
  if (Median(shares) >= options.least_share) return 0;
  std::printf("FAILED: the share is below %.0f %%\n", 100 * options.least_share);
  return 1;
}

}  // namespace
}  // namespace megascale::bench

int main(int argc, char** argv) {
  // As `megascale generate` starts.
  megascale::base::EnterEnvironment(megascale::base::ThreadEnvironment(false), argv);
  megascale::bench::Options options;
  CLI::App app("Generation of one sequence, beside the rate that the memory allows.");
  app.add_option("--threads", options.threads)->capture_default_str()->check(CLI::Range(1, 1024));
  app.add_option("--tokens", options.tokens)->capture_default_str()->check(CLI::Range(1, 512));
  app.add_option("--rounds", options.rounds)->capture_default_str()->check(CLI::Range(1, 1000));
  app.add_option("--prompt-tokens", options.prompt_tokens)
      ->capture_default_str()
      ->check(CLI::Range(1, 512));
  app.add_option("--precision", options.precision)
      ->capture_default_str()
      ->check(CLI::IsMember({"bf16", "fp32"}));
  app.add_option("--least-share", options.least_share,
                 "exit 1 if the median share of the memory's rate is below this; 0: never")
      ->capture_default_str()
      ->check(CLI::Range(0.0, 1.0));
  CLI11_PARSE(app, argc, argv);
  return megascale::bench::Run(options);
}
