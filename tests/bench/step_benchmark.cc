// A training step of one process, by operator, each beside what this machine could do at best. By
// default GPT-2 124M at batch 4, sequence 256, on two threads. tests/bench/peers/gpt2_pytorch.py
// times the same step in PyTorch, by turns with `--on-request`.
//
//   step_benchmark --precision bf16 fp32
//
// The roofline is the sum of every matrix product at the best rate that oneDNN alone reaches for
// its shape and types, attention's products over the pairs that the mask leaves among them, and of
// every other operator's least bytes at the memory's bandwidth. All of it is measured in this run.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "proto/job.pb.h"
#include "runtime/base/check.h"
#include "runtime/base/clock.h"
#include "runtime/base/process/program.h"
#include "runtime/base/process/thread_environment.h"
#include "runtime/model/transformer_chunk.h"
#include "runtime/optim/sharded_optimizer.h"
#include "tests/bench/measured_ops.h"
#include "tests/bench/roofline.h"

namespace megascale::bench {
namespace {

using ops::DType;

constexpr int kWarmUpSteps = 3;

DType TypeOf(const std::string& precision) {
  return precision == "bf16" ? DType::kBF16 : DType::kF32;
}

struct Options {
  int layers = 12, hidden_size = 768, heads = 12, vocab_size = 50304, batch = 4, seq_length = 256;
  int threads = 2, steps = 7;
  bool roofline = true;
  bool on_request = false;
  std::vector<std::string> precisions = {"bf16", "fp32"};
};

model::ModelConfig ConfigOf(const Options& options) {
  model::ModelConfig config;
  config.vocab_size = options.vocab_size;
  config.hidden_size = options.hidden_size;
  config.num_layers = options.layers;
  config.num_heads = config.num_kv_heads = options.heads;
  config.head_dim = options.hidden_size / options.heads;
  config.intermediate_size = 4 * options.hidden_size;
  config.max_positions = options.seq_length;
  config.tied = true;
  return config;
}

// A whole model with its optimizer, as a rank of a job with one rank has them.
class Trainer {
 public:
  Trainer(const Options& options, DType compute)
      : tokens_(options.batch * options.seq_length),
        inner_(ops::MakeCpuOps(compute, options.threads)),
        ops_(inner_.get()) {
    const model::ModelConfig config = ConfigOf(options);
    const model::ChunkRange range = *model::MakeChunkRange(config, 1, 0);
    const int64_t size = model::ChunkLayout(config, range).padded_elements(1);
    const DType accumulation = AccumulationType(compute);
    arena_ = *tensor::Arena::Create(tensor::Arena::BytesFor(compute, size) +
                                    tensor::Arena::BytesFor(accumulation, size));
    weights_ = arena_.Allocate(compute, size);
    gradients_ = arena_.Allocate(accumulation, size);
    auto chunk = model::TransformerChunk::Create({.config = config,
                                                  .range = range,
                                                  .micro_batch = options.batch,
                                                  .seq = options.seq_length,
                                                  .num_slots = 1,
                                                  .compute = compute},
                                                 &ops_, {weights_, gradients_});
    MEGASCALE_CHECK_MSG(chunk.ok(), chunk.status().ToString());
    chunk_ = *std::move(chunk);
    job::v1::OptimizerSpec spec;
    spec.set_type(job::v1::OPTIMIZER_TYPE_ADAMW);
    spec.set_beta1(0.9);
    spec.set_beta2(0.95);
    spec.set_eps(1e-8);
    spec.set_weight_decay(0.1);
    optimizer_ = *optim::ShardedOptimizer::Create(spec, {.config = config, .range = range},
                                                  {weights_}, &ops_);
    optimizer_->Initialize({.seed = 1});
    optimizer_->PublishWeights();
    std::mt19937 random(1);
    for (int64_t i = 0; i < tokens_; ++i) {
      chunk_->tokens(0).as<int32_t>()[i] = static_cast<int32_t>(random() % options.vocab_size);
      chunk_->targets(0).as<int32_t>()[i] = static_cast<int32_t>(random() % options.vocab_size);
    }
  }

