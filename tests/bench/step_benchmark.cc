// A training step of a job of one rank on the production engine, by operator, each beside what this
// machine could do at best. By default GPT-2 124M at batch 4, sequence 256, on two threads.
// tests/bench/peers/gpt2_pytorch.py times the same step in PyTorch, by turns with `--on-request`.
//
//   step_benchmark --precision bf16 fp32
//   step_benchmark --optimizer-threads 1 2   # the same step by turns, AdamW on one thread and on
//   two
//
// The roofline is the sum of every matrix product at the best rate that oneDNN alone reaches for
// its shape and types, attention's products over the pairs that the mask leaves among them, and of
// every other operator's least bytes at the memory's bandwidth. All of it is measured in this run.
#include <algorithm>
#include <cstdio>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "CLI/CLI.hpp"
#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"
#include "proto/job.pb.h"
#include "runtime/base/check.h"
#include "runtime/base/process/program.h"
#include "runtime/base/process/thread_environment.h"
#include "runtime/model/config.h"
#include "runtime/ops/ops.h"
#include "tests/bench/measured_ops.h"
#include "tests/bench/one_rank_job.h"
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
  std::vector<int> optimizer_threads = {};  // empty: `threads`, as a worker has it
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

job::v1::JobSpec SpecOf(const Options& options, DType compute) {
  job::v1::JobSpec spec;
  spec.set_name("step-benchmark");
  job::v1::ModelSpec& model = *spec.mutable_model();
  model.set_vocab_size(options.vocab_size);
  model.set_hidden_size(options.hidden_size);
  model.set_num_hidden_layers(options.layers);
  model.set_num_attention_heads(options.heads);
  model.set_tie_word_embeddings(true);
  job::v1::TrainSpec& train = *spec.mutable_train();
  train.set_steps(1'000'000);  // more than anybody times
  train.set_seq_length(options.seq_length);
  train.set_global_batch_size(options.batch);
  train.set_micro_batch_size(options.batch);
  train.set_precision(compute == DType::kBF16 ? job::v1::PRECISION_BF16 : job::v1::PRECISION_FP32);
  train.set_seed(1);
  job::v1::OptimizerSpec& optimizer = *spec.mutable_optimizer();
  optimizer.set_lr(3e-4);
  optimizer.set_beta1(0.9);
  optimizer.set_beta2(0.95);
  optimizer.set_weight_decay(0.1);
  optimizer.set_clip_grad(1.0);
  spec.mutable_parallel()->set_threads_per_rank(options.threads);
  return spec;
}

// The job, and the operators that its engine made.
class Trainer {
 public:
  Trainer(const Options& options, DType compute, int optimizer_threads) {
    auto job = OneRankJob::Create(SpecOf(options, compute), [this, optimizer_threads](
                                                                DType dtype, int num_threads) {
      auto optimizer =
          optimizer_threads == num_threads ? nullptr : ops::MakeCpuOps(dtype, optimizer_threads);
      auto made =
          std::make_unique<MeasuredOps>(ops::MakeCpuOps(dtype, num_threads), std::move(optimizer));
      ops_.push_back(made.get());
      return made;
    });
    MEGASCALE_CHECK_MSG(job.ok(), job.status().ToString());
    job_ = *std::move(job);
  }

  OneRankJob::Step TakeStep() {
    const auto step = job_->TakeStep();
    MEGASCALE_CHECK_MSG(step.ok(), step.status().ToString());
    return *step;
  }

  void ResetCosts() {
    for (MeasuredOps* ops : ops_) ops->Reset();
  }
  // Returns the costs since ResetCosts. Requires: no step is running.
  std::map<ProductShape, Cost> products() const {
    std::map<ProductShape, Cost> sum;
    for (const MeasuredOps* ops : ops_) {
      for (const auto& [shape, cost] : ops->products()) sum[shape] += cost;
    }
    return sum;
  }
  std::map<std::string, Cost> others() const {
    std::map<std::string, Cost> sum;
    for (const MeasuredOps* ops : ops_) {
      for (const auto& [name, cost] : ops->others()) sum[name] += cost;
    }
    return sum;
  }
  const AttentionShape& attention() const { return ops_.front()->attention(); }

 private:
  std::vector<MeasuredOps*> ops_;  // of job_; the first are those of the passes
  std::unique_ptr<OneRankJob> job_;
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

// Returns the seconds of `steps` steps, one after the other. `loss`: receives the last one's, or
// null.
std::vector<double> TimeSteps(Trainer& trainer, int steps, double* loss) {
  std::vector<double> seconds;
  for (int i = 0; i < steps; ++i) {
    const OneRankJob::Step step = trainer.TakeStep();
    seconds.push_back(step.seconds);
    if (loss != nullptr) *loss = step.record.loss();
  }
  return seconds;
}

void WarmUp(Trainer& trainer) {
  for (int i = 0; i < kWarmUpSteps; ++i) trainer.TakeStep();
  trainer.ResetCosts();
}

void PrintTable(const Options& options, const std::string& precision, double bandwidth) {
  std::printf("\n%s, %d threads\n", precision.c_str(), options.threads);
  Trainer trainer(options, TypeOf(precision), options.optimizer_threads.front());
  WarmUp(trainer);
  double loss = 0;
  const std::vector<double> seconds = TimeSteps(trainer, options.steps, &loss);
  const double median = Median(seconds);
  std::printf("  loss after %d steps: %.4f\n", options.steps + kWarmUpSteps, loss);
  std::printf("  %-38s %5s %12s %16s %12s\n", "operator", "calls", "a step", "rate",
              options.roofline ? "roofline" : "");
  double roofline = 0, measured = 0;
  for (const auto& [shape, cost] : trainer.products()) {
    const double rate = options.roofline ? BestProductRate(shape, options.threads) : 0;
    roofline += PrintLine(NameOf(shape), cost, rate, options.steps);
    measured += cost.seconds / options.steps;
  }
  const double attention_rate =
      options.roofline ? BestAttentionRate(trainer.attention(), options.threads) : 0;
  for (const auto& [name, cost] : trainer.others()) {
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

// Times the same step with each number of threads for AdamW, by turns.
void CompareOptimizerThreads(const Options& options, const std::string& precision) {
  constexpr int kStepsOfTurn = 3;
  std::printf("\n%s, %d threads: a step by turns of %d\n", precision.c_str(), options.threads,
              kStepsOfTurn);
  std::vector<std::unique_ptr<Trainer>> trainers;
  for (const int threads : options.optimizer_threads) {
    trainers.push_back(std::make_unique<Trainer>(options, TypeOf(precision), threads));
    WarmUp(*trainers.back());
  }
  std::vector<std::vector<double>> seconds(trainers.size());
  std::vector<double> losses(trainers.size());
  for (int done = 0; done < options.steps; done += kStepsOfTurn) {
    for (size_t i = 0; i < trainers.size(); ++i) {
      for (const double step : TimeSteps(*trainers[i], kStepsOfTurn, &losses[i])) {
        seconds[i].push_back(step);
      }
    }
  }
  for (size_t i = 0; i < trainers.size(); ++i) {
    MEGASCALE_CHECK_MSG(losses[i] == losses[0], "the number of threads changed the loss");
    const Cost optimizer = trainers[i]->others()["adamw"];
    std::printf(
        "  AdamW on %d: step %.1f ms (median of %d; least %.1f), %.3f times the first; AdamW "
        "%.1f ms a step\n",
        options.optimizer_threads[i], Median(seconds[i]) * 1e3, static_cast<int>(seconds[i].size()),
        *std::min_element(seconds[i].begin(), seconds[i].end()) * 1e3,
        Median(seconds[0]) / Median(seconds[i]),
        optimizer.seconds / static_cast<double>(seconds[i].size()) * 1e3);
  }
}

// For each word on stdin that is a number of steps: times them and prints their seconds as a JSON
// array. For "loss": prints that of the last step, with all its digits.
int AnswerRequests(const Options& options) {
  Trainer trainer(options, TypeOf(options.precisions.front()), options.optimizer_threads.front());
  WarmUp(trainer);
  double loss = 0;
  std::string request;
  while (std::cin >> request) {
    int steps = 0;
    if (request == "loss") {
      std::cout << nlohmann::json(loss).dump() << std::endl;
    } else if (absl::SimpleAtoi(request, &steps) && steps > 0) {
      std::cout << nlohmann::json(TimeSteps(trainer, steps, &loss)).dump() << std::endl;
    } else {
      std::cerr << "step_benchmark: --on-request: stdin has '" << request
                << "', expected numbers of steps, or \"loss\"\n";
      return 2;
    }
  }
  return 0;
}

int Run(Options options) {
  if (options.optimizer_threads.empty()) options.optimizer_threads = {options.threads};
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
  std::printf("a job of one rank on the engine of a worker; %s\n", kLeftOut);
  for (const std::string& precision : options.precisions) {
    if (options.optimizer_threads.size() > 1) {
      CompareOptimizerThreads(options, precision);
    } else {
      PrintTable(options, precision, bandwidth);
    }
  }
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
  app.add_option("--optimizer-threads", options.optimizer_threads,
                 "threads of AdamW, to compare: several are timed by turns; default: as a worker, "
                 "those of --threads")
      ->check(CLI::PositiveNumber);
  app.add_flag("!--no-roofline", options.roofline, "measure our own step only");
  app.add_option("--precision", options.precisions)
      ->check(CLI::IsMember({"bf16", "fp32"}))
      ->capture_default_str();
  app.add_flag(
      "--on-request", options.on_request,
      "for each number on stdin, time as many steps of the first precision and print their "
      "seconds; for \"loss\", print that of the last step");
  CLI11_PARSE(app, argc, argv);
  return megascale::bench::Run(options);
}