  // Returns the mean loss.
  double Step() {
    double loss = 0;
    ops_.FillZero(gradients_);
    chunk_->Forward(0, {.gradient_scale = 1.0 / static_cast<double>(tokens_), .sum = &loss});
    chunk_->Backward(0);
    const double squares = optimizer_->SumOfSquares({&gradients_, 1});
    optimizer_->Step({.grad = {&gradients_, 1},
                      .clip_factor = optim::ClipFactor(squares, 1.0),
                      .lr = 3e-4,
                      .step = ++step_});
    return loss / static_cast<double>(tokens_);
  }

  MeasuredOps& ops() { return ops_; }

 private:
  const int64_t tokens_;
  std::unique_ptr<ops::Ops> inner_;
  MeasuredOps ops_;
  tensor::Arena arena_;
  ops::Vector weights_, gradients_;
  std::unique_ptr<model::TransformerChunk> chunk_;
  std::unique_ptr<optim::ShardedOptimizer> optimizer_;
  int64_t step_ = 0;
};

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

std::string NameOf(const ProductShape& shape) {
  return absl::StrFormat("%d x %d x %d %s%s%s -> %s", shape.m, shape.n, shape.k,
                         shape.transpose_a ? "T" : "N", shape.transpose_b ? "T" : "N",
                         shape.accumulate ? " +=" : "", std::string(tensor::Name(shape.result)));
}

// Prints a line of the table; returns the roofline's seconds. A rate of 0: not measured.
double PrintLine(const std::string& name, const Cost& cost, double rate, int steps) {
  const bool is_product = cost.flops > 0;
  const double work = is_product ? cost.flops : cost.bytes;
  const double seconds = cost.seconds / steps, ceiling = rate > 0 ? work / steps / rate : 0;
  std::printf("  %-38s %5d %9.2f ms %8.1f %-7s", name.c_str(),
              static_cast<int>(cost.num_calls / steps), seconds * 1e3, work / cost.seconds / 1e9,
              is_product ? "GFLOP/s" : "GB/s");
  if (rate > 0) std::printf(" %9.2f ms %5.0f %%", ceiling * 1e3, 100 * ceiling / seconds);
  std::printf("\n");
  std::fflush(stdout);
  return ceiling;
}

// The seconds of `steps` steps, one after the other. `loss`: receives the last one's, or null.
std::vector<double> TimeSteps(Trainer& trainer, int steps, double* loss) {
  std::vector<double> seconds;
  for (int i = 0; i < steps; ++i) {
    const absl::Duration begin = base::RealClock().Monotonic();
    const double loss_of_step = trainer.Step();
    seconds.push_back(absl::ToDoubleSeconds(base::RealClock().Monotonic() - begin));
    if (loss != nullptr) *loss = loss_of_step;
  }
  return seconds;
}

void WarmUp(Trainer& trainer) {
  for (int i = 0; i < kWarmUpSteps; ++i) trainer.Step();
  trainer.ops().Reset();
}

void PrintTable(const Options& options, const std::string& precision, double bandwidth) {
  std::printf("\n%s, %d threads\n", precision.c_str(), options.threads);
  Trainer trainer(options, TypeOf(precision));
  WarmUp(trainer);
  double loss = 0;
  const std::vector<double> seconds = TimeSteps(trainer, options.steps, &loss);
  const double median = Median(seconds);
  std::printf("  loss after %d steps: %.4f\n", options.steps + kWarmUpSteps, loss);
  std::printf("  %-38s %5s %12s %16s %12s\n", "operator", "calls", "a step", "rate",
              options.roofline ? "roofline" : "");
  double roofline = 0, measured = 0;
  for (const auto& [shape, cost] : trainer.ops().products()) {
    const double rate = options.roofline ? BestProductRate(shape, options.threads) : 0;
    roofline += PrintLine(NameOf(shape), cost, rate, options.steps);
    measured += cost.seconds / options.steps;
  }
  const double attention_rate =
      options.roofline ? BestAttentionRate(trainer.ops().attention(), options.threads) : 0;
  for (const auto& [name, cost] : trainer.ops().others()) {
    const double rate = cost.flops > 0 ? attention_rate : bandwidth;
    roofline += PrintLine(name, cost, options.roofline ? rate : 0, options.steps);
    measured += cost.seconds / options.steps;
  }
  const double tokens = static_cast<double>(options.batch) * options.seq_length;
  const double flops = tokens * model::TrainFlopsPerToken(ConfigOf(options), options.seq_length);
  std::printf("  step %.1f ms (median of %d; least %.1f; operators %.1f)", median * 1e3,
              options.steps, *std::min_element(seconds.begin(), seconds.end()) * 1e3,
              measured * 1e3);
  if (options.roofline) {
    std::printf(", roofline %.1f ms: %.0f %% of it reached", roofline * 1e3,
                100 * roofline / median);
  }
  std::printf("\n  %.0f tokens/s, %.0f model GFLOP/s\n", tokens / median, flops / median / 1e9);
}

// For each line on stdin, a number of steps: times them and prints their seconds as a JSON array.
int AnswerRequests(const Options& options) {
  Trainer trainer(options, TypeOf(options.precisions.front()));
  WarmUp(trainer);
  int steps = 0;
  while (std::cin >> steps) {
    std::cout << nlohmann::json(TimeSteps(trainer, steps, nullptr)).dump() << std::endl;
  }
  if (std::cin.eof()) return 0;
  std::cerr << "step_benchmark: --on-request: stdin has something else than numbers of steps\n";
  return 2;
}

int Run(const Options& options) {
  if (options.on_request) return AnswerRequests(options);
  const double bandwidth = MeasureBandwidth(options.threads);
  std::printf(
      "GPT-2: %d layers, hidden %d, %d heads, vocabulary %d, batch %d, sequence %d: %.1f M "
      "parameters\ninstruction set %s, %d threads, memory %.1f GB/s, multiply-add in fp32 %.1f "
      "GFLOP/s\n",
      options.layers, options.hidden_size, options.heads, options.vocab_size, options.batch,
      options.seq_length, static_cast<double>(model::NumParameters(ConfigOf(options))) / 1e6,
      ops::InstructionSet(), options.threads, bandwidth / 1e9,
      MeasureMultiplyAddRate(options.threads) / 1e9);
  for (const std::string& precision : options.precisions) PrintTable(options, precision, bandwidth);
  return 0;
}

}  // namespace
}  // namespace megascale::bench

int main(int argc, char** argv) {
  // As the agent starts a worker that has the machine for itself.
  megascale::base::EnterEnvironment(megascale::base::ThreadEnvironment(true), argv);
  megascale::bench::Options options;
  CLI::App app("A training step by operator, beside the machine's roofline.");
  app.add_option("--layers", options.layers)->capture_default_str();
  app.add_option("--hidden-size", options.hidden_size)->capture_default_str();
  app.add_option("--heads", options.heads)->capture_default_str();
  app.add_option("--vocab-size", options.vocab_size)->capture_default_str();
  app.add_option("--batch", options.batch, "samples")->capture_default_str();
  app.add_option("--seq-length", options.seq_length)->capture_default_str();
  app.add_option("--threads", options.threads)->capture_default_str();
  app.add_option("--steps", options.steps, "timed steps")->capture_default_str();
  app.add_flag("!--no-roofline", options.roofline, "measure our own step only");
  app.add_option("--precision", options.precisions)
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  app.add_flag(
      "--on-request", options.on_request,
      "for each number on stdin, time as many steps of the first precision and print their "
      "seconds");
  CLI11_PARSE(app, argc, argv);
  return megascale::bench::Run(options);
}
